"""Entries that live until settled: a queue elsewhere may lose everything, and nothing is lost or done twice."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from payonce.engine.database.connections import Connection
from payonce.engine.messages.model import Claim, Ending, Message, Settlement
from payonce.engine.messages.transaction import Reader, begin
from payonce.engine.monitoring.alerts import alerts
from payonce.engine.outbox import (
    Fate,
    Kept,
    Refusal,
    accept_unkept,
    discard_entries,
    hold_kept,
    lag,
    overdue_kept,
    parked_entries,
    put_back,
    put_kept,
    redrive_entries,
    settle_kept,
    standings,
)
from payonce.engine.outbox.durable_copy import consumer, wake_kept
from payonce.engine.outbox.model import REPEAT_FOR_S, State, wake_name
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage
from tests.engine.outbox_stage import BACKOFF_S, NAME, TERMS, Desk, open_desk

KEEPING = replace(TERMS, keeps=True, ahead_s=86_400)
LATE_S = 60.0
LEASE_S = 30.0
FIRST_AT = datetime(2026, 1, 1, tzinfo=UTC)


def claimed(message_id: UUID, token: int = 1, attempts: int = 0) -> Claim:
    """A claim as the queue elsewhere hands it out."""
    return Claim(Message(id=message_id, queue="payments", attempts=attempts), token, 0, FIRST_AT, FIRST_AT)


async def settle(
    connection: Connection,
    message_id: UUID,
    ending: Ending = Ending.SUCCESS,
    *,
    token: int = 1,
    attempts: int = 0,
    delay_s: float = 0.0,
    reason: str | None = None,
) -> Fate:
    claim = claimed(message_id, token, attempts)
    [fate] = await settle_kept(connection, NAME, [Settlement(claim, ending, reason, delay_s)])
    return fate


async def standing(desk: Desk, ids: Iterable[UUID]) -> dict[UUID, tuple[State, int]]:
    known = await standings(desk.s.database, NAME, list(ids))
    return {message_id: (each.state, each.attempts) for message_id, each in known.items()}


async def overdue(desk: Desk) -> list[Kept]:
    return await overdue_kept(desk.s.database, NAME, late_s=LATE_S, limit=100)


async def test_a_kept_entry_lives_until_it_is_settled_with_its_business(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        [sent] = await desk.put()
        await desk.step()
        assert await desk.states() == {"delivered": 1}
        assert await desk.step() == 0
        async with begin(desk.s.database, desk.s.feed) as tx:
            assert await settle(tx.connection, sent) is Fate.RECORDED
        assert await desk.states() == {}
        async with begin(desk.s.database, desk.s.feed) as tx:
            assert await settle(tx.connection, sent) is Fate.GONE


async def test_what_the_other_side_lost_is_put_back_with_attempts_and_due_time(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        [sent] = await desk.put()
        await desk.step()
        due = await desk.s.clock.now() + timedelta(seconds=500)
        async with desk.s.database.transaction() as connection:
            assert await settle(connection, sent, Ending.RETRY, delay_s=500) is Fate.RECORDED
        await desk.s.clock.advance(500 + LATE_S - 1)
        assert await overdue(desk) == []
        await desk.s.clock.advance(1)
        found = await overdue(desk)
        assert found == [Kept(sent, "payments", 1, due)]
        assert await put_back(desk.s.database, NAME, found) == 1
        await desk.step()
        again = desk.broker.received[1]
        assert (again.message.attempts, again.ready_at, again.first_attempt_at) == (1, due, FIRST_AT)
        assert await desk.states() == {"delivered": 1}


async def test_a_refill_goes_on_where_the_page_before_ended(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        ids = await desk.put(25)
        while await desk.step():
            pass
        await desk.s.clock.advance(LATE_S)
        seen: list[Kept] = []
        while page := await overdue_kept(
            desk.s.database, NAME, late_s=LATE_S, limit=10, after=seen[-1] if seen else None
        ):
            seen += page
        assert [each.id for each in seen] == sorted(ids)


async def test_what_was_settled_or_retried_since_it_was_looked_at_is_not_put_back(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        settled, retried, parked, lost = await desk.put(4)
        await desk.step()
        await desk.s.clock.advance(LATE_S)
        found = await overdue(desk)
        async with desk.s.database.transaction() as connection:
            await settle(connection, settled)
            await settle(connection, retried, Ending.RETRY)
            await settle(connection, parked, Ending.PARKED)
        assert await put_back(desk.s.database, NAME, found) == 1
        assert (await desk.row(lost))["state"] == "waiting"
        assert await put_back(desk.s.database, NAME, found) == 0


async def test_parked_money_is_not_run_again(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        [sent] = await desk.put()
        await desk.step()
        async with desk.s.database.transaction() as connection:
            await settle(connection, sent, Ending.PARKED, reason="gave up, token=abcdefghijkl")
        await desk.s.clock.advance(10 * 86_400)
        assert await overdue(desk) == []
        assert await desk.step() == 0
        row = await desk.row(sent)
        assert (row["attempts"], row["last_error"]) == (1, "gave up, token=[redacted]")
        async with desk.s.database.transaction() as connection:
            assert await wake_kept(connection, sent) == wake_name(NAME)
        await desk.step()
        assert desk.broker.received[1].message.attempts == 0


async def test_what_a_run_parked_is_no_entry_to_redrive_or_discard_here(stage: OpenStage) -> None:
    """Its queue's redrive weighs what it may move, and its purge leaves what has open effects."""
    async with open_desk(stage, KEEPING) as desk:
        [sent] = await desk.put()
        await desk.step()
        # A refusal of an earlier delivery says nothing about the run that parks it.
        await desk.s.owner.execute("update payonce.outbox set state = 'waiting', refusals = 1, suspect = true")
        async with desk.s.database.transaction() as connection:
            await settle(connection, sent, Ending.PARKED, reason="the bank is closed")
        assert [each.parked for each in await lag(desk.s.database)] == [0]
        assert (await alerts(Reader(desk.s.database), [])).outbox_parked == 0
        assert await parked_entries(desk.s.database, NAME) == []
        for asking in (
            redrive_entries(desk.s.database, desk.s.bell, NAME, by="ann"),
            redrive_entries(desk.s.database, desk.s.bell, NAME, by="ann", ids=[sent]),
            redrive_entries(desk.s.database, desk.s.bell, NAME, by="ann", ids=[sent], as_new=True),
            discard_entries(desk.s.database, NAME, [sent], by="ann", why="tidying up"),
        ):
            with pytest.raises(Invalid, match="messages of a queue; see: payonce queues"):
                await asking
        assert await desk.states() == {"parked": 1}


async def give_up_by_refusal(desk: Desk, sent: UUID) -> None:
    desk.broker.faults[sent] = Refusal("no such queue")
    for _ in range(TERMS.refusals_max):
        await desk.step()
        await desk.s.clock.advance(BACKOFF_S)
    desk.broker.faults.clear()


async def give_up_by_deaths(desk: Desk, sent: UUID) -> None:
    for _ in range(3):
        await desk.die()
        await desk.let_lease_end()
    await desk.step()


async def give_up_unread(desk: Desk, sent: UUID) -> None:
    payload = await desk.s.owner.fetchval("select payload from payonce.outbox")
    await desk.s.owner.execute("update payonce.outbox set payload = $1", "[" * 3_000 + "]" * 3_000)
    await desk.step()
    await desk.s.owner.execute("update payonce.outbox set payload = $1", payload)


@pytest.mark.parametrize("give_up", [give_up_by_refusal, give_up_by_deaths, give_up_unread])
async def test_what_the_relay_gave_up_is_shown_here_and_redriven_with_the_attempts_it_has(
    stage: OpenStage, give_up: Callable[[Desk, UUID], Awaitable[None]]
) -> None:
    async with open_desk(stage, KEEPING) as desk:
        [sent] = await desk.put()
        await desk.step()
        async with desk.s.database.transaction() as connection:
            await settle(connection, sent, Ending.RETRY)
        await put_back(desk.s.database, NAME, [Kept(sent, "payments", 1, (await desk.row(sent))["ready_at"])])
        desk.broker.received.clear()
        await give_up(desk, sent)
        assert await desk.states() == {"parked": 1}
        assert [each.parked for each in await lag(desk.s.database)] == [1]
        assert (await alerts(Reader(desk.s.database), [])).outbox_parked == 1
        assert [each.message.id for each in await parked_entries(desk.s.database, NAME)] == [sent]
        with pytest.raises(Invalid, match="messages of a queue"):
            await discard_entries(desk.s.database, NAME, [sent], by="ann", why="tidying up")
        assert await redrive_entries(desk.s.database, desk.s.bell, NAME, by="ann") == 1
        desk.broker.received.clear()
        await desk.step()
        assert await desk.states() == {"delivered": 1}
        assert [entry.message.attempts for entry in desk.broker.received] == [1]


async def test_a_run_that_was_taken_over_neither_retries_nor_parks(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        [sent] = await desk.put()
        await desk.step()
        async with desk.s.database.transaction() as connection:
            assert await settle(connection, sent, Ending.RETRY, delay_s=100, reason="the successor") is Fate.RECORDED
            assert await settle(connection, sent, Ending.RETRY, reason="stale") is Fate.STALE
            assert await settle(connection, sent, Ending.PARKED, reason="stale") is Fate.STALE
        row = await desk.row(sent)
        assert (row["state"], row["attempts"], row["last_error"]) == ("delivered", 1, "the successor")


async def test_a_settle_while_it_is_delivered_again_ends_it(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        [sent] = await desk.put()
        step = await desk.stand_still()
        async with desk.s.database.transaction() as connection:
            assert await settle(connection, sent) is Fate.RECORDED
        assert desk.broker.resume is not None
        desk.broker.resume.set()
        await step
        assert await desk.states() == {}


async def test_a_park_while_it_is_delivered_again_holds(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        [sent] = await desk.put()
        step = await desk.stand_still()
        async with desk.s.database.transaction() as connection:
            assert await settle(connection, sent, Ending.PARKED) is Fate.RECORDED
        assert desk.broker.resume is not None
        desk.broker.resume.set()
        await step
        assert await desk.states() == {"parked": 1}


async def test_kept_entries_are_put_back_at_any_age(stage: OpenStage) -> None:
    """Nobody has taken in what is not settled, so repeating it does nothing twice."""
    async with open_desk(stage, KEEPING) as desk:
        await desk.put()
        await desk.step()
        await desk.s.clock.advance(10 * REPEAT_FOR_S)
        assert await put_back(desk.s.database, NAME, await overdue(desk)) == 1
        assert await desk.step() == 1
        assert await desk.states() == {"delivered": 1}


async def test_an_entry_whose_message_was_settled_before_ends_without_a_second_record(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        done, found = await desk.put(2)
        await desk.step()
        ids = [str(done), str(found)]
        await desk.s.owner.execute(
            "insert into payonce.inbox (consumer, id) select $1, unnest($2::text[])", consumer("payments"), ids
        )
        async with desk.s.database.transaction() as connection:
            assert await settle(connection, done) is Fate.GONE
        await desk.s.clock.advance(LATE_S)
        assert await put_back(desk.s.database, NAME, await overdue(desk)) == 0
        assert await desk.states() == {}, "neither comes back for ever"


async def test_a_hold_stays_when_its_entry_is_put_back(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        [sent] = await desk.put()
        await desk.step()
        async with desk.s.database.transaction() as connection:
            assert await hold_kept(connection, NAME, claimed(sent, token=1), LEASE_S)
        await desk.s.clock.advance(LATE_S)
        assert await put_back(desk.s.database, NAME, await overdue(desk)) == 1
        await desk.step()
        async with desk.s.database.transaction() as connection:
            assert not await hold_kept(connection, NAME, claimed(sent, token=2), LEASE_S)
            assert await hold_kept(connection, NAME, claimed(sent, token=1), LEASE_S)


async def test_a_refill_has_bounds(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        with pytest.raises(Invalid, match="limit is 0"):
            await overdue_kept(desk.s.database, NAME, late_s=0, limit=0)


async def test_what_holds_a_message_keeps_everybody_else_from_settling_it(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        [sent] = await desk.put()
        await desk.step()
        async with desk.s.database.transaction() as connection:
            assert await hold_kept(connection, NAME, claimed(sent, token=2), LEASE_S)
        for ending in (Ending.SUCCESS, Ending.FAILED, Ending.RETRY, Ending.PARKED):
            async with desk.s.database.transaction() as connection:
                assert await settle(connection, sent, ending, token=1) is Fate.STALE
        async with desk.s.database.transaction() as connection:
            assert not await hold_kept(connection, NAME, claimed(sent, token=1), LEASE_S)
            assert await hold_kept(connection, NAME, claimed(sent, token=2), LEASE_S)
            assert await settle(connection, sent, token=2) is Fate.RECORDED


async def test_a_hold_ends_with_its_lease(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        [sent] = await desk.put()
        await desk.step()
        async with desk.s.database.transaction() as connection:
            assert await hold_kept(connection, NAME, claimed(sent, token=1), LEASE_S)
        await desk.s.clock.advance_leases(LEASE_S)
        async with desk.s.database.transaction() as connection:
            assert await hold_kept(connection, NAME, claimed(sent, token=2), LEASE_S)
            assert await settle(connection, sent, token=1) is Fate.STALE


async def test_a_message_that_only_its_queue_knows_gets_an_entry_before_anything_is_sent_for_it(
    stage: OpenStage,
) -> None:
    async with open_desk(stage, KEEPING) as desk:
        direct = claimed(Message(queue="payments").id, token=5)
        async with desk.s.database.transaction() as connection:
            assert await hold_kept(connection, NAME, direct, LEASE_S)
        row = await desk.row(direct.message.id)
        assert (row["state"], row["holder"], row["first_attempt_at"]) == ("delivered", 5, FIRST_AT)
        assert await standing(desk, [direct.message.id]) == {direct.message.id: (State.DELIVERED, 0)}
        async with desk.s.database.transaction() as connection:
            assert await settle(connection, direct.message.id, token=5) is Fate.RECORDED
        async with desk.s.database.transaction() as connection:
            assert not await hold_kept(connection, NAME, direct, LEASE_S)
        assert await standing(desk, [direct.message.id]) == {}


async def test_a_message_without_an_entry_is_accepted_once(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        direct = claimed(Message(queue="payments").id)
        for expected in (Fate.RECORDED, Fate.GONE):
            async with desk.s.database.transaction() as connection:
                assert await accept_unkept(connection, NAME, direct.message) is expected
        async with desk.s.database.transaction() as connection:
            assert not await hold_kept(connection, NAME, direct, LEASE_S)
            assert await settle(connection, direct.message.id, Ending.RETRY) is Fate.GONE


async def test_a_message_with_an_entry_is_not_accepted_beside_it(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        direct = claimed(Message(queue="payments").id)
        async with desk.s.database.transaction() as connection:
            assert await settle(connection, direct.message.id, Ending.RETRY) is Fate.UNKNOWN
            assert await hold_kept(connection, NAME, direct, LEASE_S)
        async with desk.s.database.transaction() as connection:
            assert await accept_unkept(connection, NAME, direct.message) is Fate.STALE


async def test_a_batch_is_settled_one_by_one(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        done, retried, parked, released, gone = await desk.put(5)
        await desk.step()
        async with desk.s.database.transaction() as connection:
            await settle(connection, gone)
        endings = {
            done: Ending.SUCCESS,
            retried: Ending.RETRY,
            parked: Ending.PARKED,
            released: Ending.RELEASED,
            gone: Ending.SUCCESS,
        }
        async with desk.s.database.transaction() as connection:
            fates = await settle_kept(
                connection, NAME, [Settlement(claimed(each), ending) for each, ending in endings.items()]
            )
        assert fates == [Fate.RECORDED] * 4 + [Fate.GONE]
        assert await standing(desk, list(endings)) == {
            retried: (State.DELIVERED, 1),
            parked: (State.PARKED, 1),
            released: (State.DELIVERED, 0),
        }


async def test_settling_looks_at_its_own_entries_alone_however_many_wait(stage: OpenStage) -> None:
    waiting, batch = 1_000, 20
    async with open_desk(stage, KEEPING) as desk:
        ids = await desk.put(waiting)
        # The engine's own connection: its planner may neither sort nor hash.
        async with desk.s.database.engine.acquire() as connection, connection.transaction():
            before = await rows_read(connection)
            settlements = [Settlement(claimed(each), Ending.SUCCESS) for each in ids[:batch]]
            assert await settle_kept(connection, NAME, settlements) == [Fate.RECORDED] * batch
            read = await rows_read(connection) - before
        # Once to lock an entry, once to delete it.
        assert read <= 2 * batch


async def rows_read(connection: Connection) -> int:
    return int(
        await connection.fetchval(
            "select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relid = 'payonce.outbox'::regclass"
        )
    )


async def test_each_key_is_accepted_once_for_a_queue_elsewhere_too(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        first, second, other = (Message(queue="payments", idempotency_key=key) for key in ("k", "k", "other"))
        async with desk.s.database.transaction() as connection:
            assert await put_kept(connection, NAME, [first, second]) == [first.id, first.id]
        async with desk.s.database.transaction() as connection:
            assert await put_kept(connection, NAME, [second, other]) == [first.id, other.id]
        assert await desk.states() == {"waiting": 2}


async def test_a_parked_message_goes_on_when_it_is_woken(stage: OpenStage) -> None:
    async with open_desk(stage, KEEPING) as desk:
        [sent] = await desk.put()
        await desk.step()
        async with desk.s.database.transaction() as connection:
            assert await wake_kept(connection, sent) is None
            await settle(connection, sent, Ending.PARKED)
        async with desk.s.database.transaction() as connection:
            assert await wake_kept(connection, sent) == wake_name(NAME)
        assert await standing(desk, [sent]) == {sent: (State.WAITING, 0)}
