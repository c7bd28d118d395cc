"""Pauses the queue when the gateway rejects our API key: no payment is at fault, and only an operator can fix it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from payonce.engine.messages.work import Work
from payonce.kit.outcomes import Held, Retry
from payonce.vendors.gateway.port import NotAllowed

AGAIN_AFTER_S: Final = 60.0
"""After the queue is resumed."""


@asynccontextmanager
async def or_pause(work: Work) -> AsyncIterator[None]:
    """Wraps an effect. If the gateway rejects our key, pauses the queue, which every overview shows, and keeps the
    message; no attempt is used up."""
    try:
        yield
    except Retry as retry:
        if not isinstance(retry.__cause__, NotAllowed):
            raise
        reason = f"the gateway does not accept our key: {retry.__cause__.reason}"
        await work.pause(reason, by="billing.payments")
        raise Held(reason, AGAIN_AFTER_S) from retry
