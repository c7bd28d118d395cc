"""Delivers outbox entries to Redis: new ones, and those put back after a loss."""

import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from payonce.engine.messages.model import DELAY_MAX_S
from payonce.engine.outbox import Answer, Deferred, Delivered, Entry, Refusal, RelayConfig
from payonce.kit.outcomes import Invalid, Unavailable
from payonce.queues.redis import scripts
from payonce.queues.redis.codec import batches, encode_bodies
from payonce.queues.redis.durable_copy import RELAY
from payonce.queues.redis.store import RedisStore

BATCH: Final = 500
US: Final = 1_000_000
BEGIN_SHARE: Final = 0.5
"""Share of a delivery's time after which no further part of it begins."""


class RedisRelay:
    """Entries are kept until they are settled; Redis keeps their delays."""

    name = RELAY
    config = RelayConfig(keeps=True, ahead_s=DELAY_MAX_S, batch=BATCH)

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    async def deliver(self, entries: Sequence[Entry]) -> Sequence[Answer]:
        """Delivers in parts; over a slow connection the rest is postponed, so that delivered parts are not sent
        again."""
        stop_at = time.monotonic() + self.config.timeout_s * BEGIN_SHARE
        by_queue: defaultdict[str, list[int]] = defaultdict(list)
        for position, entry in enumerate(entries):
            by_queue[entry.message.queue].append(position)
        answers: list[Answer] = [Deferred("the connection to Redis is slow; other entries went first", 0.0)] * len(
            entries
        )
        for queue, positions in by_queue.items():
            bodies = encode_bodies([entries[position].message for position in positions])
            for part in batches(list(zip(positions, bodies, strict=True)), BATCH, lambda each: len(each[1])):
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
