"""Errors that are printed as one sentence, with their exit codes."""

import sys
from dataclasses import dataclass
from typing import Final

from payonce.kit.outcomes import Invalid, PayonceError
from payonce.kit.redact import redact

EXIT_FAILED: Final = 1
EXIT_INVALID: Final = 2
EXIT_UNEQUAL: Final = 3
"""The command succeeded and found unequal books; scripts can tell it from a failure."""
EXIT_INTERRUPTED: Final = 130


@dataclass(frozen=True)
class Explained:
    sentence: str
    exit_code: int


def explained(error: BaseException) -> Explained | None:
    """None for an unexpected error."""
    if isinstance(error, BaseExceptionGroup):
        parts = [explained(part) for part in error.exceptions]
        return parts[0] if parts and None not in parts else None
    if isinstance(error, Invalid):
        return Explained(str(error), EXIT_INVALID)
    if isinstance(error, PayonceError):
        return Explained(str(error), EXIT_FAILED)
    if type(error).__module__.startswith("asyncpg."):
        return Explained(
            f"the database refused the statement or the connection was lost:  {_first_line(error)}", EXIT_FAILED
        )
    if isinstance(error, (ConnectionError, TimeoutError)):
        return Explained(f"the connection to the database was lost: {_first_line(error)}; try again", EXIT_FAILED)
    return None


def say_error(sentence: str) -> None:
    """Prints to stderr, with secrets redacted."""
    print(f"error: {redact(sentence)}", file=sys.stderr, flush=True)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
