"""Puts messages directly into Redis, all or none; or within a transaction, through the outbox."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec

from payonce.engine.database.connections import Connection
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.declarations import queue_names
from payonce.engine.messages.model import Message, check_message
from payonce.engine.messages.policy import Policy
from payonce.engine.outbox import put_durable, wake_name
from payonce.queues.declarations import check_limits, check_put_size, declare_queues, undeclared
from payonce.queues.redis import scripts
from payonce.queues.redis.codec import batches, encode_bodies
from payonce.queues.redis.durable_copy import RELAY
from payonce.queues.redis.keys import check_names
from payonce.queues.redis.store import RedisStore

SCRIPT_MAX_MESSAGES: Final = 1_000
"""Limit per script call: the server serves no other client meanwhile."""
DIRECT: Final = "d"
US: Final = 1_000_000


class RedisFeed:
    """Messages put outside a transaction go directly into Redis, with Redis' durability alone. Those put within one are
    kept in PostgreSQL until they are settled."""

    def __init__(self, store: RedisStore, notifier: Notifier) -> None:
        self._store = store
        self._notifier = notifier
        self._lanes_by_queue: dict[str, bool] = {}

    async def declare(self, policies: Sequence[Policy]) -> None:
        """Declares queues and their limits in both stores. An operator's pause stays in force."""
        check_limits(policies)
        async with self._store.database.engine.acquire() as connection, connection.transaction():
            check_names(policies, await queue_names(connection))
            new_limits = await declare_queues(connection, policies, "redis")
            for policy in sorted(policies, key=lambda policy: policy.queue):
                await self._store.declare(policy.queue, connection, unused_limit=policy.limit_name in new_limits)
        self._lanes_by_queue.update((policy.queue, policy.lanes) for policy in policies)

    async def put(self, messages: Sequence[Message], within: Connection | None = None) -> list[UUID]:
        if not messages:
            return []
        check_put_size(messages)
        await self._know_queues(messages)
        if within is not None:
            laned = [in_a_lane(each) if self._lanes_by_queue[each.queue] else each for each in messages]
            return await put_durable(within, RELAY, laned)
        by_queue: defaultdict[str, list[int]] = defaultdict(list)
        for position, message in enumerate(messages):
            by_queue[message.queue].append(position)
        parts: list[tuple[str, Sequence[int]]] = []
        calls: list[tuple[str, list[str | bytes]]] = []
        for queue, places in by_queue.items():
            words = self._arguments(queue, [messages[position] for position in places])
            for part in batches(list(zip(places, words, strict=True)), SCRIPT_MAX_MESSAGES, _size):
                parts.append((queue, [position for position, _ in part]))
                calls.append((queue, [DIRECT, *(word for _, four in part for word in four)]))
        if len(calls) == 1:
            answers = [await self._store.run(scripts.PUT, calls[0][0], *calls[0][1])]
        else:
            answers = await self._store.run_all(scripts.PUT, calls)
        ids = [message.id for message in messages]
        for (_, positions), answered in zip(parts, answers, strict=True):
            for position, known_as in zip(positions, answered, strict=True):
                if known_as != str(ids[position]).encode():
                    ids[position] = UUID(known_as.decode())
        return ids

    def notify(self, queues: set[str]) -> None:
        """Call after the commit of a put within a transaction: the relay delivers the messages to Redis."""
        self._notifier.notify({*queues, wake_name(RELAY)})

    def _arguments(self, queue: str, messages: Sequence[Message]) -> list[tuple[bytes, str, str, str]]:
        """Script arguments per message: body, idempotency key, due time, lane."""
        for message in messages:
            check_message(message)
        if self._lanes_by_queue[queue]:
            messages = [in_a_lane(message) for message in messages]
        return [
            (body, message.idempotency_key or "", due_text(message), message.lane or "")
            for message, body in zip(messages, encode_bodies(messages), strict=True)
        ]

    async def _know_queues(self, messages: Sequence[Message]) -> None:
        unknown = {message.queue for message in messages} - self._lanes_by_queue.keys()
        if unknown:
            found = await self._store.database.engine.fetch(
                """
                select name, coalesce((policy->>'lanes')::boolean, false) as lanes
                from payonce.queues where name = any($1)
                """,
                list(unknown),
            )
            self._lanes_by_queue.update({row["name"]: row["lanes"] for row in found})
            if missing := unknown - self._lanes_by_queue.keys():
                raise undeclared(missing)


def _size(placed: tuple[int, tuple[bytes, str, str, str]]) -> int:
    return len(placed[1][0])


def in_a_lane(message: Message) -> Message:
    """Messages without a lane share one where lanes take turns."""
    return message if message.lane is not None else msgspec.structs.replace(message, lane="")


def due_text(message: Message) -> str:
    """The due time for the script: the earliest time and a delay, in microseconds; empty for now."""
    if not message.delay_s and message.not_before is None:
        return ""
    earliest_us = 0 if message.not_before is None else int(message.not_before.timestamp() * US)
    return f"{max(0, earliest_us)} {round(message.delay_s * US)}"
