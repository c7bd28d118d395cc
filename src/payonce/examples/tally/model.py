"""The change that a message asks for, and the faults that it may carry."""

import random
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec


class Fault(StrEnum):
    """What goes wrong while the change is applied."""

    NONE = "none"
    RETRY = "retry"
    """Asks to be tried again, `times` times, then succeeds."""
    BUG = "bug"
    """Raises an error that nobody foresaw, `times` times, then succeeds."""
    ALWAYS_FAILS = "always_fails"
    """Never succeeds: parked when its attempts are used up."""
    KILLS_ITS_WORKER = "kills_its_worker"
    """Takes the process down with it: parked after it did so with nothing beside it."""


POISON: Final = frozenset({Fault.ALWAYS_FAILS, Fault.KILLS_ITS_WORKER})

SHARES: Final = {Fault.RETRY: 0.08, Fault.BUG: 0.04, Fault.ALWAYS_FAILS: 0.003}
"""Of the seeded mix; killers are counted, because each costs three processes."""
KILLERS: Final = 2
FAULT_TIMES_MAX: Final = 3
TAKES_MIN_MS, TAKES_MAX_MS = 2, 20


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The payload: add one to one row."""

    row_id: int
    fault: Fault = Fault.NONE
    times: int = 0
    takes_ms: int = 0
    """How long somebody outside would take to answer."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the changes asked for."""

    asked: int
    applied: int
    doubled: int
    """Rows changed more than once, or changed by a message that is still there."""
    parked: int
    unfinished: int
    lost: int
    """Neither applied nor anywhere in the queue."""
    retries: int
    parked_rows: frozenset[int]


def seeded_changes(count: int, seed: int, slowness: int = 1) -> Iterator[Change]:
    """The same changes for the same seed. The killers stand in the first half, where there is work to disturb."""
    chance = random.Random(seed)
    killers = set(chance.sample(range(max(1, count // 2)), k=min(KILLERS, max(1, count // 2))))
    for row_id in range(count):
        fault = Fault.KILLS_ITS_WORKER if row_id in killers else _drawn(chance)
        times = chance.randint(1, FAULT_TIMES_MAX) if fault in (Fault.RETRY, Fault.BUG) else 0
        takes_ms = chance.randint(TAKES_MIN_MS, TAKES_MAX_MS) * slowness
        yield Change(row_id=row_id, fault=fault, times=times, takes_ms=takes_ms)


def _drawn(chance: random.Random) -> Fault:
    roll = chance.random()
    for fault, share in SHARES.items():
        if roll < share:
            return fault
        roll -= share
    return Fault.NONE
