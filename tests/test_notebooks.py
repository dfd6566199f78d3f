"""The shape of a chapter: code to read, prose without typed numbers, exercises, verdicts that are asserted."""

from __future__ import annotations

import ast
import re
import statistics

import jupytext
import pytest
from _site import ROOT

CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9][0-9]-*.md"))
#: Pages to look things up in, not chapters to learn from.
#: Front page, advice, limits: prose whose numbers come from hidden cells.
PROSE = {"00-front", "09-what-to-do", "10-limits"}
WITHOUT_EXERCISES = {"07-claims", *PROSE}

#: What may stand in digits all the same, and why.
ALLOWED = {
    r"(?<![\d.,])[01]s?\b(?![.,%]?\d|%)": "the truth values of an axis, and the ends of a scale from 0 to 1",
    r"\b0[0-9]-[a-z]+\b|\b[Cc]hapters? 0?[0-9]\b": "names of chapters",
    r"\bExercise \d\b": "names of exercises",
    r"\bGPT-\d\.\d\b|\bGemini \d\.\d\b|\b(?:claude|gpt|deepseek|gemini)-[\w.-]+": "names of models that hold digits",
    r"\b(19|20)\d\d\b": "years",
    r"\barXiv[: ]\d{4}\.\d{5}\b": "identifier of a paper",
    r"\bBM25\b|\bMiniLM-L6(-v2)?\b|\bQwen3(-Embedding-8B)?\b|\bSHA-256\b|\bUTF-8\b|\bmem0\b": "proper names",
    r"\bp95\b|\bF1\b": "names of measures",
    r"\bC\d+(-\w+)?\b": "codes of claims",
}
_NOT_PROSE = (
    r"^(```+|~~~+)(?!\{(?:note|tip|warning|admonition|important|margin|dropdown)).*?^\1\s*$",
    r"^:(?:gutter|link|link-type|class|columns|name|label)\b:.*$",
    r"^(:{3,}).*$",
    r"\$\$.*?\$\$(?:\s*\(eq-[\w-]+\))?",
    r"\$[^$\n]+\$",
    r"\{[\w:-]+\}`[^`]*`",
    r"`[^`]*`",
    r"\]\([^)]*\)",
    r"<[^>\n]*>",
    r"^(?:#+|\s*) ?\d+\. ",
)


def cells(path, kind):
    return [cell for cell in jupytext.read(path).cells if cell.cell_type == kind]


def tags(cell):
    return cell.metadata.get("tags", [])


def code_lines(cell):
    return [line for line in cell.source.splitlines() if line.strip() and not line.strip().startswith("#")]


def typed_numbers(text):
    """Return the lines of Markdown in which a number was typed, reduced to what remains as prose."""
    for pattern in _NOT_PROSE:
        text = re.sub(
            pattern, " ", text, flags=re.DOTALL | re.MULTILINE if pattern.startswith(("^(`", r"\$\$")) else re.MULTILINE
        )
    for pattern in ALLOWED:
        text = re.sub(pattern, " ", text)
    return [line.strip() for line in text.splitlines() if re.search(r"\d", line)]


def calls(path, *names):
    """Return the arguments by keyword of every call of some functions in a chapter's code."""
    for cell in cells(path, "code"):
        for node in ast.walk(ast.parse(cell.source)):
            called = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
            if called in names:
                yield called, {keyword.arg: keyword.value for keyword in node.keywords}


def fixed(node):
    """Join the text of a string, of the texts that are added to it, and of the branches that it is chosen from."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(fixed(part) if isinstance(part, ast.Constant) else " " for part in node.values)
    return " ".join(fixed(part) for part in ast.iter_child_nodes(node)) if isinstance(node, ast.BinOp) else " "


@pytest.fixture(params=CHAPTERS, ids=lambda path: path.stem)
def chapter(request):
    return request.param


def test_code_is_there_to_be_read(chapter):
    code = cells(chapter, "code")
    plain = [cell for cell in code if not any(tag.startswith(("hide-", "remove-")) for tag in tags(cell))]
    sizes = [len(code_lines(cell)) for cell in code if "parameters" not in tags(cell)]
    assert len(plain) >= len(code) / 2 or chapter.stem in PROSE, f"{len(plain)} of {len(code)} cells are shown plainly"
    assert max(sizes) <= 20
    assert statistics.median(sizes) <= 6
    wide = [line for cell in plain for line in cell.source.splitlines() if len(line) > 100]
    assert wide == [], "a line of visible code that a page cuts"


def test_one_cell_of_parameters_each_with_a_comment(chapter):
    (cell,) = [cell for cell in cells(chapter, "code") if "parameters" in tags(cell)]
    lines = [line for line in cell.source.splitlines() if line.strip()]
    named = [place for place, line in enumerate(lines) if re.match(r"\w+ = ", line)]
    assert named
    assert all(lines[place - 1].startswith("# ") or "  # " in lines[place] for place in named)


def test_prose_is_written_and_its_verdicts_are_asserted(chapter):
    source = "\n".join(cell.source for cell in cells(chapter, "code"))
    assert not re.search(r"\bsay\(|\bwords\.", source)
    assert re.search(rf'chapter\("{chapter.stem}", globals\(\)\)', source)
    held = [cell.source for cell in cells(chapter, "code") if re.search(r"if \w+\.defaults", cell.source)]
    assert any("assert " in cell for cell in held), "no verdict of the text is asserted"
    glued = set(re.findall(r"[(,]\s*(\w+)=", source)) | set(re.findall(r'"(\w+)"', source))
    used = set(re.findall(r"\{glue:text\}`(\w+)`", "\n".join(cell.source for cell in cells(chapter, "markdown"))))
    assert used - glued == set()


def test_no_number_is_typed(chapter):
    prose = "\n\n".join(cell.source for cell in cells(chapter, "markdown"))
    assert typed_numbers(prose) == []
    shown = list(calls(chapter, "show", "show_table", "figure", "table", "settle"))
    assert shown
    for _, given in shown:
        for name in {"caption", "alt"} & given.keys():
            assert typed_numbers(fixed(given[name])) == [], name


def test_two_exercises_with_folded_solutions_then_takeaways(chapter):
    if chapter.stem in WITHOUT_EXERCISES:
        pytest.skip("a page with doors instead")
    text = chapter.read_text(encoding="utf-8")
    assert len(re.findall(r":::\{admonition\} Exercise \d", text)) >= 2
    solved = sum("hide-cell" in tags(cell) for cell in cells(chapter, "code")) + text.count("{dropdown} Solution")
    assert solved >= 2
    heads = re.findall(r"^## (.+)$", text, flags=re.MULTILINE)
    assert "Takeaways" in heads[-2:], heads


@pytest.mark.parametrize(
    "text", ["Recall rises by 0.102.", "It is 13% lower.", "Two (2) of them.", "**About 40**", "- 7 of 9"]
)
def test_a_typed_number_is_found(text):
    assert typed_numbers(text) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "Recall rises by {glue:text}`gain`; an axis is 1 or 0.",
        "With $N = 10$ items,\n\n$$\nx = 12\n$$ (eq-x)\n\nand `top_k=20`.",
        "```bash\ncompanion rerun 02-support -p top_k 10\n```",
        "As {cite:t}`wang2026right` found in 2026, see [chapter](02-support.md).",
        "1. first\n2. second",
        "::::{grid} 1 2 2 4\n:gutter: 3\n\n:::{grid-item-card} Read\nThe text.\n:::\n::::",
    ],
)
def test_code_equations_citations_and_years_are_not_prose(text):
    assert typed_numbers(text) == []


def test_terms_are_those_that_the_glossary_explains():
    lines = (ROOT / "book" / "glossary.md").read_text(encoding="utf-8").splitlines()
    known = {line.strip().lower() for line in lines if line and not line.startswith((" ", "`", ":", "#"))}
    for path in [*CHAPTERS, *sorted((ROOT / "book").glob("*.md"))]:
        for target in re.findall(r"\{term\}`([^`]+)`", path.read_text(encoding="utf-8")):
            assert re.sub(r".*<(.+)>$", r"\1", target).lower() in known, f"{path.name}: {target}"
