"""What a client says of an order when the wire fails, and how often the vendor has it by then: the same for all, but
for what a vendor does with a request that comes twice."""

from typing import Final, TypeVar

from payonce.kit.outcomes import NotSent, Unknown
from payonce.testing.faults import Fault

DONE: Final = "done"

Done = TypeVar("Done")


def outcomes(done: Done, *, of_a_duplicate: int) -> dict[Fault, tuple[type[Exception] | Done, int]]:
    """`done` is what the client says when all is well; `of_a_duplicate`, how many a repeated request makes."""
    return {
        Fault.REFUSED_CONNECTION: (NotSent, 0),
        Fault.TOO_MANY_REQUESTS: (NotSent, 0),
        Fault.ERROR_BEFORE: (Unknown, 0),
        Fault.ERROR_AFTER: (Unknown, 1),
        Fault.TIMEOUT_BEFORE: (Unknown, 0),
        Fault.TIMEOUT_AFTER: (Unknown, 1),
        Fault.ANSWER_LOST: (Unknown, 1),
        Fault.LATE: (Unknown, 0),
        Fault.DUPLICATE: (done, of_a_duplicate),
        Fault.SLOW: (done, 1),
        Fault.WRONG_ANSWER: (Unknown, 1),
        Fault.MALFORMED_ANSWER: (Unknown, 1),
    }


def seen(said: type[Exception] | Done, fault: Fault, over_sockets: bool) -> type[Exception] | Done:
    """A connection that stands cannot be refused any more."""
    return Unknown if over_sockets and fault is Fault.REFUSED_CONNECTION else said
