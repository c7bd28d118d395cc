"""Repairs messages in progress whose body, claim or lease Redis has lost."""

from typing import Final

from payonce.kit.log import get_logger
from payonce.queues.redis import scripts
from payonce.queues.redis.store import RedisStore

REPAIR_MAX: Final = 200_000
"""With more messages in progress, lost claims are not searched for: the search would block the server for too long."""

log = get_logger(__name__)


async def repair_claims(store: RedisStore, queue: str) -> int:
    """Completes partially lost claims. Returns how many messages went back into the queue."""
    put_back, completed = await store.run(scripts.REPAIR, queue, REPAIR_MAX)
    if put_back or completed:
        log.warning("claims_repaired", queue=queue, put_back=put_back, completed=completed)
    return int(put_back)
