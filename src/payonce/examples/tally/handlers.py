"""Applies a change: read, call a vendor, commit once."""

import asyncio
import os
import signal

from payonce import Retry, Work, handles
from payonce.examples.tally import store
from payonce.examples.tally.model import Change, Fault
from payonce.examples.tally.policies import CHANGES


@handles(CHANGES)
async def apply_change(work: Work[Change]) -> None:
    """Add one to a row. Running twice is harmless: the commit succeeds only while this run holds the message."""
    change = work.payload
    if not await store.row_exists(work.read, change.row_id):
        raise Retry(f"row {change.row_id} is not there yet")
    await ask_outside(change)
    misbehave(change, work.message.attempts)
    async with work.commit() as tx:
        await store.add_one(tx, change.row_id, work.message.id)


async def ask_outside(change: Change) -> None:
    """Simulates the call of a vendor, during which a worker is most likely to die."""
    await asyncio.sleep(change.takes_ms / 1000)


def misbehave(change: Change, attempts: int) -> None:
    match change.fault:
        case Fault.RETRY if attempts < change.times:
            raise Retry(f"the vendor is busy, attempt {attempts + 1} of {change.times}")
        case Fault.BUG if attempts < change.times:
            raise ArithmeticError(f"a seeded bug in row {change.row_id}")
        case Fault.ALWAYS_FAILS:
            raise ArithmeticError(f"row {change.row_id} always fails")
        case Fault.KILLS_ITS_WORKER:
            os.kill(os.getpid(), signal.SIGKILL)
