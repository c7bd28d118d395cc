"""From the outbox into Redis: what a transaction put there, and what is put back when Redis has lost it."""

import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from payonce.engine.messages.model import DELAY_MAX_S
from payonce.engine.outbox import Answer, Deferred, Delivered, Entry, Refusal, RelayConfig
from payonce.kit.outcomes import Invalid, Unavailable
from payonce.queues.redis import scripts
from payonce.queues.redis.codec import encode_bodies, parts_of
from payonce.queues.redis.durable_copy import RELAY
from payonce.queues.redis.store import RedisStore

BATCH: Final = 500
US: Final = 1_000_000
BEGIN_SHARE: Final = 0.5
"""Of the time that a delivery has: later no further part of it begins."""


class RedisRelay:
    """Entries live until they are settled, and Redis keeps their delays."""

    name = RELAY
    config = RelayConfig(keeps=True, ahead_s=DELAY_MAX_S, batch=BATCH)

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    async def deliver(self, entries: Sequence[Entry]) -> Sequence[Answer]:
        """What the line is too slow for is put off: what arrived is not sent again with it."""
        stop_at = time.monotonic() + self.config.timeout_s * BEGIN_SHARE
        by_queue: defaultdict[str, list[int]] = defaultdict(list)
        for position, entry in enumerate(entries):
            by_queue[entry.message.queue].append(position)
        answers: list[Answer] = [Deferred("the line to Redis is slow, and others went first", 0.0)] * len(entries)
        for queue, positions in by_queue.items():
            bodies = encode_bodies([entries[position].message for position in positions])
            for part in parts_of(list(zip(positions, bodies, strict=True)), BATCH, lambda each: len(each[1])):
                if time.monotonic() > stop_at:
                    return answers
                answer = await self._deliver(queue, [(entries[position], body) for position, body in part])
                for position, _ in part:
                    answers[position] = answer
        return answers

    async def _deliver(self, queue: str, entries: Sequence[tuple[Entry, bytes]]) -> Answer:
        arguments: list[str | bytes] = []
        for entry, body in entries:
            first = "-" if entry.first_attempt_at is None else str(_us(entry.first_attempt_at))
            arguments += (body, str(round(entry.due_in_s * US)), first, entry.message.lane or "")
        try:
            await self._store.run(scripts.DELIVER, queue, *arguments)
        except Invalid as error:
            return Refusal(str(error))
        except Unavailable as error:
            return Deferred(str(error))
        return Delivered()


def _us(moment: datetime) -> int:
    return round(moment.timestamp() * US)
