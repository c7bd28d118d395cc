"""Redrives and purges of more messages than one transaction changes: in batches, with progress, each message once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from payonce.engine.messages import bulk
from payonce.engine.messages.bulk import Kind, Operation, Status
from payonce.engine.messages.model import State
from payonce.engine.messages.ports import Filter
from payonce.engine.messages.transaction import Tx, begin
from payonce.kit.outcomes import Invalid
from tests.conformance.backend import PLAIN, QUEUE, Backend, claim, ids, message, park_all, settle, success

MANY = 25


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BATCH", 10)
    monkeypatch.setattr(bulk, "BATCHES_AT_ONCE", 2)


@asynccontextmanager
async def transaction(backend: Any) -> AsyncIterator[Tx]:
    async with begin(backend.stage.database, backend.feed) as tx:
        yield tx


async def begun(
    backend: Any, kind: Kind, which: Filter = Filter(), state: State = State.PARKED, total: int = MANY
) -> Operation:
    async with transaction(backend) as tx:
        return await bulk.start(tx, kind, QUEUE, state, which, total, "ada", "the vendor is back")


async def carried_on(backend: Any) -> int:
    return await bulk.carry_on(backend.stage.database, backend.admin, backend.feed)


async def now(backend: Any, operation: Operation) -> Operation:
    async with transaction(backend) as tx:
        found = await bulk.operation_of(tx, operation.id)
    assert found is not None
    return found


async def test_a_redrive_goes_in_batches_and_says_how_far_it_is(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message() for _ in range(MANY)])
    sent = await park_all(queue)
    operation = await begun(backend, Kind.REDRIVE)
    assert await carried_on(backend) == 20
    half = await now(backend, operation)
    assert (half.status, half.changed, half.share) == (Status.RUNNING, 20, 0.8)
    assert (await backend.admin.depth(QUEUE)).parked == 5
    while await carried_on(backend):
        pass
    await carried_on(backend)
    done = await now(backend, operation)
    assert (done.status, done.changed, done.kept) == (Status.DONE, MANY, 0)
    assert f"25 of 25 messages of {QUEUE} redriven (done)" == done.text
    assert sorted(ids(await claim(queue, 100))) == sorted(sent)


async def test_what_is_parked_after_the_beginning_stays(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message() for _ in range(3)])
    await park_all(queue)
    operation = await begun(backend, Kind.REDRIVE, total=3)
    await backend.time.advance(1)
    await backend.feed.put([message()])
    [late] = await park_all(queue)
    while await carried_on(backend):
        pass
    await carried_on(backend)
    assert (await now(backend, operation)).changed == 3
    [left] = await backend.admin.peek(QUEUE, State.PARKED, 10)
    assert left.message.id == late


async def test_two_that_carry_it_on_at_once_move_each_message_once(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message() for _ in range(MANY)])
    sent = await park_all(queue)
    operation = await begun(backend, Kind.REDRIVE)
    while any(await asyncio.gather(carried_on(backend), carried_on(backend))):
        pass
    await carried_on(backend)
    done = await now(backend, operation)
    assert (done.status, done.changed) == (Status.DONE, MANY)
    claimed = await claim(queue, 100)
    assert sorted(ids(claimed)) == sorted(sent)
    await settle(queue, *map(success, claimed))
    assert await claim(queue, 100) == []


async def test_a_purge_goes_in_batches_and_leaves_a_line_of_each(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    sent = await backend.feed.put([message() for _ in range(MANY)])
    operation = await begun(backend, Kind.PURGE, state=State.READY)
    assert await carried_on(backend) >= 20
    while await carried_on(backend):
        pass
    await carried_on(backend)
    done = await now(backend, operation)
    assert (done.status, done.changed) == (Status.DONE, MANY)
    assert await claim(queue, 100) == []
    [line] = await backend.log_of(sent[0])
    assert line.last_error == f"purged by ada, operation {operation.id}: the vendor is back"


async def test_a_purge_takes_nothing_that_was_put_after_its_beginning(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message() for _ in range(3)])
    await begun(backend, Kind.PURGE, state=State.READY, total=3)
    await backend.time.advance(1)
    later = await backend.feed.put([message()])
    while await carried_on(backend):
        pass
    assert ids(await claim(queue, 10)) == later


async def test_what_is_stopped_stays_as_far_as_it_is(backend: Backend) -> None:
    queue = await backend.queue(PLAIN)
    await backend.feed.put([message() for _ in range(MANY)])
    await park_all(queue)
    operation = await begun(backend, Kind.REDRIVE)
    await carried_on(backend)
    for _ in range(2):
        async with transaction(backend) as tx:
            stopped = await bulk.stop(tx, operation.id, "ada")
    assert (stopped.status, stopped.changed) == (Status.STOPPED, 20)
    assert await carried_on(backend) == 0
    assert (await backend.admin.depth(QUEUE)).parked == 5


async def test_an_operation_that_is_not_there_is_not_stopped(backend: Backend) -> None:
    async with transaction(backend) as tx:
        with pytest.raises(Invalid, match="there is no operation 404"):
            await bulk.stop(tx, 404, "ada")
