"""What an audit leaves behind: a report with its tables, all new or all old, and a summary for pull requests."""

from __future__ import annotations

import shutil
import tempfile
from os import PathLike
from pathlib import Path

import pandas as pd

from companion.audit.cells import read_csv, shown, write_csv
from companion.audit.checks import KINDS
from companion.audit.context import count
from companion.audit.core import Audit
from companion.errors import InputError
from companion.tables import listing

_TABLES = (
    "checks", "unknown", "table_warnings", "axes", "routes", "intervals", "contrasts", "per_query", "crossing", "steps",
    "worst_queries", "unresolved", "unresolved_by_arm", *(f"check_{kind}" for kind in KINDS),
)  # fmt: skip


def checks_table(found: Audit) -> pd.DataFrame:
    """Return the checks, one row each: what ``checks.csv`` holds."""
    columns = ["kind", "title", "outcome", "instances", "says", "advice", "limits"]
    return pd.DataFrame([[getattr(check, name) for name in columns] for check in found.checks], columns=columns)


def csv_tables(found: Audit) -> dict[str, pd.DataFrame]:
    """Return every table of the audit, whole and unrounded."""
    tables: dict[str, pd.DataFrame | None] = {
        "checks": checks_table(found),
        "unknown": pd.DataFrame({"cannot_be_known": found.unknown}, dtype="str"),
        "table_warnings": listing(found.intake.warnings),
        "axes": found.axes,
        "per_query": found.per_query,
        "crossing": found.crossing,
        "steps": found.steps,
        "worst_queries": found.worst,
        "unresolved": found.unresolved() if len(found.narrowing) else None,
        "unresolved_by_arm": found.narrowing,
    }
    if found.summary is not None:
        tables["routes"], tables["intervals"] = found.summary.arms, found.summary.intervals
        tables["contrasts"] = found.summary.contrasts
    tables |= {f"check_{check.kind}": _short_texts(check.evidence) for check in found.found}
    return {name: table for name, table in tables.items() if table is not None and len(table.columns) and len(table)}


def _short_texts(evidence: pd.DataFrame) -> pd.DataFrame:
    texts = [name for name in evidence.columns if name in ("text", "twin_text")]
    return evidence.assign(**{name: evidence[name].map(lambda text: shown(text, 300)) for name in texts})


def check_out(out: str | PathLike[str]) -> None:
    """Refuse a name that would say of the report that it is something else."""
    if Path(out).suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{out}: the report is an HTML page; expected a name that ends in .html or .htm")


def write(
    found: Audit, page: str, out: str | PathLike[str], tables: str | PathLike[str] | None = None, baseline: str = ""
) -> dict[str, Path]:
    """Write a report and its tables: everything beside its place first, then all of it moved at once.

    Parameters
    ----------
    found : Audit
    page : str
        The report as HTML.
    out, tables : path-like
        Its file, and the folder of the CSV files, by default beside it; other files in that folder stay.
    baseline : str
        What is new, for the summary.

    Returns
    -------
    dict of str to Path
        The file of each table, and of ``report`` and ``summary``.
    """
    check_out(out)
    out = Path(out)
    folder = Path(tables) if tables is not None else out.with_name(f"{out.stem}-tables")
    for place in (out.parent, folder.parent):
        place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as beside:
        new, old = Path(beside) / "new", Path(beside) / "old"
        draft = out.parent / f".{out.name}{Path(beside).suffix}"
        shutil.copytree(folder, new, ignore=_ours) if folder.is_dir() else new.mkdir()
        made = [write_csv(table, new / f"{name}.csv").name for name, table in csv_tables(found).items()]
        (new / "summary.md").write_text(markdown(found, baseline), encoding="utf-8", newline="\n")
        try:
            draft.write_text(page, encoding="utf-8", newline="\n")
            _swap(new, folder, old, draft, out)
        finally:
            draft.unlink(missing_ok=True)
    names = {"report": out, "summary": folder / "summary.md"}
    return names | {Path(name).stem: folder / name for name in made}


def _ours(folder: str, names: list[str]) -> list[str]:
    """Name the files of an earlier report among those of a folder."""
    return [name for name in names if name == "summary.md" or name.removesuffix(".csv") in _TABLES]


def _swap(new: Path, folder: Path, old: Path, draft: Path, out: Path) -> None:
    """Put the new tables and report in place, or leave the old ones."""
    before = folder.exists()
    if before:
        folder.rename(old)
    try:
        new.rename(folder)
        draft.replace(out)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if before:
            old.rename(folder)
        raise


# --- for pull requests ---------------------------------------------------------------------------------------------


def newly(found: Audit, baseline: str | PathLike[str]) -> dict[str, int]:
    """Count by kind how many more instances there are than in another audit, given its ``checks.csv``."""
    try:
        before = read_csv(baseline).set_index("kind")["instances"].astype(int)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{baseline}: cannot be read; expected the checks.csv of another audit") from error
    change = {check.kind: check.instances - int(before.get(check.kind, 0)) for check in found.checks}
    return {kind: more for kind, more in change.items() if more > 0}


def since(found: Audit, baseline: str | PathLike[str]) -> str:
    """Say in a line what is new since another audit."""
    new = newly(found, baseline)
    whole = {check.kind: check.instances for check in found.checks}
    parts = [
        f"{kind} {more:,}" + (f" (of {whole[kind]:,})" if whole[kind] > more else "") for kind, more in new.items()
    ]
    return f"New since the baseline: {', '.join(parts)}." if parts else "Nothing is new since the baseline."


def markdown(found: Audit, baseline: str = "") -> str:
    """Return a short summary for a pull request."""
    name = _plain(found.records.name or "records")
    lines = [f"## Audit of {name}", "", f"**{_plain(found.headline)}**", ""]
    lines += [_plain(baseline), ""] if baseline else []
    if found.found:
        lines += ["| failure | instances | what the records show |", "| --- | ---: | --- |"]
        lines += [f"| {c.kind} | {c.instances:,} | {_plain(c.says)} |" for c in found.found] + [""]
    open_ = [check.kind for check in found.checks if check.outcome == "unknown"]
    clear = [check.kind for check in found.checks if check.outcome == "clear"]
    lines += [f"{count(len(open_), 'check')} could not be made: {', '.join(open_)}.", ""] if open_ else []
    lines += [f"Looked for and not found: {', '.join(clear)}.", ""] if clear else []
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Make text of the records harmless in Markdown: one line, no markup, no HTML."""
    safe = str(shown(text, 600))
    for sign in "\\`*_[]<>|#!":
        safe = safe.replace(sign, "&lt;" if sign == "<" else "\\" + sign)
    return safe
