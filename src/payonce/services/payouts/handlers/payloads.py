"""Reading a hop's payload. Payloads that violate the queue's contract are parked before they reach a handler."""

from typing import TypeVar

from payonce.engine.messages.work import Work
from payonce.services.payouts.messages.tokens import hops

Fields = TypeVar("Fields", bound=hops.HopFields)


def fields_of(work: Work, kind: type[Fields]) -> Fields:
    """The payload as the queue's contract has decoded it."""
    found = work.payload
    assert isinstance(found, kind)
    return found


def number_of(work: Work, name: str, default: int) -> int:
    """The value of one of our own keys beside the hop's fields; messages of older services have none."""
    found = work.message.payload.get(name, default)
    return found if type(found) is int else default
