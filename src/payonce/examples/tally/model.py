"""The change requested by a message, and the faults it may contain."""

import random
from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec


class Fault(StrEnum):
    """An error while the change is applied."""

    NONE = "none"
    RETRY = "retry"
    """Requests a retry `times` times, then succeeds."""
    BUG = "bug"
    """Raises an unexpected error `times` times, then succeeds."""
    ALWAYS_FAILS = "always_fails"
    """Always fails: parked after its last attempt."""
    KILLS_ITS_WORKER = "kills_its_worker"
    """Kills its process: parked after it did so while running isolated."""


POISON: Final = frozenset({Fault.ALWAYS_FAILS, Fault.KILLS_ITS_WORKER})

SHARES: Final = {Fault.RETRY: 0.08, Fault.BUG: 0.04, Fault.ALWAYS_FAILS: 0.003}
"""Shares in the seeded mix; killers are given as a number, because each costs three processes."""
KILLERS: Final = 2
FAULT_TIMES_MAX: Final = 3
TAKES_MIN_MS, TAKES_MAX_MS = 2, 20


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The payload: add one to one row."""

    row_id: int
    fault: Fault = Fault.NONE
    times: int = 0
    takes_ms: int = 0
    """Duration of the simulated vendor call."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of the requested changes."""

    requested: int
    applied: int
    doubled: int
    """Rows changed more than once, or changed by a message that still exists."""
    parked: int
    unfinished: int
    lost: int
    """Neither applied nor in the queue."""
    retries: int
    parked_rows: frozenset[int]


def seeded_changes(count: int, seed: int, slowness: int = 1) -> Iterator[Change]:
    """Changes determined by the seed. The killers are in the first half, where there is work to disturb."""
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
