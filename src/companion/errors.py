"""The one exception a user of the command is meant to read."""

from __future__ import annotations


class InputError(ValueError):
    """Input that cannot be accepted; the message is one line that says where, what, and what was expected.

    The command prints the message on standard error and exits with code 2. Every module that reads what a
    user wrote raises this and nothing else for bad input.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(str(message).split()))
