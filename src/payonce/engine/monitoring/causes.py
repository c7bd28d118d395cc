"""Grouping of reasons by cause: reasons that differ only in ids and numbers have the same cause."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

NO_REASON: Final = "no reason was recorded"
_VARIABLE: Final = re.compile(
    r"""
    [0-9a-fA-F]{8}-[0-9a-fA-F-]{27}      # a UUID
    | \b0x[0-9a-fA-F]+                   # an address or a transaction
    | \b[A-Za-z0-9_-]*[0-9][A-Za-z0-9_/:.-]*   # an id with a digit, its parts and generations, a number
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class Cause:
    example: str
    """One of the recorded reasons."""
    count: int


def cause_key(reason: str | None) -> str:
    """The same for reasons that differ only in ids and numbers."""
    return _VARIABLE.sub("…", reason or NO_REASON)


def causes(reasons: Iterable[str | None]) -> list[Cause]:
    """The most frequent cause first; equally frequent causes in order of appearance."""
    examples: dict[str, str] = {}
    counts: dict[str, int] = {}
    for reason in reasons:
        key = cause_key(reason)
        examples.setdefault(key, reason or NO_REASON)
        counts[key] = counts.get(key, 0) + 1
    return sorted((Cause(examples[key], count) for key, count in counts.items()), key=lambda each: -each.count)
