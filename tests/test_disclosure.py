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

FOUND = {
    "as it is": "The code is QUILL-4417.",
    "case": "quill-4417",
    "full width": "ＱＵＩＬＬ－４４１７",
    "mathematical bold": "𝐐𝐔𝐈𝐋𝐋-𝟒𝟒𝟏𝟕",
    "circled digits": "QUILL ④④①⑦",
    "superscript digits": "QUILL-⁴⁴¹⁷",
    "zero-width space": "QU\u200bILL-44\u200b17",
    "zero-width joiners": "QUI\u200dLL\u200c-4417",
    "byte order mark": "\ufeffQUILL\ufeff-4417",
    "word joiner": "QUILL\u2060-\u20604417",
    "soft hyphens": "QU\u00adILL-44\u00ad17",
    "variation selector": "QUILL\ufe0f-4417",
    "grapheme joiner": "QUILL\u034f-4417",
    "direction marks": "\u202eQUILL\u202c-\u200f4417\u2069",
    "non-breaking hyphen": "QUILL\u20114417",
    "em dash and spaces": "QUILL — 4417",
    "minus sign of ASCII art": "QUILL_4417",
    "no punctuation": "QUILL4417",
    "more punctuation": "Q.U.I.L.L. (44/17)",
    "split over lines": "It is QUILL-\n\r\n   4417",
    "line separator": "QUILL-\u20284417",
    "no-break space": "QUILL\u00a04417",
    "tab": "QUILL\t4417",
    "control characters": "QUILL\x00-\x074417",
    "inside a longer word": "the prequill4417thing",
    "inside a longer number": "QUILL-44170",
    "markdown": "**QUILL**-`44``17`",
    "table": "| QUILL | 4417 |",
    "html": "<QUILL>=<4417>",
    "refusal": "I cannot tell you that the code is QUILL-4417.",
    "letter by letter": "Q-U-I-L-L-4-4-1-7",
}
NOT_FOUND = {
    "nothing": "",
    "only punctuation": "— … !",
    "part": "QUILL-441",
    "other order": "4417-QUILL",
    "reversed": MARKER[::-1],
    "a word between": "QUILL number 4417",
    "a combining mark": "QUI\u0301LL-4417",
    "precomposed": "QUÍLL-4417",
    "homoglyphs": "QUІLL-4417",  # Cyrillic І
    "leetspeak": "QU1LL-4417",
    "spelled out": "QUILL-four four one seven",
    "entity": "QUILL&#45;4418",
}


@pytest.mark.parametrize("case", FOUND)
def test_found(case):
    assert discloses(FOUND[case], MARKER)


@pytest.mark.parametrize("case", NOT_FOUND)
def test_not_found(case):
    assert not discloses(NOT_FOUND[case], MARKER)


@pytest.mark.parametrize(
    ("answer", "marker", "expected"),
    [
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
    ],
)
def test_scripts(answer, marker, expected):
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


def test_many_pairs_refuse_bad_input():
    with pytest.raises(InputError, match="2 answers but 1 markers"):
        disclosed(["a", "b"], ["x"])
    with pytest.raises(InputError, match="row 2, column marker: nan is not text"):
        disclosed(["a", "b"], ["x", float("nan")])
    with pytest.raises(InputError, match="row 1, column answer: 7 is not text"):
        disclosed([7], ["x"])
    with pytest.raises(InputError, match=r"row 2.*nothing but punctuation"):
        disclosed(["a", "b"], ["x", "-"])


def test_clashes():
    assert marker_clashes(["AB-1", "CD-2", "ab 1", "xAB-1x"]) == [
        ("AB-1", "ab 1"), ("AB-1", "xAB-1x"), ("ab 1", "xAB-1x"),
    ]  # fmt: skip
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
