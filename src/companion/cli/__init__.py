"""The ``companion`` command: one Typer app assembled from one module per group of commands."""

from __future__ import annotations

import importlib
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
_GROUPS = (
    "corpora",
    "fetch",
    "rank",
    "score",
    "verify",
    "trace",
    "exposure",
    "expose",
    "reproduce",
    "runs",
    "sweep",
    "scale",
    "validate",
    "audit",
    "importing",
)

for _group in _GROUPS:
    importlib.import_module(f"companion.cli.{_group}").register(app)


# Typer ships its own copy of click; its exceptions are reached through the one that Typer exports.
_UsageProblem: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException" and issubclass(base, Exception)
)


def main() -> None:
    """Run the command; bad input ends with one line on standard error and exit code 2."""
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except InputError as error:
        _complain(str(error))
    except _UsageProblem as error:
        _complain(error.format_message())  # type: ignore[attr-defined]
    except typer.Abort:
        print("companion: stopped", file=sys.stderr)
        sys.exit(130)


def _complain(message: str) -> None:
    if message:  # without a command Typer has printed the help, and there is nothing to add
        print(f"companion: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
