"""When the exchange does not accept our key: nothing is wrong with any payout, and nothing helps but a person."""

from payonce.engine.audit import Severity, note
from payonce.engine.database import Connection
from payonce.engine.work import Work
from payonce.kit.log import get_logger
from payonce.services.payouts.policies import QUEUES

AGAIN_AFTER_S = 60.0

log = get_logger(__name__)


async def pause_and_put_back(work: Work, reason: str) -> None:
    """Pauses the queue, which every overview then shows, and keeps the message in it."""
    message = work.message
    [policy] = [policy for policy in QUEUES if policy.queue == message.queue]
    why = refused_key(reason)
    async with work.commit(rejected=why) as tx:
        await pause(work, tx.connection, why)
        await tx.send(
            policy, message.payload, key=f"again:{message.id}", correlation_id=message.correlation_id,
            lane=message.lane, delay_s=AGAIN_AFTER_S,
        )  # fmt: skip


def refused_key(reason: str) -> str:
    return f"ChangeNOW does not accept our key: {reason}"


async def pause(work: Work, connection: Connection, why: str, queue: str | None = None) -> None:
    """The queue of the message, or another one that must not go on either."""
    queue = queue or work.message.queue
    paused = await connection.fetchval(
        "update payonce.queues set paused = true, paused_reason = $2 where name = $1 and not paused returning true",
        queue, why[:500],
    )  # fmt: skip
    if paused:
        log.error("queue_paused", queue=queue, reason=why)
        await note(
            connection, "payouts.paused", queue, f"{why}; when it is repaired: payonce queues resume {queue}",
            actor="payouts", severity=Severity.ERROR,
        )  # fmt: skip
