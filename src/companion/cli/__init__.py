"""The ``companion`` command: one Typer app assembled from one module per group of commands."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from companion.cli._common import add_format, printable
from companion.errors import InputError


class _Commands(TyperGroup):
    """Commands; each that prints a table takes ``--format`` as well."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Add the option to a command that has ``--json``."""
        command = super().get_command(ctx, cmd_name)
        opts = [name for param in getattr(command, "params", []) for name in param.opts]
        if "--json" in opts and "--format" not in opts:
            add_format(command)
        return command


app = typer.Typer(
    name="companion",
    cls=_Commands,
    help="Verify retrieval admissibility in long-term agent memory.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, which starts in half the time
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
    "schema",
    "audit",
    "importing",
)

for _group in _GROUPS:
    importlib.import_module(f"companion.cli.{_group}").register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        from companion import __version__

        typer.echo(f"companion {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Verify retrieval admissibility in long-term agent memory."""


# Typer ships its own copy of click; its exceptions are reached through the one that Typer exports.
_UsageProblem: type[Exception] = next(
    base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException" and issubclass(base, Exception)
)


def main() -> None:
    """Run the command; whatever goes wrong ends with one line on standard error and exit code 2."""
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except (typer.Abort, KeyboardInterrupt):
        print("companion: stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python complains when it closes standard output
        sys.exit(1)
    except Exception as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message, where there is one, is the help
            print(error.format_message().rstrip(), file=sys.stderr)  # type: ignore[attr-defined]
            sys.exit(2)
        if "COMPANION_DEBUG" in os.environ and not isinstance(error, InputError | _UsageProblem):
            raise
        _complain(explained(error))


def explained(error: BaseException) -> str:
    """Say in one line what ended a command."""
    from companion.extras import advice

    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, _UsageProblem):
        return str(error.format_message())  # type: ignore[attr-defined]
    if isinstance(error, ModuleNotFoundError) and (said := advice(error.name)):
        return said
    if isinstance(error, OSError):
        return f"{error.filename or 'the system'}: {error.strerror or error}"
    if isinstance(error, MemoryError):
        return "this needs more memory than there is"
    kind = type(error).__name__
    return f"a fault of the companion itself ({kind}: {error}); COMPANION_DEBUG=1 shows where it arose"


def _complain(message: str) -> None:
    print(f"companion: {printable(' '.join(message.split()))[:2000]}", file=sys.stderr)
    sys.exit(2)
