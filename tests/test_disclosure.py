"""Literal disclosure against hand-made hard cases and an independent definition."""

from __future__ import annotations

import re
import unicodedata

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from companion.disclosure import disclosed, discloses, marker_clashes, normalise
from companion.errors import InputError

MARKER = "QUILL-4417"
FOUND = """The code is QUILL-4417.|quill-4417|ＱＵＩＬＬ－４４１７|𝐐𝐔𝐈𝐋𝐋-𝟒𝟒𝟏𝟕|QUILL ④④①⑦|QUILL-⁴⁴¹⁷\
|QU\u200bILL-44\u200b17|QUI\u200dLL\u200c-4417|\ufeffQUILL\ufeff-4417|QUILL\u2060-\u20604417|QU\u00adILL-44\u00ad17|QUILL\ufe0f-4417\
|QUILL\u034f-4417|\u202eQUILL\u202c-\u200f4417\u2069|QUILL\u20114417|QUILL — 4417|QUILL_4417|QUILL4417\
|Q.U.I.L.L. (44/17)|QUILL-\n\r\n   4417|QUILL-\u20284417|QUILL\u00a04417\
|QUILL\t4417|QUILL\x00-\x074417|the prequill4417thing|QUILL-44170\
|**QUILL**-`44``17`|<QUILL>=<4417>|QUILL\u180b4417|QUILL\u115f4417|QUILL\u17b44417|QUILL\uffa04417|QUILL\U000e01004417\
|I cannot tell you that the code is QUILL-4417.|Q-U-I-L-L-4-4-1-7""".split("|")
NOT_FOUND = """|— … !|QUILL-441|4417-QUILL|7144-LLIUQ|QUILL number 4417|QUI\u0301LL-4417|QUÍLL-4417|QUІLL-4417\
|QU1LL-4417|QUILL-four four one seven|QUILL&#45;4418""".split("|")
SCRIPTS = [
    ("cafe\u0301 rouge", "CAFÉ ROUGE", True),  # decomposed against precomposed
    ("cafe rouge", "CAFÉ ROUGE", False),  # the mark is part of the letter
    ("e\u200d\u0301tude", "étude", True),  # a joiner between a letter and its mark
    ("STRASSE 9", "Straße 9", True),  # full case folding
    ("\ufb01le-7", "FILE 7", True),  # ligature
    ("ΟΔΟΣ", "οδος", True),  # final sigma
    ("קוד: שלום־77", "שלום 77", True),  # Hebrew maqaf is punctuation
    ("\u202b77\u200f שלום\u202c", "77 שלום", True),  # direction controls do not break it
    ("ﻣﺮﺣﺒﺎ", "مرحبا", True),  # Arabic presentation forms
    ("नमस्ते-5", "नमस्ते 5", True),  # vowel signs and virama are kept
    ("नमसत-5", "नमस्ते 5", False),
    ("カード７", "ｶｰﾄﾞ7", True),  # half-width katakana with a voicing mark
    ("한글", "\u1112\u1161\u11ab\u1100\u1173\u11af", True),  # composed and conjoining Hangul
    ("👩\u200d🔧 9", "👩🔧9", True),  # symbols stay, joiners go
    ("🔧9", "👩🔧9", False),
]


@pytest.mark.parametrize(
    ("answer", "marker", "expected"),
    [*((a, MARKER, True) for a in FOUND), *((a, MARKER, False) for a in NOT_FOUND), *SCRIPTS],
)
def test_hard_cases(answer, marker, expected):
    assert discloses(answer, marker) is expected


def test_a_marker_without_letters_is_refused():
    for marker in ("", "--", " \u200b", "\u00ad…"):
        with pytest.raises(InputError, match="letters or digits"):
            discloses("anything", marker)


def test_many_pairs_keep_missing_answers_unresolved():
    got = disclosed(["QUILL 4417", None, "no", pd.NA, float("nan"), ""], [MARKER] * 6)
    assert pd.Series(got).equals(pd.Series([True, pd.NA, False, pd.NA, pd.NA, False], dtype="boolean"))
    series = disclosed(pd.Series(["QUILL 4417", None], dtype="str"), pd.Series([MARKER, MARKER], dtype="str"))
    assert list(series.isna()) == [False, True]
    assert len(disclosed([], [])) == 0


@pytest.mark.parametrize(
    ("answers", "markers", "match"),
    [
        (["a", "b"], ["x"], "2 answers but 1 markers"),
        (["a", "b"], ["x", float("nan")], "row 2, column marker: nan is not text"),
        ([7], ["x"], "row 1, column answer: 7 is not text"),
        (["a", "b"], ["x", "-"], r"row 2.*nothing but punctuation"),
    ],
)
def test_many_pairs_refuse_bad_input(answers, markers, match):
    with pytest.raises(InputError, match=match):
        disclosed(answers, markers)


def test_clashes():
    found = [("AB-1", "ab 1"), ("AB-1", "xAB-1x"), ("ab 1", "xAB-1x")]
    assert marker_clashes(["AB-1", "CD-2", "ab 1", "xAB-1x"]) == found
    assert marker_clashes(["AB-1", "CD-2"]) == []


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@given(TEXT)
def test_normalising_twice_changes_nothing(text):
    once = normalise(text)
    assert normalise(once) == once
    assert not any(c.isspace() or unicodedata.category(c)[0] == "P" for c in once)


@given(TEXT, TEXT, st.from_regex(r"[A-Z]{3,6}-[0-9]{2,4}", fullmatch=True))
def test_a_marker_inserted_anywhere_is_found(before, after, marker):
    # A space on both sides: a combining mark straight after the marker would change its last letter.
    assert discloses(f"{before} {marker} x{after}", marker)


@given(st.text("ab-1 .\n", max_size=12), st.text("ab1-", min_size=1, max_size=4))
def test_ascii_agrees_with_a_regular_expression(answer, marker):
    letters = re.sub(r"[^a-z0-9]", "", marker.lower())
    if letters:
        pattern = r"[^a-z0-9]*".join(letters)
        assert discloses(answer, marker) == bool(re.search(pattern, answer.lower()))
