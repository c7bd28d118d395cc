"""Quarantine: begun by another server, a restore or a person; nothing is sent in it; released when all is explained."""

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType

import asyncpg
import pytest

from payonce.engine.controls.quarantine import (
    Quarantine,
    begin_quarantine,
    blockers,
    open_quarantine,
    release,
    widen,
)
from payonce.engine.database.identity import notice_identity
from payonce.engine.effects.declaration import SEND_MAX_S
from payonce.engine.ledger import Posting, Reference, moved
from payonce.engine.messages.transaction import begin
from payonce.engine.reconcile import Flow, explain, unmatched
from payonce.kit.outcomes import Invalid, Stale, Unavailable
from payonce.testing import OpenStage
from tests.engine.bank import LAG_S, MIRROR, PAID, PAY, SETTLED_S, BankStatement, Branch, Pay, eur, open_branch
from tests.locks import waits_or_ended

OTHER_SERVER = "update payonce.served_identity set identity = 'system 1, timeline 00000001, database 1'"


async def quarantined(b: Branch, lost_s: float = 3_600.0) -> Quarantine:
    async with begin(b.s.database, b.s.feed) as tx:
        since = await b.s.clock.now() - timedelta(seconds=lost_s)
        return await begin_quarantine(tx, "the disk was set back", "ann", since)


async def released(b: Branch, accept: str | None = None, revision: int | None = None) -> None:
    found = await open_quarantine(b.read)
    assert found is not None
    async with begin(b.s.database, b.s.feed) as tx:
        await release(tx, "ann", revision=revision or found.revision, accept_unreconciled=accept)


async def reasons(b: Branch) -> list[str]:
    found = await open_quarantine(b.read)
    assert found is not None
    return [blocker.reason for blocker in await blockers(b.read, found)]


async def message(b: Branch) -> asyncpg.Record:
    row = await b.s.owner.fetchrow("select state, attempts, last_error from payonce.messages")
    assert row is not None
    return row


async def test_the_same_server_is_no_reason(stage: OpenStage) -> None:
    async with stage() as s:
        for _ in range(2):
            assert not await notice_identity(s.database, "test")
        told = await s.owner.fetchval("select identity from payonce.served_identity")
        assert told.startswith("system ")


async def test_another_server_begins_a_quarantine_once(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await notice_identity(b.s.database, "test")
        await b.s.owner.execute(OTHER_SERVER)
        began = await asyncio.gather(*(notice_identity(b.s.database, f"process {each}") for each in range(4)))
        assert sorted(began) == [False, False, False, True]
        found = await open_quarantine(b.read)
        assert found is not None
        assert (found.revision, "was served by system 1," in found.reason) == (1, True)
        assert not await notice_identity(b.s.database, "test")


async def test_what_may_be_lost_begins_an_hour_before_the_old_server_was_last_seen(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await notice_identity(b.s.database, "test")
        seen_at = await b.s.clock.now()
        await b.s.owner.execute(OTHER_SERVER)
        await b.s.clock.advance(5 * 86_400)
        # A process that did not notice yet keeps writing; that says nothing about the old server.
        async with begin(b.s.database, b.s.feed) as tx:
            await tx.post(Posting("late", Reference("bank", "late"), moved(eur(1), MIRROR, PAID)))
        await notice_identity(b.s.database, "test")
        found = await open_quarantine(b.read)
        assert found is not None
        assert abs(seen_at - timedelta(hours=1) - found.lost_since) < timedelta(seconds=5)


async def test_nothing_is_sent_in_quarantine_and_no_attempt_is_used_up(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1")
        await quarantined(b)
        for _ in range(PAY.max_attempts or 0):
            assert await b.work() == 1
            await b.s.clock.advance(31)
        held = await message(b)
        assert (held["state"], held["attempts"]) == ("ready", 0)
        assert "is in quarantine since" in held["last_error"]
        assert "see: payonce db quarantine" in held["last_error"]
        assert (b.bank.booked, await b.states()) == ([], {})
        await released(b, "a test")
        await b.work()
        assert b.bank.times() == {"p-1:1": 1}


async def test_nothing_is_sent_again_in_quarantine_but_questions_are_asked(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1")
        await b.order("w-1", "w-2", way="wire")
        b.bank.faults = ["lost before", "lost after", "lost before"]
        await b.work()
        assert await b.states() == {"unknown": 3}
        await quarantined(b)
        await b.s.clock.advance(120)
        await b.work()
        assert await b.states() == {"unknown": 2, "performed": 1}
        assert (b.bank.times(), b.bank.fences) == ({"w-1:1": 1}, 0)
        await released(b, "a test")
        await b.s.clock.advance(60)
        await b.work()
        assert b.bank.times() == {"p-1:1": 1, "w-1:1": 1, "w-2:1": 1}


async def test_nothing_is_sent_on_a_server_that_nobody_noticed_yet(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await notice_identity(b.s.database, "test")
        await b.s.owner.execute(OTHER_SERVER)
        await b.order("p-1")
        await b.work()
        assert "is now served by" in (await message(b))["last_error"]
        assert b.bank.booked == []


async def test_a_quarantine_waits_for_intents_that_did_not_see_it(stage: OpenStage) -> None:
    """Once it has begun, every send that was not held is on record."""
    async with open_branch(stage) as b:
        async with b.s.database.transaction() as intent:
            row = await intent.fetchrow("select * from payonce.sending_state()")
            assert row is not None
            assert row["began_at"] is None
            beginning = asyncio.create_task(quarantined(b))
            assert await waits_or_ended(b.s, beginning)
        await beginning


async def test_an_intent_that_comes_while_a_quarantine_begins_waits_and_sees_it(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1")
        async with begin(b.s.database, b.s.feed) as tx:
            await begin_quarantine(tx, "the disk was set back", "ann", await b.s.clock.now())
            working = asyncio.create_task(b.work())
            await waits_or_ended(b.s, working)
        await working
        assert b.bank.booked == []


async def test_a_second_beginning_starts_the_open_one_anew(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        first = await quarantined(b, 7_200)
        await b.s.clock.advance(60)
        second = await quarantined(b, 60)
        assert (second.id, second.revision, second.lost_since) == (first.id, 2, first.lost_since)
        assert second.began_at > first.began_at


async def test_release_needs_every_statement_after_the_lag_and_every_item_explained(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.reconcile()
        b.bank.book("bank.fee", None, -7, await b.s.clock.now())
        await quarantined(b)
        assert ["was not reconciled" in reason for reason in await reasons(b)] == [True]
        await b.reconcile()
        assert any("was not reconciled" in reason for reason in await reasons(b)), "asked before the lag had passed"
        await b.s.clock.advance(SETTLED_S)
        await b.reconcile()
        assert await reasons(b) == ["1 unmatched items of bank since then are unexplained"]
        with pytest.raises(Invalid, match=r"unexplained .*accept-unreconciled"):
            await released(b)
        [item] = await unmatched(b.read)
        async with begin(b.s.database, b.s.feed) as tx:
            await explain(tx, item.id, "ann", "a fee")
        await released(b)
        assert await open_quarantine(b.read) is None


async def test_a_run_over_too_little_does_not_count(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        began = await quarantined(b)
        await b.s.clock.advance(SETTLED_S)
        await b.reconcile(since=began.lost_since + timedelta(minutes=1))
        assert len(await reasons(b)) == 1
        await b.reconcile(since=began.lost_since)
        assert await reasons(b) == []


async def test_a_run_that_was_broken_off_before_the_quarantine_does_not_go_on(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        fee = b.bank.book("bank.fee", None, -7, await b.s.clock.now() - timedelta(minutes=1))
        since = await b.s.clock.now() - timedelta(days=2)
        b.bank.breaks_at = fee.number
        with pytest.raises(Unavailable, match="broke off"):
            await b.reconcile(since=since)
        await quarantined(b)
        b.bank.asked = []
        await b.reconcile(since=since)
        assert b.bank.asked[0][0] == since


@pytest.mark.parametrize("lag_s", [0.0, LAG_S])
async def test_a_release_waits_until_what_was_sent_before_has_landed_and_is_shown(
    stage: OpenStage, lag_s: float
) -> None:
    """A send with a lost intent arrives at the end of its time-out."""
    async with open_branch(stage, lag_s=lag_s) as b:
        await b.order("w-1", way="wire")
        await quarantined(b)
        await b.s.clock.advance(lag_s + Pay.timeout_s - 1)
        await b.reconcile()
        assert ["was not reconciled" in reason for reason in await reasons(b)] == [True]
        b.bank.book("bank.wire", "w-1:1", -100, await b.s.clock.now())
        await b.s.clock.advance(SEND_MAX_S - Pay.timeout_s)
        await b.reconcile()
        assert ["was not reconciled" in reason for reason in await reasons(b)] == [True]
        await b.s.clock.advance(2)
        await b.reconcile()
        await released(b)
        await b.s.clock.advance(60)
        await b.work()
        assert (b.bank.times(), await b.paid()) == ({"w-1:1": 1}, 1)


async def test_a_run_that_broke_off_too_early_does_not_stand_for_what_was_shown_later(stage: OpenStage) -> None:
    async with open_branch(stage, lag_s=7_200.0, slice_s=600.0) as b:
        await b.order("w-1", way="wire")
        now = await b.s.clock.now()
        forgotten = b.bank.book("bank.wire", "w-1:1", -100, now - timedelta(minutes=30))
        last = b.bank.book("bank.fee", None, -1, now - timedelta(minutes=2))
        b.bank.hidden, b.bank.breaks_at = {forgotten.number}, last.number
        await quarantined(b)
        with pytest.raises(Unavailable):
            await b.reconcile()
        await b.s.clock.advance(7_200 + SEND_MAX_S)
        b.bank.hidden = set()
        await b.reconcile()
        [fee] = await unmatched(b.read)
        async with begin(b.s.database, b.s.feed) as tx:
            await explain(tx, fee.id, "ann", "a fee")
        await released(b)
        await b.s.clock.advance(60)
        await b.work()
        assert (b.bank.times()["w-1:1"], await b.paid()) == (1, 1)


async def test_a_kind_that_moves_money_and_is_not_on_its_vendors_statement_must_be_accepted(stage: OpenStage) -> None:
    class OfPayments(BankStatement):
        kinds: Mapping[str, Flow] = MappingProxyType({"bank.pay": Flow.OUT})

    async with open_branch(stage) as b:
        b.statement = OfPayments(b.bank)
        await b.order("p-1")
        await b.order("w-1", way="wire")
        await b.order("w-2", way="look", minor=0)
        await b.work()
        await quarantined(b)
        await b.s.clock.advance(SETTLED_S)
        await b.reconcile()
        for item in await unmatched(b.read):
            async with begin(b.s.database, b.s.feed) as tx:
                await explain(tx, item.id, "ann", "a wire")
        assert await reasons(b) == ["bank.wire moved money but is not looked for on the statement of bank"]
        with pytest.raises(Invalid, match="add it to the statement's kinds"):
            await released(b)
        await released(b, "looked at the bank's pages")


async def test_a_vendor_without_a_statement_must_be_accepted(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        await b.order("p-1")
        await b.work()
        await quarantined(b)
        assert await reasons(b) == ["bank has effects but no statement on which to look for them"]
        with pytest.raises(Invalid, match="needs a reason"):
            await released(b, " ")
        await released(b, "looked at the bank's pages")
        told = await b.s.owner.fetchrow("select * from payonce.audit_log where location = 'quarantine.release'")
        assert told is not None
        assert (told["severity"], told["actor"], "looked at" in told["text"]) == ("WARNING", "ann", True)


async def test_a_release_of_what_has_changed_since_is_stale(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        seen = await quarantined(b)
        await quarantined(b)
        with pytest.raises(Stale):
            await released(b, revision=seen.revision)
        await released(b)
        with pytest.raises(Invalid, match="nothing to release"):
            async with begin(b.s.database, b.s.feed) as tx:
                await release(tx, "ann", revision=2)


async def test_a_person_may_only_widen_what_is_looked_for(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        began = await quarantined(b)

        async def widened(to: datetime) -> Quarantine:
            async with begin(b.s.database, b.s.feed) as tx:
                return await widen(tx, to, "ann")

        with pytest.raises(Invalid, match="not earlier"):
            await widened(began.lost_since)
        earlier = began.lost_since - timedelta(days=1)
        assert (await widened(earlier)).lost_since == earlier
        run = await b.reconcile()
        assert run.since == earlier


FORBIDDEN = (
    "select payonce.after_restore()",
    "delete from payonce.quarantines",
    "insert into payonce.quarantines (reason, lost_since, began_at) values ('', payonce.due_now(), payonce.due_now())",
    "update payonce.quarantines set released_at = payonce.due_now(), released_by = 'nobody'",
    "update payonce.quarantines set lost_since = payonce.due_now()",
    "update payonce.served_identity set identity = payonce.server_identity()",
    "update payonce.reconcile_runs set since = '-infinity'",
    "update payonce.unmatched set amount_minor = 1",
)


@pytest.mark.parametrize("forbidden", FORBIDDEN)
async def test_services_may_not_undo_a_restore_nor_forget_a_quarantine(stage: OpenStage, forbidden: str) -> None:
    async with open_branch(stage) as b:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await b.s.database.work.execute(forbidden)


async def test_whatever_changes_a_quarantine_leaves_a_note(stage: OpenStage) -> None:
    async with open_branch(stage) as b:
        began = await quarantined(b)
        work = b.s.database.work
        await work.execute("select payonce.widen_quarantine($1, 'eve')", began.lost_since - timedelta(days=1))
        await work.execute("select payonce.release_quarantine($1, $2, 'eve', null, null)", began.id, began.revision)
        assert await open_quarantine(b.read) is not None, "it has changed since"
        await work.execute("select payonce.release_quarantine($1, $2, 'eve', null, null)", began.id, began.revision + 1)
        assert await open_quarantine(b.read) is None
        rows = await b.s.owner.fetch("select location, actor from payonce.audit_log order by id")
        assert [(row["location"], row["actor"]) for row in rows] == [
            ("quarantine.begin", "ann"),
            ("quarantine.widen", "eve"),
            ("quarantine.release", "eve"),
        ]
