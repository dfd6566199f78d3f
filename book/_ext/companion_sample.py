"""Sphinx extension of the book: the report of the example, as ``companion audit`` writes it, beside the pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

SAMPLE = "audit-example.html"


def write(app: Sphinx, failed: Exception | None) -> None:
    """Write the report into a site that was built."""
    if failed is not None or app.builder.format != "html":
        return
    from companion.audit import audit
    from companion.book import report
    from companion.paths import data_dir, project_root

    chapter = project_root() / "notebooks" / "06-audit.md"
    if not chapter.is_file():  # a book without that chapter links to no report
        return
    made = report.page(audit(data_dir() / "example"), chapter)
    (Path(app.outdir) / SAMPLE).write_text(made, encoding="utf-8", newline="\n")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to the end of a build."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
