"""Work that ended in every way, for pages to show."""

from uuid import UUID

from payonce.engine.messages.model import Message, State
from payonce.engine.messages.policy import Exponential, Policy
from payonce.engine.messages.work import Work, handles
from payonce.kit.outcomes import Retry
from payonce.testing import Stage

POLICY = Policy("q:sub:renewals", max_attempts=3, backoff=Exponential(60.0, 2.0, 3_600.0, 10.0))


@handles(POLICY)
async def renew(work: Work) -> None:
    match work.message.payload:
        case {"fails": reason}:
            raise Retry(str(reason))
        case {"asks_s": seconds}:
            raise Retry("the vendor asked for patience", after_s=float(seconds))


async def put(stage: Stage, payload: dict[str, object], **fields: object) -> UUID:
    await stage.feed.declare([POLICY])
    [message_id] = await stage.feed.put([Message(queue=POLICY.queue, payload=payload, **fields)])  # type: ignore[arg-type]
    return message_id


async def run(stage: Stage, for_s: float = 86_400.0) -> None:
    """Lets everything run that falls due within that time."""
    worker = await stage.worker(renew)
    await stage.run(worker, for_s)


async def park(stage: Stage, reason: str = "the card expired", count: int = 1, **fields: object) -> list[UUID]:
    """Messages that ran as often as they may, and gave up."""
    ids = [await put(stage, {"fails": reason, "number": number}, **fields) for number in range(count)]
    await run(stage)
    assert {each.message.id for each in await stage.admin.peek(POLICY.queue, State.PARKED, 1_000)} >= set(ids)
    return ids
