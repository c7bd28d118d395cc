"""Search for one message by its id, through the queue backends: not every store can be queried in SQL."""

from uuid import UUID

from payonce.engine.messages.model import State
from payonce.engine.messages.ports import Admin, Filter, QueuedMessage


async def find(admin: Admin, queue: str, message_id: UUID) -> QueuedMessage | None:
    """The message, in any state. It may move during the search, so the first states are checked again."""
    for state in (*State, State.READY, State.LEASED):
        preview = await admin.preview(queue, state, Filter(ids=[message_id]))
        if preview.samples:
            return preview.samples[0]
    return None


async def find_anywhere(admin: Admin, what: str) -> QueuedMessage | None:
    """The message with this id in any queue; None if `what` is not an id."""
    try:
        message_id = UUID(what)
    except ValueError:
        return None
    for queue in await admin.queues():
        if (found := await find(admin, queue, message_id)) is not None:
            return found
    return None
