"""Reading released JSON files with errors that say which file, which line and which field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from companion.errors import InputError

T = TypeVar("T")
_KINDS = {str: "text", list: "a list", dict: "an object", int: "a whole number", bool: "true or false"}


def read_text(path: Path) -> str:
    """Read a UTF-8 file; anything that prevents it is an `InputError` that names the file."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start + 1} is not UTF-8; expected a UTF-8 text file") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that is one JSON object."""
    try:
        return an_object(json.loads(read_text(path)), str(path))
    except json.JSONDecodeError as error:
        place = f"{path}: line {error.lineno}, column {error.colno}"
        raise InputError(f"{place} is not JSON ({error.msg}); the file may be truncated") from error


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a JSON Lines file with the place each one came from."""
    # Not splitlines(): JSON text may hold U+2028 and its like unescaped, which are no line ends here.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                yield where, an_object(json.loads(line), where)
            except json.JSONDecodeError as error:
                raise InputError(f"{where}: not JSON ({error.msg} at column {error.colno})") from error


def an_object(entry: Any, where: str) -> dict[str, Any]:
    """Refuse what is no JSON object."""
    if not isinstance(entry, dict):
        raise InputError(f"{where}: found {type(entry).__name__}; expected a JSON object")
    return entry


def field(record: dict[str, Any], name: str, kind: type[T], where: str) -> T:
    """Take a required field of a required type out of a decoded object."""
    expected = _KINDS.get(kind, kind.__name__)
    if name not in record:
        raise InputError(f"{where}: field '{name}' is missing; expected {expected}")
    value = record[name]
    wrong_type = not isinstance(value, kind) or (kind is int and isinstance(value, bool))
    if wrong_type or (kind is str and not cast(str, value).strip()):
        raise InputError(f"{where}: field '{name}' is {_shorten(value)}; expected {expected}")
    return cast(T, value)


def texts(record: dict[str, Any], name: str, where: str) -> list[str]:
    """Take an optional list of texts, each once; an absent field or null is the empty list."""
    value = record.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise InputError(f"{where}: field '{name}' is {_shorten(value)}; expected a list of texts")
    for position, entry in enumerate(value, start=1):
        if not isinstance(entry, str) or not entry.strip():
            raise InputError(f"{where}: field '{name}', entry {position} is {_shorten(entry)}; expected text")
    return list(dict.fromkeys(value))


def one_of(value: str, allowed: tuple[str, ...], name: str, where: str) -> str:
    """Check that a text is one of a closed vocabulary and hand it back."""
    if value not in allowed:
        raise InputError(f"{where}: field '{name}' is {_shorten(value)}; expected one of {', '.join(allowed)}")
    return value


def once(seen: set[str], name: str, what: str, where: str) -> None:
    """Refuse an id that was seen before."""
    if name in seen:
        raise InputError(f"{where}: {what} '{name}' appears twice; expected each one once")
    seen.add(name)


def require_files(root: Path, relative: list[str], command: str) -> None:
    """Check that the files a loader needs exist."""
    missing = [name for name in relative if not (root / name).is_file()]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise InputError(f"{root / missing[0]}: no such file{more}; fetch the corpus with `{command}`")


def _shorten(value: object, limit: int = 60) -> str:
    shown = repr(value)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
