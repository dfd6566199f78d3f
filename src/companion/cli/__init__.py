"""The ``companion`` command: one Typer app assembled from one module per group of commands."""

from __future__ import annotations

import importlib
import os
import sys

import typer

from companion.errors import InputError

app = typer.Typer(
    name="companion",
    help="Verify retrieval admissibility in long-term agent memory.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

# Each module defines register(app). A new group of commands joins by adding its name here.
_GROUPS = ("corpora", "rank", "score", "exposure", "reproduce", "runs")

for _group in _GROUPS:
    importlib.import_module(f"companion.cli.{_group}").register(app)


def main() -> None:
    """Run the command; bad input ends with one line on standard error and exit code 2."""
    try:
        app()
    except InputError as error:
        print(f"companion: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        # The reader of our output (head, less) went away: that is not an error.
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
        sys.exit(0)
