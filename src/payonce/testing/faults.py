"""Faults between a client and a vendor, and plans that draw them reproducibly.

    plan = FaultPlan(seed=7, share=0.2, routes={"GET /": Odds(0.05)})
    bank = Faulty(BankSimulator(), plan)

A draw depends on the seed, the route, the call's identity and how often that call was made: neither the order of
workers nor the clock changes it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from payonce.kit.outcomes import Invalid


class Fault(StrEnum):
    """ "Before": the vendor has done nothing. "After": it has carried out the call, but the client does not learn of
    it."""

    REFUSED_CONNECTION = "refused_connection"
    """Before. The connection is refused."""
    TOO_MANY_REQUESTS = "too_many_requests"
    """Before. 429 with Retry-After."""
    ERROR_BEFORE = "error_before"
    """Before. 503."""
    ERROR_AFTER = "error_after"
    """After. 502 from a proxy."""
    TIMEOUT_BEFORE = "timeout_before"
    """Before. No response."""
    TIMEOUT_AFTER = "timeout_after"
    """After. No response."""
    ANSWER_LOST = "answer_lost"
    """After. The connection drops."""
    LATE = "late"
    """The connection drops; the request is delayed and carried out later."""
    DUPLICATE = "duplicate"
    """The network delivers the request twice; the client gets the first response."""
    SLOW = "slow"
    """Carried out and answered, after a delay."""
    WRONG_ANSWER = "wrong_answer"
    """Carried out, and answered in valid form with wrong figures: each digit is incremented."""
    MALFORMED_ANSWER = "malformed_answer"
    """Carried out, and answered with half of the body."""


EVENLY: Final[Mapping[Fault, int]] = MappingProxyType(dict.fromkeys(Fault, 1))


def _evenly() -> Mapping[Fault, int]:
    return EVENLY


@dataclass(frozen=True)
class Odds:
    """The share of faulty calls and the weights of faults. A fault without a weight does not occur."""

    share: float
    weights: Mapping[Fault, int] = field(default_factory=_evenly)

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise Invalid(f"the share of faults is {self.share}; it must be between 0 and 1")
        if any(weight < 0 for weight in self.weights.values()) or (self.share and not any(self.weights.values())):
            raise Invalid("the weights of faults are invalid; use whole numbers from 0 on, and not only zeros")

    def without(self, *faults: Fault) -> "Odds":
        """The same share without these faults."""
        return Odds(self.share, {fault: weight for fault, weight in self.weights.items() if fault not in faults})


@dataclass(frozen=True)
class FaultPlan:
    """Draws a fault for each call. `routes` has other odds by route prefix; the longest matching prefix wins."""

    seed: int
    share: float = 0.2
    weights: Mapping[Fault, int] = field(default_factory=_evenly)
    routes: Mapping[str, Odds] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Odds(self.share, self.weights)

    def odds(self, route: str) -> Odds:
        fitting = [start for start in self.routes if route.startswith(start)]
        return self.routes[max(fitting, key=len)] if fitting else Odds(self.share, self.weights)

    def draw(self, route: str, call: str, number: int) -> Fault | None:
        """The fault of the `number`-th call (from 1) with this identity on this route; None for no fault."""
        odds = self.odds(route)
        text = f"{self.seed}\x00{route}\x00{call}\x00{number}"
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        if int.from_bytes(digest[:8], "big") / 2**64 >= odds.share:
            return None
        place = int.from_bytes(digest[8:], "big") % sum(odds.weights.values())
        for fault in Fault:
            place -= odds.weights.get(fault, 0)
            if place < 0:
                return fault
        raise AssertionError("the weights add up to less than their sum")


@dataclass(frozen=True)
class Script:
    """A fixed sequence of faults, for a test that needs certain ones; None lets a call pass."""

    faults: list[Fault | None]

    def draw(self, route: str, call: str, number: int) -> Fault | None:
        return self.faults.pop(0) if self.faults else None
