"""Messages that do not fit the queue's contract are parked with the reason, on every backend; messages of another
release wait."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import msgspec
import pytest

from payonce.embedded.redis import RedisServer
from payonce.engine.messages.contract import Contract
from payonce.engine.messages.model import Message, State
from payonce.engine.messages.policy import RELEASED_MAX_S, Fixed, Policy
from payonce.engine.messages.ports import Admin, Filter, QueuedMessage
from payonce.engine.messages.process import Worker
from payonce.engine.messages.work import Handler, Work, handles
from payonce.kit.outcomes import Retry, Unprocessable
from payonce.queues.declarations import declare_queues
from payonce.testing import ScratchDatabase, Stage, open_stage
from tests.cloudtasks.testbed import open_runs
from tests.conformance.redis_stage import RedisStage, open_redis_stage


class Renewal(msgspec.Struct, frozen=True, kw_only=True):
    subscription_id: str
    period: int


class Dunning(msgspec.Struct, frozen=True, kw_only=True):
    subscription_id: str
    invoice_id: str


CONTRACT = Contract({"renewal": (Dunning, Renewal)})
POLICY = Policy("renewals", max_attempts=3, backoff=Fixed(60), contract=CONTRACT)
GOOD = {"subscription_id": "sub-1", "period": 2}


@dataclass
class Ground:
    """A queue with a contract on some backend, and a worker that is stepped."""

    s: Stage | RedisStage
    admin: Admin
    put: Callable[[Sequence[Message]], Any]
    begin: Callable[..., Any]
    """Delivers the message, where a task service has to."""
    worker: Worker
    seen: list[Any]

    async def run(self, *messages: Message) -> None:
        for message in messages:
            await self.put([message])
            self.begin(message.id)
            await self.worker.step()

    async def bring_again(self, message_id: UUID) -> None:
        """Where a task service delivers it, as the newest of its tasks."""
        rows = await self.s.owner.fetch(
            "update payonce.outbox set state = 'delivered' where relay = 'cloudtasks' and id = $1 returning delivery",
            message_id,
        )
        for row in rows:
            self.begin(message_id, row["delivery"])

    async def parked(self) -> list[QueuedMessage]:
        return await self.admin.peek(POLICY.queue, State.PARKED, 10)

    async def logged(self) -> list[tuple[str, str]]:
        """In PostgreSQL's job log: status and reason."""
        rows = await self.s.owner.fetch(
            "select status, coalesce(last_error, '') as why from payonce.job_logs where queue = $1 order by id",
            POLICY.queue,
        )
        return [(row["status"], row["why"]) for row in rows]


OpenGround = Callable[..., AbstractAsyncContextManager[Ground]]


@pytest.fixture(params=["PostgreSQL", "Redis", "Cloud Tasks"])
def ground(scratch: ScratchDatabase, request: pytest.FixtureRequest) -> OpenGround:
    @asynccontextmanager
    async def opened(policy: Policy = POLICY, handler: Handler | None = None) -> AsyncIterator[Ground]:
        seen: list[Any] = []

        @handles(policy)
        async def see(work: Work) -> None:
            seen.append(work.payload)

        handlers = [handler or see]
        if request.param == "Redis":
            async with open_redis_stage(scratch, request.getfixturevalue("redis_server")) as r:
                queue = await r.queue(policy)
                worker = Worker(handlers, r.database, r.feed, lambda _: queue)
                yield Ground(r, r.admin, r.feed.put, lambda *_: None, worker, seen)
            return
        async with open_stage(scratch) as s:
            if request.param == "PostgreSQL":
                pulled = await s.queue(policy)
                worker = Worker(handlers, s.database, s.feed, lambda _: pulled)
                yield Ground(s, s.admin, s.feed.put, lambda *_: None, worker, seen)
                return
            async with open_runs(s, policy) as runs:

                async def put(messages: Sequence[Message]) -> None:
                    await runs.tasks.feed.put(messages)
                    await s.owner.execute("update payonce.outbox set state = 'delivered', token = token + 1")

                worker = Worker(handlers, s.database, runs.tasks.feed, lambda _: runs.queue)
                yield Ground(s, runs.tasks.admin, put, runs.bring, worker, seen)

    return opened


def message(action: str = "renewal", payload: dict[str, Any] | None = None, **fields: Any) -> Message:
    return Message(queue=POLICY.queue, action=action, payload=GOOD if payload is None else payload, **fields)


async def test_what_fits_comes_to_its_handler_as_its_type(ground: OpenGround) -> None:
    async with ground() as g:
        tried_again = {"subscription_id": "sub-1", "invoice_id": "inv-1", "not ours": True}
        await g.run(message(), message(payload=tried_again))
        assert g.seen == [
            Renewal(subscription_id="sub-1", period=2),
            Dunning(subscription_id="sub-1", invoice_id="inv-1"),
        ]
        assert await g.parked() == []
        assert {status for status, _ in await g.logged()} <= {"success"}


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"subscription_id": "sub-1"}, "missing required field `invoice_id`"),
        ({"subscription_id": "sub-1", "period": "two"}, "Expected `int`, got `str` - at `$.period`"),
        ({}, "missing required field `subscription_id`"),
    ],
)
async def test_a_payload_that_does_not_fit_is_parked_at_once_with_the_reason(
    ground: OpenGround, payload: dict[str, Any], why: str
) -> None:
    async with ground() as g:
        await g.run(message(payload=payload))
        assert g.seen == []
        [parked] = await g.parked()
        assert why in (parked.last_error or "")
        assert "docs/messages.md" in (parked.last_error or "")
        assert parked.message.payload == payload
        [(status, reason)] = await g.logged()
        assert (status, reason) == ("parked", parked.last_error)


@pytest.mark.parametrize(("action", "named"), [("reticulate", "action 'reticulate'"), ("", "without an action")])
async def test_an_action_that_no_release_has_declared_is_parked(ground: OpenGround, action: str, named: str) -> None:
    async with ground() as g:
        await g.run(message(action))
        assert g.seen == []
        [parked] = await g.parked()
        assert f"does not accept {'messages ' * (not action)}{named}; it accepts: action 'renewal'" in (
            parked.last_error or ""
        )
        assert [status for status, _ in await g.logged()] == ["parked"]


async def test_an_action_of_another_release_waits_for_it_and_is_parked_after_a_day(ground: OpenGround) -> None:
    async with ground() as g:
        newer = replace(POLICY, contract=Contract({**CONTRACT.payloads, "pause": Renewal}))
        await _declared_elsewhere(g, newer)
        await g.run(message("pause", created_at=await g.s.clock.now()))
        assert await g.parked() == []
        [waiting] = await g.admin.peek(POLICY.queue, State.READY, 10)
        assert waiting.message.attempts == 0
        assert await g.logged() == []
        await g.s.clock.advance(RELEASED_MAX_S + 1)
        await g.bring_again(waiting.message.id)
        await g.worker.step()
        [parked] = await g.parked()
        assert "action 'pause' belongs to another release, and no worker took it for 24 h" in (parked.last_error or "")
        assert g.seen == []


async def test_an_older_release_that_starts_later_takes_no_action_from_a_newer_one(ground: OpenGround) -> None:
    async with ground() as g:
        await _declared_elsewhere(g, replace(POLICY, contract=Contract({"renewal": Renewal, "pause": Renewal})))
        await _declared_elsewhere(g, POLICY)
        declared = await g.s.owner.fetchval("select actions from payonce.queues where name = $1", POLICY.queue)
        assert declared == ["pause", "renewal"]


async def test_a_newer_envelope_waits_for_a_newer_release_whatever_its_action(ground: OpenGround) -> None:
    async with ground() as g:
        await g.run(message("reticulate", extra={"schema_version": 2}))
        assert await g.parked() == []
        [waiting] = await g.admin.peek(POLICY.queue, State.READY, 10)
        assert waiting.message.attempts == 0


async def test_a_handler_parks_what_nobody_can_carry_out_and_no_attempt_follows(ground: OpenGround) -> None:
    @handles(POLICY)
    async def refuse(work: Work) -> None:
        raise Unprocessable(f"there is no subscription {work.payload.subscription_id!r}")

    async with ground(POLICY, refuse) as g:
        await g.run(message())
        [parked] = await g.parked()
        assert parked.last_error == "there is no subscription 'sub-1'"
        assert await g.logged() == [("parked", "there is no subscription 'sub-1'")]


async def _declared_elsewhere(g: Ground, policy: Policy) -> None:
    """As a process of another release does when it starts."""
    backend = await g.s.owner.fetchval("select backend from payonce.queues where name = $1", policy.queue)
    await declare_queues(g.s.owner, [policy], backend)


@pytest.fixture
def redis_stage(scratch: ScratchDatabase, redis_server: RedisServer) -> AbstractAsyncContextManager[RedisStage]:
    return open_redis_stage(scratch, redis_server)


KEY = f"q:{POLICY.queue}"


async def _swept(s: RedisStage, *bodies: str) -> list[tuple[str, str]]:
    queue = await s.queue(POLICY)

    @handles(POLICY)
    async def see(work: Work) -> None:
        raise AssertionError("nothing of it is a message of this queue")

    for body in bodies:
        await s.store.command("LPUSH", KEY, body)
    worker = Worker([see], s.database, s.feed, lambda _: queue)
    for _ in range(2 * len(bodies)):
        await worker.step()
    await worker.reap()
    await worker.reap()
    rows = await s.owner.fetch("select status, last_error from payonce.job_logs order by id")
    return [(row["status"], row["last_error"]) for row in rows]


async def test_a_raw_object_that_does_not_fit_lies_in_failed_and_in_both_job_logs(redis_stage: RedisStage) -> None:
    s = redis_stage
    raw = {"action": "renewal", "subscription": "sub-1"}
    [(status, why)] = await _swept(s, json.dumps(raw))
    assert status == "parked"
    assert "missing required field `subscription_id`" in why
    assert await s.store.command("LLEN", f"{KEY}:failed") == 1
    assert await s.statuses() == ["parked"]


async def test_what_redis_parks_as_unreadable_is_in_postgresqls_job_log_once(redis_stage: RedisStage) -> None:
    s = redis_stage
    twice = "no json"
    bad_envelope = '{"id":"01890000-0000-7000-8000-00000000000a","attempts":"many","payload":{}}'
    told = await _swept(s, twice, "[1, 2]", bad_envelope)
    assert [status for status, _ in told] == ["parked"] * 3
    assert all(why.startswith("this message cannot be read: ") for _, why in told)
    assert await s.store.command("LLEN", f"{KEY}:failed") == 3
    assert await s.store.command("EXISTS", f"{KEY}:unlogged") == 0
    ids = {row["message_id"] for row in await s.owner.fetch("select message_id from payonce.job_logs")}
    shown = {stored.message.id for stored in await s.admin.peek(POLICY.queue, State.PARKED, 10)}
    assert ids == shown


async def test_what_postgresql_cannot_hold_is_parked_and_logged_all_the_same(redis_stage: RedisStage) -> None:
    raw = {"action": "re\0newal", "correlation_id": "c\0", "trace_id": "t\0", "idempotency_key": "k\0", "payload": GOOD}
    [(status, why)] = await _swept(redis_stage, json.dumps(raw))
    assert status == "parked"
    assert "cannot be read: action 're\\x00newal' must be" in why


DEEP: Any = json.loads("[" * 100 + "]" * 100)
UNWRITABLE = {
    "a large payload": ({"action": "renewal", **GOOD, "note": "x" * 300_000}, "bytes, the limit is 262,144"),
    "a payload that grows": ({"action": "renewal", **GOOD, "n": [1e15] * 20_000}, "bytes, the limit is 262,144"),
    "a deep payload": ({"action": "renewal", **GOOD, "note": DEEP}, "nested more than 64 deep"),
    "a deep envelope": ({"action": "renewal", "payload": GOOD, "note": DEEP}, "nested more than 64 deep"),
    "a long action": ({"action": "r" * 300, **GOOD}, "must be at most 200 characters"),
    "negative attempts": ({"action": "renewal", "payload": GOOD, "attempts": -5}, "attempts is -5"),
    "endless attempts": ({"action": "renewal", "payload": GOOD, "attempts": 10**30}, "must be 0 to 1,000,000"),
    "a time without its zone": ({"payload": GOOD, "created_at": "2026-01-01T00:00:00"}, "has no time zone"),
}


@pytest.mark.parametrize("what", UNWRITABLE)
async def test_what_no_put_would_take_is_parked_and_holds_up_nothing(redis_stage: RedisStage, what: str) -> None:
    """It could not be encoded again: its run could be neither retried nor parked, nor could the runs settled
    beside it."""
    s, (raw, reason) = redis_stage, UNWRITABLE[what]
    misfit = {"action": "renewal", "subscription": "sub-1"}
    told = await _swept(s, json.dumps(raw).replace("1000000000000000.0", "1e15"), json.dumps(misfit))
    assert [status for status, _ in told] == ["parked"] * 2
    [why] = [why for _, why in told if reason in why]
    assert why.startswith("this message cannot be read: ")
    assert await s.admin.redrive(POLICY.queue, Filter()) == 1
    assert await s.store.command("LLEN", f"{KEY}:failed") == 1


async def test_a_payload_that_its_handler_made_unwritable_is_parked_and_holds_up_nothing(
    redis_stage: RedisStage,
) -> None:
    s = redis_stage
    queue = await s.queue(POLICY)

    @handles(POLICY)
    async def spoil(work: Work) -> None:
        work.message.payload["at"] = float("nan")
        raise Retry("not yet")

    worker = Worker([spoil], s.database, s.feed, lambda _: queue)
    await s.store.command("LPUSH", KEY, json.dumps({"action": "renewal", **GOOD}))
    await worker.step()
    [parked] = await s.admin.peek(POLICY.queue, State.PARKED, 10)
    assert (parked.last_error or "").startswith("not yet; it cannot be encoded again: payload of a renewals message")
    assert parked.message.payload == {"action": "renewal", **GOOD}


async def test_a_misfit_that_postgresql_did_not_log_is_logged_by_the_next_sweep(redis_stage: RedisStage) -> None:
    s = redis_stage
    queue = await s.queue(POLICY)

    @handles(POLICY)
    async def see(work: Work) -> None:
        raise AssertionError("it does not fit")

    worker = Worker([see], s.database, s.feed, lambda _: queue)
    await s.owner.execute("revoke insert on payonce.job_logs from payonce_service")
    await s.store.command("LPUSH", KEY, json.dumps({"action": "renewal", "subscription": "sub-1"}))
    await worker.step()
    assert await s.store.command("LLEN", f"{KEY}:failed") == 1
    await s.owner.execute("grant insert on payonce.job_logs to payonce_service")
    for _ in range(2):
        await worker.reap()
        [row] = await s.owner.fetch("select status, last_error from payonce.job_logs")
        assert row["status"] == "parked"
        assert "missing required field `subscription_id`" in row["last_error"]
    assert await s.store.command("EXISTS", f"{KEY}:unlogged") == 0


async def test_a_worker_that_dies_before_it_writes_the_row_leaves_it_to_the_next_sweep(redis_stage: RedisStage) -> None:
    s = redis_stage
    queue = await s.queue(POLICY, "dead")
    await s.store.command("LPUSH", KEY, "no json")
    assert list((await queue.exchange([], 1)).claims) == []
    assert await s.owner.fetchval("select count(*) from payonce.job_logs") == 0
    await (await s.queue(POLICY, "alive")).reap()
    [row] = await s.owner.fetch("select status, worker from payonce.job_logs")
    assert (row["status"], row["worker"]) == ("parked", "alive")
