"""The explorer's words: where a process is struck, how, and what came of it."""

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
    """What it sent is carried out; it is killed before it sees the answer."""
    LATE = "late"
    """What it sent arrives behind the next thing that its successor sends the same way; it is dead by then."""
    STOPPED = "stopped"
    """It stands still before it sends, its lease ends, others finish everything, and it goes on."""
    SERVER_CRASH_BEFORE = "server-crash-before"
    """The database server crashes before the process sends, which lives on. Its transaction is lost, and the server
    gives the transaction's id to somebody else's."""
    SERVER_CRASH_AFTER = "server-crash-after"
    """The database server commits what the process sent and crashes; the process lives on without the answer."""
    FAILOVER_BEFORE = "failover-before"
    """The primary dies before the process sends, and its standby is promoted. The transaction is lost, and the new
    primary gives its id to somebody else's."""
    FAILOVER_AFTER = "failover-after"
    """Primary and standby commit what the process sent; the primary dies before it answers."""
    FAILOVER_UNREPLICATED = "failover-unreplicated"
    """The primary commits what the process sent, and dies while it waits for the standby, which never has it."""


PROCESS_MODES: Final = (Mode.BEFORE, Mode.AFTER, Mode.LATE, Mode.STOPPED)
"""What happens to a process; its server goes on."""
SERVER_CRASH: Final = (Mode.SERVER_CRASH_BEFORE, Mode.SERVER_CRASH_AFTER)
FAILOVER: Final = (Mode.FAILOVER_BEFORE, Mode.FAILOVER_AFTER, Mode.FAILOVER_UNREPLICATED)
USUAL_MODES: Final = (*PROCESS_MODES, *SERVER_CRASH)
"""Those of an exploration that names none: failovers take the longest, and not every PostgreSQL can make a standby."""
ALL_MODES: Final = (*USUAL_MODES, *FAILOVER)
MODES_BY_NAME: Final[Mapping[str, tuple[Mode, ...]]] = {
    **{mode.value: (mode,) for mode in ALL_MODES},
    "server-crash": SERVER_CRASH,
    "failover": FAILOVER,
}


def parse_modes(names: Sequence[str]) -> tuple[Mode, ...]:
    """The modes of these names in their usual order; the usual ones when no name is given."""
    for name in names:
        if name not in MODES_BY_NAME:
            raise Invalid(f"there is no mode {name!r}; there are: {', '.join(MODES_BY_NAME)}")
    chosen = {mode for name in names for mode in MODES_BY_NAME[name]} or USUAL_MODES
    return tuple(mode for mode in ALL_MODES if mode in chosen)


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
    commits: bool = False
    """A COMMIT, or a statement outside a transaction that writes."""

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Killing a process at a read leaves the same world as killing it at the crossing before or after. One that is
        stopped there goes on with half of what it knows from before, which nothing else shows."""
        if self.reads:
            return (Mode.STOPPED,)
        return ALL_MODES if self.commits else PROCESS_MODES


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
            "'charge @ c-1 engine.messages.work:Work.commit #1 @ after'"
        ) from None


class Violation(msgspec.Struct, frozen=True):
    kind: str
    text: str


SENT_IN_QUARANTINE: Final = "sent in quarantine"
"""The kind of violation of a failover after which somebody sends before a person has released the quarantine."""
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
    id_reused: bool = False
    """The id of the transaction that a server crash or a failover undid was given to another that committed."""
