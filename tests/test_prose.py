"""No typed numbers: what a chapter states in digits comes from a cell, an equation or a citation."""

from __future__ import annotations

import re
from pathlib import Path

import jupytext
import pytest
from _site import ROOT

CHAPTERS = sorted((ROOT / "notebooks").glob("*.md"))

#: What may stand in digits all the same, and why.
ALLOWED = {
    r"(?<![\d.,])[01]s?\b(?![.,%]?\d|%)": "the truth values of an axis, and the ends of a scale from 0 to 1",
    r"\b0[0-9]-[a-z]+\b|\b[Cc]hapter 0[0-9]\b": "names of chapters",
    r"\bGPT-\d\.\d\b|\bGemini \d\.\d\b": "names of models that hold digits",
    r"\b(19|20)\d\d\b": "years",
    r"\barXiv \d{4}\.\d{5}\b": "identifier of a paper",
    r"\bBM25\b|\bMiniLM-L6(-v2)?\b|\bQwen3\b|\bSHA-256\b|\bUTF-8\b": "proper names that hold digits",
    r"\bp95\b|\bF1\b": "names of measures",
}
_NOT_PROSE = (
    re.compile(
        r"^(```+|~~~+)(?!\{(?:note|tip|warning|admonition|important|margin|dropdown)).*?^\1\s*$",
        re.DOTALL | re.MULTILINE,
    ),
    re.compile(r"\$\$.*?\$\$(\s*\([\w-]+\))?", re.DOTALL),
    re.compile(r"\$[^$\n]+\$"),
    re.compile(r"\{[\w:-]+\}`[^`]*`"),  # roles: glued numbers, citations, terms
    re.compile(r"`[^`\n]+`"),
    re.compile(r"\]\([^)]*\)"),  # targets of links
    re.compile(r"^:{3,}.*$|^:[\w-]+:.*$", re.MULTILINE),  # fences of directives and their options
    re.compile(r"https?://\S+"),
    re.compile(r"^\s*\d+\.\s", re.MULTILINE),  # numbered lists
)


def typed_numbers(text: str) -> list[str]:
    """Return the lines of Markdown in which a number was typed, reduced to what remains as prose."""
    for pattern in _NOT_PROSE:
        text = pattern.sub(" ", text)
    for pattern in ALLOWED:
        text = re.sub(pattern, " ", text)
    return [line.strip() for line in text.splitlines() if re.search(r"\d", line)]


def prose(path: Path) -> str:
    return "\n\n".join(cell.source for cell in jupytext.read(path).cells if cell.cell_type == "markdown")


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_no_number_is_typed_in_prose(path):
    assert typed_numbers(prose(path)) == []


@pytest.mark.parametrize(
    "text",
    [
        "Recall rises by 0.102.",
        "It is 13% lower.",
        "Of 523 questions, most are easy.",
        "Two (2) of them.",
        "**About 40**",
        "- 7 of 9",
    ],
)
def test_a_typed_number_is_found(text):
    assert typed_numbers(text) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "Recall rises by {glue:text}`gain`.",
        "With $N = 10$ items,\n\n$$\nx = 12\n$$ (eq-x)\n\nand `top_k=20`.",
        "An axis is 1 or 0; three 1s settle it.",
        "```bash\ncompanion rerun 02-support -p top_k 10\n```",
        "As {cite:t}`wang2026right` found in 2026, see [chapter](02-support.md).",
        "1. first\n2. second",
        "::::{grid} 1 2 2 4\n:gutter: 3\n\n:::{grid-item-card} Read\nThe text.\n:::\n::::",
    ],
)
def test_code_equations_citations_and_years_are_not_prose(text):
    assert typed_numbers(text) == []


def test_every_exception_has_a_reason_and_is_a_pattern():
    for pattern, reason in ALLOWED.items():
        assert re.compile(pattern)
        assert len(reason) > 4


def test_chapters_use_terms_that_the_glossary_explains():
    glossary = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8")
    known = {
        line.strip().lower() for line in glossary.splitlines() if line and not line.startswith((" ", "`", ":", "#"))
    }
    for path in [*CHAPTERS, *sorted((ROOT / "book").glob("*.md"))]:
        for target in re.findall(r"\{term\}`([^`]+)`", path.read_text(encoding="utf-8")):
            name = re.sub(r".*<(.+)>$", r"\1", target).lower()
            assert name in known, f"{path.name}: {target} is not in the glossary"
