"""The explorer's vocabulary: crossings, modes, points and results."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from payonce.kit.outcomes import Invalid

SEPARATOR: Final = " @ "


class Mode(StrEnum):
    BEFORE = "before"
    """Killed before it sends."""
    AFTER = "after"
    """Killed after its request is carried out, before it gets the result."""
    LATE = "late"
    """Its request arrives after its successor's next request on the same channel; it is dead by then."""
    STOPPED = "stopped"
    """It is stopped before it sends, its lease ends, others finish everything, and it continues."""
    SERVER_CRASH_BEFORE = "server-crash-before"
    """The database server crashes before the process sends. Its transaction is lost, and the server assigns the
    transaction id to another one. The process survives."""
    SERVER_CRASH_AFTER = "server-crash-after"
    """The database server commits and crashes; the process survives without the result."""
    FAILOVER_BEFORE = "failover-before"
    """The primary dies before the process sends, and its standby is promoted. The transaction is lost, and the new
    primary assigns its id to another one."""
    FAILOVER_AFTER = "failover-after"
    """Primary and standby commit; the primary dies before it responds."""
    FAILOVER_UNREPLICATED = "failover-unreplicated"
    """The primary commits, and dies while it waits for the standby, which never gets the commit."""


PROCESS_MODES: Final = (Mode.BEFORE, Mode.AFTER, Mode.LATE, Mode.STOPPED)
"""Modes that affect a process; its server keeps running."""
SERVER_CRASH: Final = (Mode.SERVER_CRASH_BEFORE, Mode.SERVER_CRASH_AFTER)
FAILOVER: Final = (Mode.FAILOVER_BEFORE, Mode.FAILOVER_AFTER, Mode.FAILOVER_UNREPLICATED)
USUAL_MODES: Final = (*PROCESS_MODES, *SERVER_CRASH)
"""Modes of an exploration that names none: failovers take longest, and not every PostgreSQL can create a standby."""
ALL_MODES: Final = (*USUAL_MODES, *FAILOVER)
MODES_BY_NAME: Final[Mapping[str, tuple[Mode, ...]]] = {
    **{mode.value: (mode,) for mode in ALL_MODES},
    "server-crash": SERVER_CRASH,
    "failover": FAILOVER,
}


def parse_modes(names: Sequence[str]) -> tuple[Mode, ...]:
    """Modes by name, in their usual order; the usual ones without names. Raises Invalid for an unknown name."""
    for name in names:
        if name not in MODES_BY_NAME:
            raise Invalid(f"there is no mode {name!r}; there are: {', '.join(MODES_BY_NAME)}")
    chosen = {mode for name in names for mode in MODES_BY_NAME[name]} or USUAL_MODES
    return tuple(mode for mode in ALL_MODES if mode in chosen)


class Label(msgspec.Struct, frozen=True, order=True):
    """The label of a crossing, which is the same in every run."""

    message: str
    site: str
    ordinal: int
    """The number of crossings of this message at this site so far, from 1."""

    def __str__(self) -> str:
        return f"{self.message} {self.site} #{self.ordinal}"


class Crossing(msgspec.Struct, frozen=True):
    label: Label
    reads: bool
    commits: bool = False
    """A COMMIT, or a statement outside a transaction that writes."""

    @property
    def modes(self) -> tuple[Mode, ...]:
        """The modes that can reveal something. Killing a process at a read equals killing it at a neighbouring
        crossing; stopping it there makes it continue with outdated data."""
        if self.reads:
            return (Mode.STOPPED,)
        return ALL_MODES if self.commits else PROCESS_MODES


class Point(msgspec.Struct, frozen=True, order=True):
    """A crossing of a scenario, and the mode in which its process crashes there."""

    scenario: str
    label: Label
    mode: Mode

    def __str__(self) -> str:
        return f"{self.scenario}{SEPARATOR}{self.label}{SEPARATOR}{self.mode}"


def parse_point(text: str) -> Point:
    """Parses str() of a point, to repeat a run with a violation."""
    try:
        scenario, crossing, mode = text.split(SEPARATOR)
        message, site, ordinal = crossing.rsplit(" ", 2)
        return Point(scenario, Label(message, site, int(ordinal.removeprefix("#"))), Mode(mode))
    except ValueError:
        raise Invalid(
            f"{text[:120]!r} is not a point; copy one from a report, such as "
            "'charge @ c-1 engine.messages.work:Work.commit #1 @ after'"
        ) from None


class Violation(msgspec.Struct, frozen=True):
    kind: str
    text: str


SENT_IN_QUARANTINE: Final = "sent in quarantine"
"""Kind of violation: something was sent after a failover before the quarantine was released."""
UNREACHED: Final = "not reached again"
"""Kind of violation: the scenario does not run the same way twice. It says nothing about money."""


class Result(msgspec.Struct, frozen=True):
    """The result of one run; `point` is None for the run without a crash."""

    scenario: str
    point: Point | None
    violations: list[Violation]
    seconds: float
    crossings: list[Crossing] = []
    """The first child's crossings, in order."""
    id_reused: bool = False
    """Whether the id of the lost transaction was assigned to another one that committed."""
