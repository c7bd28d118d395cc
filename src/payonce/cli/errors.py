"""Which errors a person is told in one sentence, and the exit code that goes with each."""

import sys
from dataclasses import dataclass
from typing import Final

from payonce.kit.outcomes import Invalid, PayonceError
from payonce.kit.redact import redact

EXIT_FAILED: Final = 1
EXIT_INVALID: Final = 2
EXIT_UNEQUAL: Final = 3
"""What was asked for was done, and it found books that are not equal: a script can tell it from a failure."""
EXIT_INTERRUPTED: Final = 130


@dataclass(frozen=True)
class Explained:
    sentence: str
    exit_code: int


def explained(error: BaseException) -> Explained | None:
    """None for what nobody foresaw."""
    if isinstance(error, BaseExceptionGroup):
        parts = [explained(part) for part in error.exceptions]
        return parts[0] if parts and None not in parts else None
    if isinstance(error, Invalid):
        return Explained(str(error), EXIT_INVALID)
    if isinstance(error, PayonceError):
        return Explained(str(error), EXIT_FAILED)
    if type(error).__module__.startswith("asyncpg."):
        return Explained(f"the database refused or went away: {_first_line(error)}", EXIT_FAILED)
    if isinstance(error, (ConnectionError, TimeoutError)):
        return Explained(f"the database went away: {_first_line(error)}; try again", EXIT_FAILED)
    return None


def say_error(sentence: str) -> None:
    """On stderr, without secrets, whatever the sentence quotes."""
    print(f"error: {redact(sentence)}", file=sys.stderr, flush=True)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
