"""Entries put by a transaction are delivered at least once, and one bad entry delays no other."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payonce.engine.messages.model import DELAY_MAX_S, Message
from payonce.engine.messages.policy import Exponential
from payonce.engine.messages.transaction import Tx, begin
from payonce.engine.outbox import (
    Deferred,
    Delivered,
    Entry,
    Refusal,
    RelayConfig,
    State,
    declare_relays,
    overdue_entries,
    put_back,
    put_out,
)
from payonce.engine.outbox.model import DELAY_LEAST_S, TRANSITIONS, Claimed, decide
from payonce.kit.outcomes import Invalid, NotSent, Unavailable
from payonce.testing import OpenStage
from tests.engine.outbox_stage import BACKOFF_S, CONFIG, NAME, AppContext, Broker, open_context
from tests.plans import EMPTY, index_entries_read, plan_while_empty

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def test_what_was_put_is_delivered_once_and_gone(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        ids = await context.put(25)
        while await context.step():
            pass
        assert context.broker.times() == dict.fromkeys(ids, 1)
        assert context.broker.calls == [10, 10, 5]
        assert await context.states() == {}


async def test_what_was_rolled_back_is_never_delivered(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        async with context.s.database.work.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            await Tx(connection, context.s.feed).publish("payments", {}, to=NAME)
            await transaction.rollback()
        assert await context.step() == 0


async def test_an_uncommitted_entry_holds_up_no_later_one(stage: OpenStage) -> None:
    """There is no cursor that could pass it: it is delivered when it commits, however late."""
    async with open_context(stage) as context:
        async with begin(context.s.database, context.s.feed) as tx:
            early = await tx.publish("payments", {}, to=NAME)
            [late] = await context.put()
            assert await context.step() == 1
            assert set(context.broker.times()) == {late}
        assert await context.step() == 1
        assert set(context.broker.times()) == {early, late}


async def test_an_event_carries_its_envelope_and_the_trace_of_its_transaction(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        async with begin(context.s.database, context.s.feed, "t-1") as tx:
            payload = {"wei": 123456789012345678901234567890, "ö": [None, True]}
            sent = await tx.publish("payments", payload, to=NAME, action="paid", key="k", correlation_id="c", lane="x")
        await context.step()
        [entry] = context.broker.received
        message = entry.message
        assert (message.id, message.queue, message.action, message.payload) == (sent, "payments", "paid", payload)
        assert (message.trace, message.idempotency_key, message.correlation_id) == ("t-1", "k", "c")
        assert (message.lane, message.attempts, message.created_at) == ("x", 0, entry.ready_at)


async def test_a_whole_envelope_survives(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        now = await context.s.clock.now()
        message = Message(queue="payments", created_at=now, attempts=3, max_attempts=9, extra={"schema_version": 1})
        async with begin(context.s.database, context.s.feed) as tx:
            await put_out(tx.connection, NAME, [message])
        await context.step()
        assert [entry.message for entry in context.broker.received] == [message]


async def test_an_entry_for_a_relay_that_nobody_declared_is_refused(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        with pytest.raises(Invalid, match="there is no relay 'brokr'; known are: broker"):
            async with begin(context.s.database, context.s.feed) as tx:
                await tx.publish("payments", {}, to="brokr")
        assert await context.states() == {}


async def test_one_message_goes_to_two_relays_and_twice_to_neither(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        other = Broker("other")
        await declare_relays(context.s.database, [other])
        message = Message(queue="payments")
        async with begin(context.s.database, context.s.feed) as tx:
            for relay in (NAME, "other", NAME):
                assert await put_out(tx.connection, relay, [message]) == [message.id]
        await context.step()
        await AppContext(context.s, other).step()
        assert context.broker.times() == other.times() == {message.id: 1}


async def test_nothing_is_delivered_before_it_falls_due(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        await context.put(delay_s=60)
        await context.s.clock.advance(59)
        assert await context.step() == 0
        assert await context.s.clock.next_due() == await context.s.clock.now() + timedelta(seconds=1)
        await context.s.clock.advance(1)
        assert await context.step() == 1


async def test_a_relay_that_keeps_delays_is_given_them_ahead(stage: OpenStage) -> None:
    async with open_context(stage, replace(CONFIG, ahead_s=3_600)) as context:
        now = await context.s.clock.now()
        await context.put(delay_s=3_000)
        await context.put(delay_s=4_000)
        assert await context.step() == 1
        assert [entry.ready_at - now for entry in context.broker.received] == [timedelta(seconds=3_000)]
        await context.s.clock.advance(400)
        assert await context.step() == 1


async def test_being_put_off_backs_off_and_has_no_limit(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        [put_off] = await context.put()
        context.broker.faults[put_off] = Deferred("busy, api_key=abcdef123456")
        for tries in range(1, 3 * CONFIG.refusals_max):
            assert await context.step() == 1
            assert await context.step() == 0
            row = await context.row(put_off)
            assert (row["state"], row["tries"], row["refusals"]) == ("waiting", tries, 0)
            assert row["last_error"] == "busy, api_key=[redacted]"
            await context.s.clock.advance(BACKOFF_S - 1)
            assert await context.step() == 0
            await context.s.clock.advance(1)
        context.broker.faults[put_off] = Deferred("busy", after_s=3)
        await context.step()
        await context.s.clock.advance(3)
        context.broker.faults.clear()
        assert await context.step() == 1
        assert context.broker.times() == {put_off: 1}


async def test_a_refused_entry_is_parked_after_its_attempts_and_holds_up_no_other(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        refused, *others = await context.put(5)
        context.broker.faults[refused] = Refusal("too large, password=hunter22")
        for tries in range(CONFIG.refusals_max):
            assert await context.states() == {"waiting": 5 if tries == 0 else 1}
            await context.step()
            await context.s.clock.advance(BACKOFF_S)
        assert await context.step() == 0
        row = await context.row(refused)
        assert row["state"] == "parked"
        assert row["last_error"] == "refused 3 times: too large, password=[redacted]"
        assert context.broker.times() == dict.fromkeys(others, 1)


async def test_an_entry_that_breaks_its_batch_is_found_and_parked_alone(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        ids = await context.put(5)
        poison = ids[2]
        context.broker.faults[poison] = KeyError("amount")
        for _ in range(CONFIG.refusals_max + 1):
            await context.step()
            await context.s.clock.advance(BACKOFF_S)
        # The first two of the failed batch were received before it failed: at least once.
        assert set(context.broker.times()) == set(ids) - {poison}
        assert context.broker.calls[:6] == [5, 1, 1, 1, 1, 1]
        assert await context.states() == {"parked": 1}
        assert (await context.row(poison))["last_error"] == "refused 3 times: KeyError: 'amount'"


async def test_suspects_do_not_hold_up_those_that_come_after_them(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        ids = await context.put(10)
        context.broker.faults[ids[0]] = KeyError("amount")
        await context.step()
        await context.s.clock.advance(BACKOFF_S)
        later = await context.put(10)
        await context.step()
        assert set(later) <= set(context.broker.times())


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), Unavailable("away"), NotSent("429"), TimeoutError()])
async def test_a_broker_that_is_away_makes_nobody_suspect_and_parks_nothing(stage: OpenStage, error: Exception) -> None:
    async with open_context(stage) as context:
        ids = await context.put(5)
        context.broker.away = error
        for _ in range(3 * CONFIG.refusals_max):
            assert await context.step() == 5
            await context.s.clock.advance(BACKOFF_S)
        context.broker.away = None
        assert await context.step() == 5
        assert context.broker.times() == dict.fromkeys(ids, 1)


async def test_a_relay_that_answers_for_too_few_is_not_believed(stage: OpenStage) -> None:
    class Short(Broker):
        async def deliver(self, entries: object) -> list[Delivered]:
            return [Delivered()]

    async with open_context(stage) as context:
        context.broker = Short()
        await context.put(3)
        await context.step()
        assert await context.states() == {"waiting": 3}


async def test_a_delivery_that_hangs_is_broken_off_within_the_lease(stage: OpenStage) -> None:
    async with open_context(stage, replace(CONFIG, timeout_s=0.01)) as context:
        await context.put()
        context.broker.resume = asyncio.Event()
        assert await context.step() == 1
        assert await context.states() == {"waiting": 1}


async def test_an_entry_that_cannot_be_read_is_parked_and_holds_up_no_other(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        broken, *others = await context.put(3)
        await context.s.owner.execute("update payonce.outbox set extra = '[1e999]' where id = $1", broken)
        await context.s.owner.execute(
            "update payonce.outbox set payload = '{\"a\": 1e9999999}' where id = $1", others[0]
        )
        await context.step()
        assert set(context.broker.times()) == set(others)
        assert "cannot be read" in (await context.row(broken))["last_error"]


async def test_a_changed_relay_is_told_of_and_stays_paused(stage: OpenStage) -> None:
    async with open_context(stage) as context:
        await context.s.owner.execute("update payonce.relays set paused = true")
        await declare_relays(context.s.database, [Broker(config=RelayConfig(keeps=True, ahead_s=5))])
        [row] = await context.s.owner.fetch("select keeps, ahead_s, paused from payonce.relays where name = $1", NAME)
        assert tuple(row) == (True, 5, True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0},
        {"batch": 10**6},
        {"timeout_s": 30, "lease_s": 30},
        {"ahead_s": -1},
        {"refusals_max": 0},
        {"lease_s": 1e9},
    ],
)
def test_senseless_terms_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(Invalid):
        RelayConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a b", "*", "ö", "x" * 300])
async def test_a_senseless_name_is_refused(stage: OpenStage, name: str) -> None:
    async with stage() as s:
        with pytest.raises(Invalid, match="relay name"):
            await declare_relays(s.database, [Broker(name)])


ANSWERS = st.one_of(
    st.just(Delivered()),
    st.builds(Refusal, st.text()),
    st.builds(Deferred, st.text(), st.none() | st.floats(allow_nan=False)),
)


@given(answer=ANSWERS, tries=st.integers(0, 10**6), refusals=st.integers(0, 5), keeps=st.booleans())
def test_every_answer_leads_to_a_state_that_may_follow_a_lease(
    answer: Delivered | Refusal | Deferred, tries: int, refusals: int, keeps: bool
) -> None:
    config = RelayConfig(keeps=keeps, backoff=Exponential(1.0, 2.0, 300.0))
    claimed = Claimed(Entry(Message(queue="q", id=UUID(int=1)), NOW, tries), 1, refusals, False)
    decided = decide(config, claimed, answer)
    assert decided.to is None or decided.to in TRANSITIONS[State.LEASED]
    assert (decided.to is None) == (isinstance(answer, Delivered) and not keeps)
    assert decided.to is not State.PARKED or isinstance(answer, Refusal)
    assert decided.to is not State.WAITING or DELAY_LEAST_S <= decided.delay_s <= DELAY_MAX_S


@EMPTY
async def test_entries_are_found_among_many_by_plans_of_an_empty_table(stage: OpenStage, analysed: bool) -> None:
    """Claimed, deferred, left by a dead relay, delivered and recorded, beside thousands of later entries."""
    # About 20 are read per message, and more while autovacuum's snapshot keeps dead entries; one scan of the others
    # would take 300.
    at_once, others, read_max = 10, 3_000, 60

    async def hand_over(context: AppContext) -> None:
        ids = await context.put(at_once)
        context.broker.faults = {number: Deferred("busy", 0.0) for number in ids}
        await context.step()
        context.broker.faults = {}
        await context.s.clock.advance(BACKOFF_S)
        await context.die()
        await context.let_lease_end()
        await context.step()
        assert set(ids) <= context.broker.times().keys()

    async with open_context(stage) as context:
        await plan_while_empty(context.s, "outbox", lambda: hand_over(context), analysed)
        await context.put(others, delay_s=86_400)
        read = await index_entries_read(context.s, "outbox", lambda: hand_over(context))
        assert read <= at_once * read_max, f"{read} entries of indexes were read for {at_once} messages"


async def test_what_the_other_side_lost_is_found_among_many_as_well(stage: OpenStage) -> None:
    """Put back, beside thousands of delivered entries that fall due later."""
    at_once, others, read_max = 10, 3_000, 10

    async def read_for_some(context: AppContext) -> int:
        await context.put(at_once)
        while await context.step():
            pass
        lost = await overdue_entries(context.s.database, NAME, late_s=0.0, limit=at_once)

        async def act() -> None:
            assert await put_back(context.s.database, NAME, lost) == at_once

        return await index_entries_read(context.s, "outbox", act)

    async with open_context(stage, replace(CONFIG, keeps=True)) as context:
        await read_for_some(context)
        ids = await context.put(others, delay_s=86_400)
        await context.s.owner.execute("update payonce.outbox set state = 'delivered' where id = any($1)", ids)
        read = await read_for_some(context)
        assert read <= at_once * read_max, f"{read} entries of indexes were read for {at_once} messages"
