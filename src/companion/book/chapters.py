"""The chapters of the book, and the parameters that are asked of them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from companion import plain_yaml
from companion.book import parameters as ranges
from companion.book.kernel import Parameter, read_parameters
from companion.errors import InputError
from companion.paths import project_root


def notebooks_dir() -> Path:
    """Return the folder of the chapters."""
    return project_root() / "notebooks"


def chapter_paths() -> list[Path]:
    """Return the chapters in the order of the book."""
    return sorted(notebooks_dir().glob("[0-9][0-9]-*.md"))


def find_notebook(name: str | os.PathLike[str]) -> Path:
    """Return the chapter that a reader means by a path, a name such as ``02-support``, or a number such as ``02``."""
    text, path = str(name), Path(name)
    if path.suffix in {".md", ".ipynb"}:
        if os.path.isfile(path):  # noqa: PTH113 - false for an impossible name
            return path.resolve()
        raise InputError(f"{path}: no such notebook")
    chapters = chapter_paths()
    number = f"{text.zfill(2)}-" if text.isascii() and text.isdigit() and len(text) < 3 else None
    for chapter in chapters:
        if chapter.stem == text or (number and chapter.stem.startswith(number)):
            return chapter
    raise InputError(
        f"no chapter {text!r}: expected a path or one of {', '.join(chapter.stem for chapter in chapters)}"
    )


def read_notebook(path: Path) -> Any:
    """Read a Jupytext or Jupyter notebook; cell ids depend on position only."""
    import jupytext
    from nbformat import ValidationError

    try:
        notebook = jupytext.read(path)
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        for position, cell in enumerate(notebook.cells):
            cell["id"] = f"cell-{position:03d}"
            cell.metadata.setdefault("tags", [])
    # The readers raise whatever Python raises on a file that only looks like a notebook.
    except (OSError, ValueError, ValidationError, LookupError, AttributeError, TypeError) as error:
        raise InputError(f"{path}: not a readable notebook ({(str(error).splitlines() or [''])[0]})") from error
    return notebook


def declared_parameters(path: Path) -> list[Parameter]:
    """Return the parameters that a notebook declares in its cell tagged ``parameters``."""
    for cell in read_notebook(path).cells:
        if cell.cell_type == "code" and "parameters" in cell.metadata["tags"]:
            return read_parameters(cell.source, f"{path.name}, parameters cell")
    raise InputError(f"{path.name}: no cell is tagged 'parameters'")


def parse_value(text: str) -> Any:
    """Read one ``-p NAME VALUE`` as YAML: ``30``, ``0.9``, ``true``, ``[a, b]``, ``null``, or text."""
    if not text.strip():
        return text  # YAML reads nothing as null; on a command line nothing is empty text
    return plain_yaml.load(text, f"parameter value {text[:60]!r}")


def parse_pairs(pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Read the ``-p NAME VALUE`` options of a command; a name given twice is refused."""
    values: dict[str, Any] = {}
    for name, text in pairs:
        if name in values:
            raise InputError(f"parameter {name!r} is given twice")
        values[name] = located(name, parse_value(text))
    return values


def located(name: str, value: Any, *folders: str | os.PathLike[str]) -> Any:
    """Spell out where a file is that a parameter names: the chapter runs in another folder than its caller."""
    if isinstance(value, str) and value:
        for folder in folders or (Path.cwd(),):
            path = (Path(folder) / value).absolute()
            # A word such as demo may by chance be the name of a file here. os.path: no error for an impossible name.
            named = os.path.isfile(path) and path.suffix  # noqa: PTH113
            if named or (name in ranges.PATHS and os.path.exists(path)):  # noqa: PTH110
                return str(path)
    return value


def check_parameters(
    declared: Sequence[Parameter], given: Mapping[str, Any], origin: str = "notebook"
) -> dict[str, Any]:
    """Check names and types of parameters against a notebook's own before anything runs."""
    known = {item.name: item for item in declared}
    for name in given:
        if name not in known:
            raise InputError(f"{origin} has no parameter {name!r}: expected one of {', '.join(known)}")
    return {name: _conform(value, known[name].default, f"{origin}, parameter {name}") for name, value in given.items()}


def checked_parameters(source: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the parameters given to a notebook: names, types and, for a chapter of the book, ranges and choices."""
    declared = declared_parameters(source)
    values = check_parameters(declared, given, source.stem)
    check_ranges(source, {item.name: values.get(item.name, item.default) for item in declared})
    return values


def check_ranges(source: Path, values: Mapping[str, Any], origin: str = "") -> None:
    """Refuse values that a chapter of the book cannot use; any other notebook checks its own."""
    if source.parent == notebooks_dir().resolve():
        try:
            ranges.check(source.stem, values)
        except InputError as error:
            raise InputError(f"{origin}: {error}" if origin else str(error)) from error


def _conform(value: Any, default: Any, where: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where}: {value} is not a finite number")
    if default is None:
        return value
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return float(value)
    if isinstance(default, tuple) and isinstance(value, list):
        value = tuple(value)
    if type(value) is not type(default):
        hint = f"; write \"'{value}'\" for text" if isinstance(default, str) else ""
        raise InputError(
            f"{where}: {ranges.short(value)} is {type(value).__name__}, expected {type(default).__name__} "
            f"(default {default!r}){hint}"
        )
    if isinstance(default, (list, tuple)) and len({type(item) for item in default}) == 1:
        return type(default)(_conform(item, default[0], f"{where}, item {i}") for i, item in enumerate(value, 1))
    return value
