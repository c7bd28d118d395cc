"""The explorer's words: where a process is struck, how, and what came of it."""

from enum import StrEnum
from typing import Final

import msgspec

from payonce.kit.outcomes import Invalid

SEPARATOR: Final = " @ "


class Mode(StrEnum):
    BEFORE = "before"
    """Killed before it sends."""
    AFTER = "after"
    """What it sent is carried out; it is killed before it sees the answer."""
    LATE = "late"
    """What it sent arrives behind the next thing that its successor sends the same way; it is dead by then."""
    STOPPED = "stopped"
    """It stands still before it sends, its lease ends, others finish everything, and it goes on."""


class Label(msgspec.Struct, frozen=True, order=True):
    """One crossing of a scenario, by a name that is the same in every run."""

    message: str
    site: str
    ordinal: int
    """How often this message had crossed at this site, counted from 1."""

    def __str__(self) -> str:
        return f"{self.message} {self.site} #{self.ordinal}"


class Crossing(msgspec.Struct, frozen=True):
    label: Label
    reads: bool

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Killing a process at a read leaves the same world as killing it at the crossing before or after. One that is
        stopped there goes on with half of what it knows from before, which nothing else shows."""
        return (Mode.STOPPED,) if self.reads else tuple(Mode)


class Point(msgspec.Struct, frozen=True, order=True):
    """A crossing of a scenario and what happens to the process there."""

    scenario: str
    label: Label
    mode: Mode

    def __str__(self) -> str:
        return f"{self.scenario}{SEPARATOR}{self.label}{SEPARATOR}{self.mode}"


def parse_point(text: str) -> Point:
    """What str() of a point says, read back: how a violation is run again."""
    try:
        scenario, crossing, mode = text.split(SEPARATOR)
        message, site, ordinal = crossing.rsplit(" ", 2)
        return Point(scenario, Label(message, site, int(ordinal.removeprefix("#"))), Mode(mode))
    except ValueError:
        raise Invalid(
            f"{text[:120]!r} is not a point; copy one from a report, such as "
            "'charge @ c-1 engine.work:Work.commit #1 @ after'"
        ) from None


class Violation(msgspec.Struct, frozen=True):
    kind: str
    text: str


UNREACHED: Final = "not reached again"
"""The kind of violation that says nothing about money: the scenario does not run the same way twice."""


class Result(msgspec.Struct, frozen=True):
    """What one run came to; `point` is None for the run without a crash."""

    scenario: str
    point: Point | None
    violations: list[Violation]
    seconds: float
    crossings: list[Crossing] = []
    """Every crossing of the first child, in order."""
