"""What may go wrong between a client and a vendor, and a plan that draws it: the same for the same seed and call.

    plan = FaultPlan(seed=7, share=0.2, routes={"GET /": Odds(0.05)})
    bank = Faulty(BankSimulator(), plan)

The draw depends on the seed, the route, the call's identity and how often that call was made before: neither the order
in which workers come along nor the clock changes it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from payonce.kit.outcomes import Invalid


class Fault(StrEnum):
    """Before, the vendor has done nothing; after, it has done what was asked and the client does not hear so."""

    REFUSED_CONNECTION = "refused_connection"
    """Before. Nobody listens."""
    TOO_MANY_REQUESTS = "too_many_requests"
    """Before. 429 with Retry-After."""
    ERROR_BEFORE = "error_before"
    """503, and nothing was done."""
    ERROR_AFTER = "error_after"
    """502 from a proxy, and it was done."""
    TIMEOUT_BEFORE = "timeout_before"
    """No answer, and nothing was done."""
    TIMEOUT_AFTER = "timeout_after"
    """No answer, and it was done."""
    ANSWER_LOST = "answer_lost"
    """The connection drops, and it was done."""
    LATE = "late"
    """The connection drops; the request lies somewhere and is carried out later."""
    DUPLICATE = "duplicate"
    """Something on the way delivers the request twice; the client hears the first answer."""
    SLOW = "slow"
    """Done and answered, after a while."""
    WRONG_ANSWER = "wrong_answer"
    """Done, and answered in good form with other figures than the true ones: each digit is the next one."""
    MALFORMED_ANSWER = "malformed_answer"
    """Done, and answered with half of a body."""


EVENLY: Final[Mapping[Fault, int]] = MappingProxyType(dict.fromkeys(Fault, 1))


def _evenly() -> Mapping[Fault, int]:
    return EVENLY


@dataclass(frozen=True)
class Odds:
    """How many calls go wrong, and in what proportion how. A fault without a weight does not occur."""

    share: float
    weights: Mapping[Fault, int] = field(default_factory=_evenly)

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise Invalid(f"the share of faults is {self.share}; it lies between 0 and 1")
        if any(weight < 0 for weight in self.weights.values()) or (self.share and not any(self.weights.values())):
            raise Invalid("the weights of faults are whole numbers from 0 on, and not all of them 0")

    def without(self, *faults: Fault) -> "Odds":
        """The same share, of other faults."""
        return Odds(self.share, {fault: weight for fault, weight in self.weights.items() if fault not in faults})


@dataclass(frozen=True)
class FaultPlan:
    """Draws what becomes of each call. `routes` has other odds for routes that begin so; the longest beginning wins."""

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
        """What happens to the `number`-th time (from 1) that this call is made on this route."""
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
    """Faults in the order in which calls come, for a test that wants a certain one; None lets a call pass."""

    faults: list[Fault | None]

    def draw(self, route: str, call: str, number: int) -> Fault | None:
        return self.faults.pop(0) if self.faults else None
