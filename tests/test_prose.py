"""No typed numbers: what a chapter states in digits or in number words comes from a cell, an equation or a citation.

The same holds for captions and descriptions of figures: what they state must come from the data.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
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
    r"\bBM25\b|\bMiniLM-L6(-v2)?\b|\bQwen3(-Embedding-8B)?\b|\bSHA-256\b|\bUTF-8\b": "proper names that hold digits",
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


#: Words that count. "One" is not among them: it is an article as often as a number.
_COUNTS = re.compile(
    r"\b(two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen"
    r"|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|dozens?|hundreds?|thousands?|millions?"
    r"|half|halves|twice|thrice|thirds?|fourths?|quarters?|fifths?|tenths?|double|triple"
    r"|both (sources|readers|models|corpora|arms|routes|populations|verifiers|studies))\b",
    re.IGNORECASE,
)
#: Counts that no data and no parameter can change, and why.
STRUCTURAL = {
    r"\bthree (values|axes|things hold)\b|\bthird state\b": "the axes of admissibility and their values",
    r"\bfour stations\b|\bthree steps\b|\bfourth link\b|\bthe first three\b": "stored, retrieved, exposed, disclosed",
    r"\bstage (one|two|three)\b": "names of the paper's stages",
    r"\btwo (people|annotators)\b": "exact agreement and alpha are defined for the two annotators of the study",
    r"\btwo answers\b|\btable of two\b": "what makes a table of yes and no fit",
    r"\btwo texts\b": "a verifier is given a question and a memory",
    r"\btwo upright ticks\b": "a range has two ends",
    r"\btwo[- ]sided\b": "a property of the test, not a result",
    r"\bbetween two routes\b": "a difference has two sides",
    r"\btwo relevant cells\b|\btwo heat maps\b": "the design: relevant and admissible, relevant and inadmissible",
    r"\btwo (ways of resampling|resampling rules)\b": "within governing axes or all together",
    r"\btwo requests\b": "the design of a paired unit",
    r"\bthe two explanations\b|\bwhich of the two\b": "two things that the sentence before has named",
}
#: The same for one chapter.
STRUCTURAL_IN = {
    "06-audit": {r"\bboth routes\b": "the planted log has a plain and a strict search"},
}


def typed_counts(text: str, chapter: str = "") -> list[str]:
    """Return the number words of Markdown that are not counts fixed by the protocol, each with its surroundings."""
    for pattern in _NOT_PROSE:
        text = pattern.sub(" ", text)
    text = re.sub(r"\s+", " ", text)
    for pattern in {**STRUCTURAL, **STRUCTURAL_IN.get(chapter, {})}:
        text = re.sub(pattern, " ", text, flags=re.IGNORECASE)
    return [text[max(0, hit.start() - 30) : hit.end() + 30] for hit in _COUNTS.finditer(text)]


def described(path: Path) -> Iterator[tuple[str, str]]:
    """Yield what is typed, rather than computed, in captions and descriptions of a chapter's figures and tables.

    Yields
    ------
    keyword, text : str, str
        ``caption`` or ``alt``; the fixed parts of the string, with a space for every computed one.
    """
    for cell in jupytext.read(path).cells:
        if cell.cell_type != "code" or "parameters" in cell.metadata.get("tags", []):
            continue
        for node in ast.walk(ast.parse(cell.source)):
            for keyword in node.keywords if isinstance(node, ast.Call) else []:
                if keyword.arg in {"caption", "alt"}:
                    yield keyword.arg, _fixed(keyword.value)


def undescribed(path: Path) -> list[str]:
    """Return the descriptions of a chapter's figures that hold nothing computed, and so cannot follow the data."""
    found = []
    for cell in jupytext.read(path).cells:
        if cell.cell_type == "code":
            for node in ast.walk(ast.parse(cell.source)):
                for keyword in node.keywords if isinstance(node, ast.Call) else []:
                    computed = any(isinstance(part, ast.FormattedValue | ast.Name) for part in ast.walk(keyword.value))
                    if keyword.arg == "alt" and not computed:
                        found.append(_fixed(keyword.value))
    return found


def _fixed(node: ast.AST) -> str:
    """Join the text of a string, of the texts that are added to it, and of the branches that it is chosen from."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_fixed(part) if isinstance(part, ast.Constant) else " " for part in node.values)
    if isinstance(node, ast.BinOp):
        return _fixed(node.left) + _fixed(node.right)
    if isinstance(node, ast.IfExp):
        return f"{_fixed(node.body)} {_fixed(node.orelse)}"
    return " "


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


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_no_count_is_typed_in_prose(path):
    assert typed_counts(prose(path), path.stem) == []


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_captions_and_descriptions_take_their_numbers_from_the_data(path):
    found = list(described(path))
    assert found
    wrong = [(kind, hit) for kind, text in found for hit in [*typed_numbers(text), *typed_counts(text, path.stem)]]
    assert wrong == []


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_description_of_a_figure_reads_the_data_out(path):
    # A heat map of a reader's own data is described by its form; the numbers stand in its cells.
    assert [text for text in undescribed(path) if "by your readers" not in text] == []


def test_a_description_without_data_is_found(tmp_path):
    chapter = tmp_path / "x.md"
    cell = "```{{code-cell}} ipython3\nshow(chart, alt={})\n```\n"
    texts = [cell.format(text) for text in ('"Recall rises."', 'f"Recall: {told}."', '"a" + told')]
    chapter.write_text("".join(texts), encoding="utf-8")
    assert undescribed(chapter) == ["Recall rises."]


@pytest.mark.parametrize(
    "text",
    [
        "The four published readers agree.",
        "It is true of both sources.",
        "A dozen items, twice as many.",
        "About a third of them.",
        "Half of it.",
        "Six panels.",
    ],
)
def test_a_typed_count_is_found(text):
    assert typed_counts(text)


@pytest.mark.parametrize(
    "text",
    [
        "The {glue:text}`n_readers` readers agree.",
        "All three axes take three values; this third state is kept.",
        "What stage two asks.",
        "```python\nhalf = two / three\n```",
        "The exact two-sided test.",
    ],
)
def test_counts_of_the_protocol_and_of_code_are_no_findings(text):
    assert typed_counts(text) == []


def test_what_is_computed_in_a_caption_is_not_typed(tmp_path):
    chapter = tmp_path / "x.md"
    chapter.write_text(
        "```{code-cell} ipython3\n"
        'show(chart, caption=f"Top {top_k}, 72 cases", alt="Six panels. " + told + (", twice" if a else ", thrice"))\n'
        "```\n",
        encoding="utf-8",
    )
    texts = dict(described(chapter))
    assert texts["caption"] == "Top  , 72 cases"
    assert typed_numbers(texts["caption"])
    assert len(typed_counts(texts["alt"])) == 3


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
    for pattern, reason in {**ALLOWED, **STRUCTURAL, **STRUCTURAL_IN["06-audit"]}.items():
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
