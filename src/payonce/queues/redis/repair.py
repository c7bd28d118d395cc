"""What is in work and has lost its body, claim or lease in Redis."""

from typing import Final

from payonce.kit.log import get_logger
from payonce.queues.redis import scripts
from payonce.queues.redis.store import RedisStore

REPAIR_MAX: Final = 200_000
"""With more in work a lost claim is not looked for: the server would serve nobody else for too long."""

log = get_logger(__name__)


async def repair_claims(store: RedisStore, queue: str) -> int:
    """Completes claims that Redis has lost a part of. Answers how many messages went back into the queue."""
    put_back, completed = await store.run(scripts.REPAIR, queue, REPAIR_MAX)
    if put_back or completed:
        log.warning("claims_repaired", queue=queue, put_back=put_back, completed=completed)
    return int(put_back)
