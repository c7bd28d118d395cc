"""Pausing queues when the exchange refuses our API key, which only an operator can resolve."""

from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work
from payonce.services.payouts.policies import QUEUES

AGAIN_AFTER_S = 60.0


async def pause_and_requeue(work: Work, reason: str) -> None:
    """Pauses the message's queue and sends the message again."""
    message = work.message
    [policy] = [policy for policy in QUEUES if policy.queue == message.queue]
    async with work.commit(rejected=refused_key(reason)) as tx:
        await pause(tx, message.queue, reason)
        await tx.send(
            policy,
            message.payload,
            key=f"again:{message.id}",
            correlation_id=message.correlation_id,
            lane=message.lane,
            delay_s=AGAIN_AFTER_S,
        )


async def pause(tx: Tx, queue: str, reason: str) -> None:
    """Pauses a queue until an operator resumes it."""
    await tx.pause(queue, refused_key(reason), by="payouts")


def refused_key(reason: str) -> str:
    return f"ChangeNOW refuses our API key: {reason}"
