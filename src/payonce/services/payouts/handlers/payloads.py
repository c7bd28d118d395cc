"""Reading what a hop's message says. What does not fit its contract is parked before it comes here."""

from typing import TypeVar

from payonce.engine.messages.work import Work
from payonce.services.payouts.messages.tokens import hops

Fields = TypeVar("Fields", bound=hops.HopFields)


def fields_of(work: Work, kind: type[Fields]) -> Fields:
    """What the queue's contract has read."""
    found = work.payload
    assert isinstance(found, kind)
    return found


def number_of(work: Work, name: str, default: int) -> int:
    """One of our own keys beside the hop's; a message from elsewhere has none."""
    found = work.message.payload.get(name, default)
    return found if type(found) is int else default
