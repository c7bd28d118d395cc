"""Reading what a hop's message says: what cannot be read now cannot be read later, so it is not tried again."""

from typing import TypeVar

from payonce.engine.work import Work
from payonce.kit.outcomes import Invalid
from payonce.services.payouts.tokens import hops

Fields = TypeVar("Fields", bound=hops.HopFields)


async def fields_of(work: Work, kind: type[Fields]) -> Fields | None:
    """None: the message is settled as rejected. A payout that it belonged to gets another one from its keeper."""
    try:
        return hops.read(kind, work.message.payload)
    except Invalid as no:
        async with work.commit(rejected=str(no)):
            return None


def number_of(work: Work, name: str, default: int) -> int:
    """One of our own keys beside the hop's; a message from elsewhere has none."""
    found = work.message.payload.get(name, default)
    return found if type(found) is int else default
