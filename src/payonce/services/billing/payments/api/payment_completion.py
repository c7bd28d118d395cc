"""Waits for the end of a payment that a worker processes, as long as the caller prefers and within limits."""

import asyncio
import re
import time
from typing import Final

from payonce.engine.messages.transaction import Reader
from payonce.services.billing.payments.model import State, Transaction
from payonce.services.billing.payments.store import transactions

WAIT_S: Final = 10.0
POLL_FIRST_S: Final = 0.05
POLL_MAX_S: Final = 0.5
WAITING_MAX: Final = 100
"""Requests of one process that may wait; others are answered at once with the pending payment."""
_PREFERRED: Final = re.compile(r"\bwait=(\d{1,3})\b", re.ASCII)


class CompletionWaiter:
    def __init__(self) -> None:
        self._waiting = 0

    async def ended(self, read: Reader, transaction_id: str, wait_s: float) -> Transaction | None:
        """The transaction once it has ended, or its current state when the time is up."""
        until = time.monotonic() + (wait_s if self._waiting < WAITING_MAX else 0.0)
        look_s = POLL_FIRST_S
        self._waiting += 1
        try:
            while True:
                found = await transactions.find(read, transaction_id)
                left_s = until - time.monotonic()
                if found is None or found.state is not State.PENDING or left_s <= 0:
                    return found
                await asyncio.sleep(min(look_s, left_s))
                look_s = min(look_s * 2, POLL_MAX_S)
        finally:
            self._waiting -= 1


def preferred_s(prefer: str | None) -> float:
    """RFC 7240: `Prefer: wait=3`, or `respond-async` for an immediate response."""
    if prefer is None:
        return WAIT_S
    if "respond-async" in prefer:
        return 0.0
    match = _PREFERRED.search(prefer)
    return WAIT_S if match is None else min(float(match[1]), WAIT_S)
