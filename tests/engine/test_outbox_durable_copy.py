"""Durable entries: an external queue may lose everything, and nothing is lost or done twice."""

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
    OverdueEntry,
    Refusal,
    SettleOutcome,
    accept_without_entry,
    discard_entries,
    entry_statuses,
    hold_durable,
    lag,
    overdue_entries,
    parked_entries,
    put_back,
    put_durable,
    redrive_entries,
    settle_durable,
)
from payonce.engine.outbox.durable_copy import consumer, wake_durable
from payonce.engine.outbox.model import REPEAT_FOR_S, State, wake_name
from payonce.kit.outcomes import Invalid
from payonce.testing import OpenStage
from tests.engine.outbox_stage import BACKOFF_S, CONFIG, NAME, AppContext, open_context

KEEPING = replace(CONFIG, keeps=True, ahead_s=86_400)
LATE_S = 60.0
LEASE_S = 30.0
FIRST_AT = datetime(2026, 1, 1, tzinfo=UTC)


def claimed(message_id: UUID, token: int = 1, attempts: int = 0) -> Claim:
    """A claim as the external queue returns it."""
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
) -> SettleOutcome:
    claim = claimed(message_id, token, attempts)
    [fate] = await settle_durable(connection, NAME, [Settlement(claim, ending, reason, delay_s)])
    return fate


async def standing(context: AppContext, ids: Iterable[UUID]) -> dict[UUID, tuple[State, int]]:
    known = await entry_statuses(context.s.database, NAME, list(ids))
    return {message_id: (each.state, each.attempts) for message_id, each in known.items()}


async def overdue(context: AppContext) -> list[OverdueEntry]:
    return await overdue_entries(context.s.database, NAME, late_s=LATE_S, limit=100)


async def test_a_kept_entry_lives_until_it_is_settled_with_its_business(stage: OpenStage) -> None:
    async with open_context(stage, KEEPING) as context:
        [sent] = await context.put()
        await context.step()
        assert await context.states() == {"delivered": 1}
        assert await context.step() == 0
        async with begin(context.s.database, context.s.feed) as tx:
            assert await settle(tx.connection, sent) is SettleOutcome.RECORDED
        assert await context.states() == {}
        async with begin(context.s.database, context.s.feed) as tx:
            assert await settle(tx.connection, sent) is SettleOutcome.GONE


async def test_what_the_other_side_lost_is_put_back_with_attempts_and_due_time(stage: OpenStage) -> None:
    async with open_context(stage, KEEPING) as context:
        [sent] = await context.put()
        await context.step()
        due = await context.s.clock.now() + timedelta(seconds=500)
        async with context.s.database.transaction() as connection:
            assert await settle(connection, sent, Ending.RETRY, delay_s=500) is SettleOutcome.RECORDED
        await context.s.clock.advance(500 + LATE_S - 1)
        assert await overdue(context) == []
        await context.s.clock.advance(1)
        found = await overdue(context)
        assert found == [OverdueEntry(sent, "payments", 1, due)]
        assert await put_back(context.s.database, NAME, found) == 1
        await context.step()
        again = context.broker.received[1]
        assert (again.message.attempts, again.ready_at, again.first_attempt_at) == (1, due, FIRST_AT)
        assert await context.states() == {"delivered": 1}


async def test_a_refill_goes_on_where_the_page_before_ended(stage: OpenStage) -> None:
    async with open_context(stage, KEEPING) as context:
        ids = await context.put(25)
        while await context.step():
            pass
        await context.s.clock.advance(LATE_S)
        seen: list[OverdueEntry] = []
        while page := await overdue_entries(
            context.s.database, NAME, late_s=LATE_S, limit=10, after=seen[-1] if seen else None
        ):
            seen += page
        assert [each.id for each in seen] == sorted(ids)


async def test_what_was_settled_or_retried_since_it_was_looked_at_is_not_put_back(stage: OpenStage) -> None:
    async with open_context(stage, KEEPING) as context:
        settled, retried, parked, lost = await context.put(4)
        await context.step()
        await context.s.clock.advance(LATE_S)
        found = await overdue(context)
        async with context.s.database.transaction() as connection:
            await settle(connection, settled)
            await settle(connection, retried, Ending.RETRY)
            await settle(connection, parked, Ending.PARKED)
        assert await put_back(context.s.database, NAME, found) == 1
        assert (await context.row(lost))["state"] == "waiting"
        assert await put_back(context.s.database, NAME, found) == 0


async def test_parked_money_is_not_run_again(stage: OpenStage) -> None:
    async with open_context(stage, KEEPING) as context:
        [sent] = await context.put()
        await context.step()
        async with context.s.database.transaction() as connection:
            await settle(connection, sent, Ending.PARKED, reason="gave up, token=abcdefghijkl")
        await context.s.clock.advance(10 * 86_400)
        assert await overdue(context) == []
        assert await context.step() == 0
        row = await context.row(sent)
        assert (row["attempts"], row["last_error"]) == (1, "gave up, token=[redacted]")
        async with context.s.database.transaction() as connection:
            assert await wake_durable(connection, sent) == wake_name(NAME)
        await context.step()
        assert context.broker.received[1].message.attempts == 0


async def test_what_a_run_parked_is_no_entry_to_redrive_or_discard_here(stage: OpenStage) -> None:
    """Its queue's redrive assesses the amounts, and its purge leaves messages with open effects."""
    async with open_context(stage, KEEPING) as context:
        [sent] = await context.put()
        await context.step()
        # A refusal of an earlier delivery says nothing about the run that parks the message.
        await context.s.owner.execute("update payonce.outbox set state = 'waiting', refusals = 1, suspect = true")
        async with context.s.database.transaction() as connection:
            await settle(connection, sent, Ending.PARKED, reason="the bank is closed")
        assert [each.parked for each in await lag(context.s.database)] == [0]
        assert (await alerts(Reader(context.s.database), [])).outbox_parked == 0
        assert await parked_entries(context.s.database, NAME) == []
        for asking in (
            redrive_entries(context.s.database, context.s.notifier, NAME, by="ann"),
            redrive_entries(context.s.database, context.s.notifier, NAME, by="ann", ids=[sent]),
            redrive_entries(context.s.database, context.s.notifier, NAME, by="ann", ids=[sent], as_new=True),
            discard_entries(context.s.database, NAME, [sent], by="ann", why="tidying up"),
        ):
            with pytest.raises(Invalid, match="messages of a queue; see: payonce queues"):
                await asking
        assert await context.states() == {"parked": 1}


async def give_up_by_refusal(context: AppContext, sent: UUID) -> None:
    context.broker.faults[sent] = Refusal("no such queue")
    for _ in range(CONFIG.refusals_max):
        await context.step()
        await context.s.clock.advance(BACKOFF_S)
    context.broker.faults.clear()


async def give_up_by_deaths(context: AppContext, sent: UUID) -> None:
    for _ in range(3):
        await context.die()
        await context.let_lease_end()
    await context.step()


async def give_up_unread(context: AppContext, sent: UUID) -> None:
    payload = await context.s.owner.fetchval("select payload from payonce.outbox")
    await context.s.owner.execute("update payonce.outbox set payload = $1", "[" * 3_000 + "]" * 3_000)
    await context.step()
    await context.s.owner.execute("update payonce.outbox set payload = $1", payload)


@pytest.mark.parametrize("give_up", [give_up_by_refusal, give_up_by_deaths, give_up_unread])
async def test_what_the_relay_gave_up_is_shown_here_and_redriven_with_the_attempts_it_has(
    stage: OpenStage, give_up: Callable[[AppContext, UUID], Awaitable[None]]
) -> None:
    async with open_context(stage, KEEPING) as context:
        [sent] = await context.put()
        await context.step()
        async with context.s.database.transaction() as connection:
            await settle(connection, sent, Ending.RETRY)
        await put_back(
            context.s.database, NAME, [OverdueEntry(sent, "payments", 1, (await context.row(sent))["ready_at"])]
        )
        context.broker.received.clear()
        await give_up(context, sent)
        assert await context.states() == {"parked": 1}
        assert [each.parked for each in await lag(context.s.database)] == [1]
        assert (await alerts(Reader(context.s.database), [])).outbox_parked == 1
        assert [each.message.id for each in await parked_entries(context.s.database, NAME)] == [sent]
        with pytest.raises(Invalid, match="messages of a queue"):
            await discard_entries(context.s.database, NAME, [sent], by="ann", why="tidying up")
        assert await redrive_entries(context.s.database, context.s.notifier, NAME, by="ann") == 1
        context.broker.received.clear()
        await context.step()
        assert await context.states() == {"delivered": 1}
        assert [entry.message.attempts for entry in context.broker.received] == [1]


async def test_a_run_that_was_taken_over_neither_retries_nor_parks(stage: OpenStage) -> None:
    async with open_context(stage, KEEPING) as context:
        [sent] = await context.put()
        await context.step()
        async with context.s.database.transaction() as connection:
            assert (
                await settle(connection, sent, Ending.RETRY, delay_s=100, reason="the successor")
                is SettleOutcome.RECORDED
            )
            assert await settle(connection, sent, Ending.RETRY, reason="stale") is SettleOutcome.STALE
            assert await settle(connection, sent, Ending.PARKED, reason="stale") is SettleOutcome.STALE
        row = await context.row(sent)
        assert (row["state"], row["attempts"], row["last_error"]) == ("delivered", 1, "the successor")


async def test_a_settle_while_it_is_delivered_again_ends_it(stage: OpenStage) -> None:
    async with open_context(stage, KEEPING) as context:
        [sent] = await context.put()
        step = await context.stand_still()
        async with context.s.database.transaction() as connection:
            assert await settle(connection, sent) is SettleOutcome.RECORDED
        assert context.broker.resume is not None
        context.broker.resume.set()
        await step
        assert await context.states() == {}


async def test_a_park_while_it_is_delivered_again_holds(stage: OpenStage) -> None:
    async with open_context(stage, KEEPING) as context:
        [sent] = await context.put()
        step = await context.stand_still()
        async with context.s.database.transaction() as connection:
            assert await settle(connection, sent, Ending.PARKED) is SettleOutcome.RECORDED
        assert context.broker.resume is not None
        context.broker.resume.set()
        await step
        assert await context.states() == {"parked": 1}


async def test_kept_entries_are_put_back_at_any_age(stage: OpenStage) -> None:
    """Nobody has accepted an unsettled message, so repeating it does nothing twice."""
    async with open_context(stage, KEEPING) as context:
        await context.put()
        await context.step()
        await context.s.clock.advance(10 * REPEAT_FOR_S)
        assert await put_back(context.s.database, NAME, await overdue(context)) == 1
        assert await context.step() == 1
        assert await context.states() == {"delivered": 1}


async def test_an_entry_whose_message_was_settled_before_ends_without_a_second_record(stage: OpenStage) -> None:
    async with open_context(stage, KEEPING) as context:
        done, found = await context.put(2)
        await context.step()
        ids = [str(done), str(found)]
        await context.s.owner.execute(
            "insert into payonce.inbox (consumer, id) select $1, unnest($2::text[])", consumer("payments"), ids
        )
        async with context.s.database.transaction() as connection:
            assert await settle(connection, done) is SettleOutcome.GONE
        await context.s.clock.advance(LATE_S)
        assert await put_back(context.s.database, NAME, await overdue(context)) == 0
        assert await context.states() == {}, "neither comes back for ever"


async def test_a_hold_stays_when_its_entry_is_put_back(stage: OpenStage) -> None:
    async with open_context(stage, KEEPING) as context:
        [sent] = await context.put()
        await context.step()
        async with context.s.database.transaction() as connection:
            assert await hold_durable(connection, NAME, claimed(sent, token=1), LEASE_S)
        await context.s.clock.advance(LATE_S)
        assert await put_back(context.s.database, NAME, await overdue(context)) == 1
        await context.step()
        async with context.s.database.transaction() as connection:
            assert not await hold_durable(connection, NAME, claimed(sent, token=2), LEASE_S)
            assert await hold_durable(connection, NAME, claimed(sent, token=1), LEASE_S)


async def test_a_refill_has_bounds(stage: OpenStage) -> None:
    async with open_context(stage, KEEPING) as context:
        with pytest.raises(Invalid, match="limit is 0"):
            await overdue_entries(context.s.database, NAME, late_s=0, limit=0)


async def test_what_holds_a_message_keeps_everybody_else_from_settling_it(stage: OpenStage) -> None:
    async with open_context(stage, KEEPING) as context:
        [sent] = await context.put()
        await context.step()
        async with context.s.database.transaction() as connection:
            assert await hold_durable(connection, NAME, claimed(sent, token=2), LEASE_S)
        for ending in (Ending.SUCCESS, Ending.FAILED, Ending.RETRY, Ending.PARKED):
            async with context.s.database.transaction() as connection:
                assert await settle(connection, sent, ending, token=1) is SettleOutcome.STALE
        async with context.s.database.transaction() as connection:
            assert not await hold_durable(connection, NAME, claimed(sent, token=1), LEASE_S)
            assert await hold_durable(connection, NAME, claimed(sent, token=2), LEASE_S)
            assert await settle(connection, sent, token=2) is SettleOutcome.RECORDED


async def test_a_hold_ends_with_its_lease(stage: OpenStage) -> None:
    async with open_context(stage, KEEPING) as context:
        [sent] = await context.put()
        await context.step()
        async with context.s.database.transaction() as connection:
            assert await hold_durable(connection, NAME, claimed(sent, token=1), LEASE_S)
        await context.s.clock.advance_leases(LEASE_S)
        async with context.s.database.transaction() as connection:
            assert await hold_durable(connection, NAME, claimed(sent, token=2), LEASE_S)
            assert await settle(connection, sent, token=1) is SettleOutcome.STALE


async def test_a_message_that_only_its_queue_knows_gets_an_entry_before_anything_is_sent_for_it(
    stage: OpenStage,
) -> None:
    async with open_context(stage, KEEPING) as context:
        direct = claimed(Message(queue="payments").id, token=5)
        async with context.s.database.transaction() as connection:
            assert await hold_durable(connection, NAME, direct, LEASE_S)
        row = await context.row(direct.message.id)
        assert (row["state"], row["holder"], row["first_attempt_at"]) == ("delivered", 5, FIRST_AT)
        assert await standing(context, [direct.message.id]) == {direct.message.id: (State.DELIVERED, 0)}
        async with context.s.database.transaction() as connection:
            assert await settle(connection, direct.message.id, token=5) is SettleOutcome.RECORDED
        async with context.s.database.transaction() as connection:
            assert not await hold_durable(connection, NAME, direct, LEASE_S)
        assert await standing(context, [direct.message.id]) == {}


async def test_a_message_without_an_entry_is_accepted_once(stage: OpenStage) -> None:
    async with open_context(stage, KEEPING) as context:
        direct = claimed(Message(queue="payments").id)
        for expected in (SettleOutcome.RECORDED, SettleOutcome.GONE):
            async with context.s.database.transaction() as connection:
                assert await accept_without_entry(connection, NAME, direct.message) is expected
        async with context.s.database.transaction() as connection:
            assert not await hold_durable(connection, NAME, direct, LEASE_S)
            assert await settle(connection, direct.message.id, Ending.RETRY) is SettleOutcome.GONE


async def test_a_message_with_an_entry_is_not_accepted_beside_it(stage: OpenStage) -> None:
    async with open_context(stage, KEEPING) as context:
        direct = claimed(Message(queue="payments").id)
        async with context.s.database.transaction() as connection:
            assert await settle(connection, direct.message.id, Ending.RETRY) is SettleOutcome.UNKNOWN
            assert await hold_durable(connection, NAME, direct, LEASE_S)
        async with context.s.database.transaction() as connection:
            assert await accept_without_entry(connection, NAME, direct.message) is SettleOutcome.STALE


async def test_a_batch_is_settled_one_by_one(stage: OpenStage) -> None:
    async with open_context(stage, KEEPING) as context:
        done, retried, parked, released, gone = await context.put(5)
        await context.step()
        async with context.s.database.transaction() as connection:
            await settle(connection, gone)
        endings = {
            done: Ending.SUCCESS,
            retried: Ending.RETRY,
            parked: Ending.PARKED,
            released: Ending.RELEASED,
            gone: Ending.SUCCESS,
        }
        async with context.s.database.transaction() as connection:
            fates = await settle_durable(
                connection, NAME, [Settlement(claimed(each), ending) for each, ending in endings.items()]
            )
        assert fates == [SettleOutcome.RECORDED] * 4 + [SettleOutcome.GONE]
        assert await standing(context, list(endings)) == {
            retried: (State.DELIVERED, 1),
            parked: (State.PARKED, 1),
            released: (State.DELIVERED, 0),
        }


async def test_settling_looks_at_its_own_entries_alone_however_many_wait(stage: OpenStage) -> None:
    waiting, batch = 1_000, 20
    async with open_context(stage, KEEPING) as context:
        ids = await context.put(waiting)
        # The engine's own connection: its planner may neither sort nor hash.
        async with context.s.database.engine.acquire() as connection, connection.transaction():
            before = await rows_read(connection)
            settlements = [Settlement(claimed(each), Ending.SUCCESS) for each in ids[:batch]]
            assert await settle_durable(connection, NAME, settlements) == [SettleOutcome.RECORDED] * batch
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
    async with open_context(stage, KEEPING) as context:
        first, second, other = (Message(queue="payments", idempotency_key=key) for key in ("k", "k", "other"))
        async with context.s.database.transaction() as connection:
            assert await put_durable(connection, NAME, [first, second]) == [first.id, first.id]
        async with context.s.database.transaction() as connection:
            assert await put_durable(connection, NAME, [second, other]) == [first.id, other.id]
        assert await context.states() == {"waiting": 2}


async def test_a_parked_message_goes_on_when_it_is_woken(stage: OpenStage) -> None:
    async with open_context(stage, KEEPING) as context:
        [sent] = await context.put()
        await context.step()
        async with context.s.database.transaction() as connection:
            assert await wake_durable(connection, sent) is None
            await settle(connection, sent, Ending.PARKED)
        async with context.s.database.transaction() as connection:
            assert await wake_durable(connection, sent) == wake_name(NAME)
        assert await standing(context, [sent]) == {sent: (State.WAITING, 0)}
