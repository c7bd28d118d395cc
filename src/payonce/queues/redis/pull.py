"""Taking messages: finished ones are settled and new ones claimed by one script, in one round trip."""

import asyncio
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
import structlog

from payonce.engine.bell import Bell
from payonce.engine.database import Connection
from payonce.engine.model import Answer, Claim, Ending, Message, Settlement, State, clean_text
from payonce.engine.policy import Policy
from payonce.engine.queue import POLL_S, Exchange
from payonce.engine.rows import UNREADABLE
from payonce.kit.ids import new_id
from payonce.queues.redis import scripts
from payonce.queues.redis.bodies import decode_any, decode_plain, encode_bodies, id_text
from payonce.queues.redis.runlog import EndedRun, line, try_to_write_runs
from payonce.queues.redis.store import RedisStore
from payonce.queues.redis.waiting import Doorbell

REAP_BATCH: Final = 200
SETTLE_MAX: Final = 1_000
US: Final = 1_000_000
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
ANSWERS: Final = {83: Answer.SETTLED, 65: Answer.ALREADY, 84: Answer.STALE}
"""By the letters S, A and T."""
PLAIN: Final = "p"
SUSPICIOUS: Final = 2
RECORD_FIELDS: Final = 6

log = structlog.get_logger(__name__)


class RedisQueue:
    """One queue as one worker process sees it."""

    mirrors = True

    def __init__(self, store: RedisStore, bell: Bell, policy: Policy, worker: str) -> None:
        self.policy = policy
        self._store = store
        self._worker = re.sub(r"\s", "_", worker)
        self._lease_us = round(policy.lease_s * US)
        self._limit = policy.limit_name or ""
        self._retention_us = round(policy.key_retention_s * US)
        self._logs_successes = policy.log == "all"
        self._rung = asyncio.Event()
        self._doorbell = Doorbell(store, policy.queue, self._rung)
        bell.subscribe(policy.queue, self._rung)

    async def exchange(self, settlements: Sequence[Settlement], limit: int) -> Exchange:
        answers: list[Answer] = []
        while len(settlements) > SETTLE_MAX:
            answers += (await self._exchange(settlements[:SETTLE_MAX], 0)).answers
            settlements = settlements[SETTLE_MAX:]
        last = await self._exchange(settlements, limit)
        return Exchange([*answers, *last.answers], last.claims, last.rest_s) if answers else last

    async def _exchange(self, settlements: Sequence[Settlement], limit: int) -> Exchange:
        done = [settlement for settlement in settlements if settlement.ending is Ending.SUCCESS]
        others = [settlement for settlement in settlements if settlement.ending is not Ending.SUCCESS]
        token = _new_token()
        now_us, rest, said, *claimed = await self._store.run(
            scripts.EXCHANGE, self.policy.queue, *self._head(token, limit, "ready", len(done)),
            *(argument for settlement in done for argument in self._success(settlement)),
            *(argument for settlement in others for argument in self._other(settlement)),
        )  # fmt: skip
        now = moment(now_us)
        claims = await self._readable(claimed, token, now)
        rest_s = POLL_S if rest == b"paused" else int(rest) / US if rest else None
        if limit:
            self._doorbell.may_ring = rest_s is None and len(claims) < limit
        if others:
            outcome = zip(others, said[len(done) :], strict=True)
            ended = [self._run(settlement, now) for settlement, letter in outcome if ANSWERS[letter] is Answer.SETTLED]
            await try_to_write_runs(self._store.database, [run for run in ended if run is not None])
        return Exchange(_in_order(settlements, done, others, said), claims, rest_s)

    def _head(self, token: int, limit: int, source: str, successes: int) -> tuple[str | int, ...]:
        return (self._lease_us, self._worker, token, limit, source, str(new_id()), self._retention_us, self._limit,
                successes)  # fmt: skip

    def _success(self, settlement: Settlement) -> tuple[str | int, ...]:
        claim, message = settlement.claim, settlement.claim.message
        told = line(message, "success", message.attempts + 1) if self._logs_successes else ""
        return str(message.id), claim.token, message.idempotency_key or "", told

    def _other(self, settlement: Settlement) -> tuple[str | bytes | int, ...]:
        claim, message, ending = settlement.claim, settlement.claim.message, settlement.ending
        reason = "" if settlement.reason is None else clean_text(settlement.reason)
        body: str | bytes = ""
        if ending in (Ending.RETRY, Ending.PARKED):
            [body] = encode_bodies([_tried(message)])
        elif ending is Ending.RELEASED and message.attempts:
            body = "+"
        told = "" if ending is Ending.RELEASED else line(message, ending.value, message.attempts + 1, reason or None)
        return (str(message.id), claim.token, ending.value, body, round(settlement.delay_s * US), reason,
                message.idempotency_key or "", told)  # fmt: skip

    def _run(self, settlement: Settlement, now: datetime) -> EndedRun | None:
        if settlement.ending is Ending.RELEASED:
            return None
        claim, retried = settlement.claim, settlement.ending is Ending.RETRY
        return EndedRun(
            claim.message,
            settlement.ending.value,
            claim.message.attempts + 1,
            None if settlement.reason is None else clean_text(settlement.reason),
            now + timedelta(seconds=settlement.delay_s) if retried else None,
            self._worker,
            claim.claimed_at,
        )

    async def _readable(self, claimed: Sequence[bytes], token: int, now: datetime) -> list[Claim]:
        """One message that cannot be read is parked with its reason, and does not hold up the others."""
        claims, queue = [], self.policy.queue
        for position in range(0, len(claimed), 2):
            body, info = claimed[position], claimed[position + 1]
            try:
                if not info:
                    claims.append(Claim(decode_plain(queue, body), token, 0, now, now, first=True))
                    continue
                flags, crashes, first = info.decode().split()
                message = decode_plain(queue, body) if flags[1] == PLAIN else decode_any(queue, body)
                claims.append(Claim(message, token, int(crashes), now, moment(first)))
            except UNREADABLE as error:
                await self._park_unreadable(body, token, str(error))
        return claims

    async def _park_unreadable(self, body: bytes, token: int, error: str) -> None:
        message_id, reason = id_text(body), clean_text(f"this message cannot be read: {error}")
        log.error("message_unreadable", queue=self.policy.queue, message_id=message_id, error=error)
        nameless = Message(queue=self.policy.queue)
        told = line(nameless, "parked", 0, reason).replace(str(nameless.id), message_id)
        await self._store.run(
            scripts.EXCHANGE, self.policy.queue, *self._head(_new_token(), 0, "ready", 0),
            message_id, token, Ending.PARKED.value, "", 0, reason, "", told,
        )  # fmt: skip

    async def claim_alone(self) -> Claim | None:
        token = _new_token()
        now_us, _, _, *claimed = await self._store.run(
            scripts.EXCHANGE, self.policy.queue, *self._head(token, 1, "alone", 0)
        )
        claims = await self._readable(claimed, token, moment(now_us))
        return claims[0] if claims else None

    async def mark_alone(self, claim: Claim) -> bool:
        [marked] = await self._store.run(scripts.MARK_ALONE, self.policy.queue, str(claim.message.id), claim.token)
        return bool(marked)

    async def extend(self, claims: Sequence[Claim]) -> list[Claim]:
        named = (argument for claim in claims for argument in (str(claim.message.id), claim.token))
        lost = await self._store.run(scripts.EXTEND, self.policy.queue, self._lease_us, self._limit, *named)
        gone = {message_id.decode() for message_id in lost}
        return [claim for claim in claims if str(claim.message.id) in gone]

    async def give_back(self, running: Sequence[Claim]) -> int:
        ids = [str(claim.message.id) for claim in running]
        [count] = await self._store.run(scripts.GIVE_BACK, self.policy.queue, self._worker, self._limit, *ids)
        return int(count)

    async def settle_within(self, connection: Connection, settlement: Settlement) -> str | None:
        raise NotImplementedError

    async def hold_within(self, connection: Connection, claim: Claim) -> bool:
        raise NotImplementedError

    async def reap(self) -> int:
        dead = await self._store.run(scripts.DEAD, self.policy.queue, REAP_BATCH)
        found = [
            held
            for position in range(0, len(dead), 3)
            if (held := _dead_claim(self.policy.queue, *dead[position : position + 3])) is not None
        ]
        if not found:
            return 0
        arguments = [argument for held in found for argument in held.arguments]
        taken = {
            message_id.decode()
            for message_id in await self._store.run(scripts.REAP, self.policy.queue, self._limit, *arguments)
        }
        reaped = [held for held in found if held.id in taken]
        for held in reaped:
            log.warning("lease_ended", queue=self.policy.queue, message_id=held.id, worker=held.worker,
                        crashes=held.crashes, now=held.state.value)  # fmt: skip
        await try_to_write_runs(self._store.database, [held.run for held in reaped if held.run is not None])
        return len(reaped)

    async def wait(self, timeout_s: float) -> None:
        self._doorbell.listen()
        try:
            async with asyncio.timeout(timeout_s):
                await self._rung.wait()
        except TimeoutError:
            pass
        self._rung.clear()

    def wake(self) -> None:
        self._rung.set()


class DeadClaim:
    """A claim whose lease ended, and what is to become of its message."""

    def __init__(self, queue: str, message_id: str, fields: Sequence[str], body: bytes) -> None:
        token, claimed, _, crashes, alone, worker = fields
        self.id, self.worker = message_id, worker
        self.crashes = int(crashes) + 1
        self.alone = alone == "1"
        self.state = State.PARKED if self.alone else State.ALONE if self.crashes >= SUSPICIOUS else State.READY
        reason = f"worker {worker or '?'} died or stopped: its lease ended"
        self.reason = f"{reason} while this message ran alone" if self.alone else reason
        status = "parked" if self.alone else "retry"
        try:
            message = decode_any(queue, body)
        except UNREADABLE:
            message = Message(queue=queue)
            told = line(message, status, 0, self.reason).replace(str(message.id), message_id)
            self.run = None
        else:
            told = line(message, status, message.attempts, self.reason)
            self.run = EndedRun(message, status, message.attempts, self.reason, None, worker, moment(claimed))
        self.arguments = (message_id, token, self.reason, told)


def _dead_claim(queue: str, message_id: bytes, record: bytes, meta: bytes) -> DeadClaim | None:
    """None when the record was written by somebody else and says nothing."""
    head, _, body = record.partition(b"\n")
    fields = head.decode("utf-8", "replace").split(" ")
    if len(fields) != RECORD_FIELDS or not meta:
        return None
    return DeadClaim(queue, message_id.decode(), fields, body)


def moment(since_1970_us: bytes | str | float) -> datetime:
    return EPOCH + timedelta(microseconds=int(since_1970_us))


def _new_token() -> int:
    """Drawn, since a wiped server would begin to count again; never 1, which means a message's first claim."""
    return int.from_bytes(os.urandom(8), "big") >> 1 | 1 << 32


def _tried(message: Message) -> Message:
    return msgspec.structs.replace(message, attempts=message.attempts + 1)


def _in_order(
    settlements: Sequence[Settlement], done: Sequence[Settlement], others: Sequence[Settlement], said: bytes
) -> list[Answer]:
    if not others:
        return [ANSWERS[letter] for letter in said]
    successes, rest = iter(said[: len(done)]), iter(said[len(done) :])
    return [ANSWERS[next(successes if settlement.ending is Ending.SUCCESS else rest)] for settlement in settlements]
