"""Freezes, limits, leases, the audit log, the outbox and reconciliation: what is shown, and what each button does."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from payonce.engine.audit import note
from payonce.engine.controls import set_threshold
from payonce.engine.database.leases import acquire
from payonce.engine.janitors import Daily, Every, Schedule, Scheduler
from payonce.engine.messages.maintenance import Task
from payonce.engine.messages.policy import Policy
from payonce.engine.outbox import Refusal
from payonce.engine.reconcile import unmatched
from payonce.testing import OpenStage
from tests.console.visitor import Visitor, console, notes_of, visiting
from tests.engine.bank import LOSSES, SUSPENSE, Branch, open_branch
from tests.engine.controls_stage import Till, euros, open_till
from tests.engine.outbox_stage import NAME, AppContext, open_context

PAY = Policy("pay")
SOMEBODY = "operator@localhost"


@asynccontextmanager
async def till_and_visitor(stage: OpenStage) -> AsyncIterator[tuple[Till, Visitor]]:
    async with open_till(stage) as till, console(till.s) as address, visiting(address) as visitor:
        yield till, visitor


async def test_a_freeze_is_in_force_at_once_and_tells_of_a_slip_of_the_pen(stage: OpenStage) -> None:
    async with till_and_visitor(stage) as (till, visitor):
        page = await visitor.get("/freezes")
        assert "Nothing is frozen." in page.words
        made = await visitor.submit(page, "/freezes/add", vendor="bnak", why="pays twice")
        assert "of vendor bnak is in force" in made.words
        assert "no effect on record has the vendor 'bnak' so far" in made.words
        path = made.url.partition("/console")[2]
        assert "pays twice" in (await visitor.get("/freezes")).words
        lifted = await visitor.submit(made, f"{path}/lift", why="wrong name")
        assert "is lifted; waiting messages continue within a minute" in lifted.words
        assert "wrong name" in (await visitor.get(path)).words
        assert [actor for actor, _ in await notes_of(till.s, f"freeze {path.rpartition('/')[2]}")] == [SOMEBODY] * 2


async def test_a_freeze_of_an_asset_that_is_not_written_so_is_refused(stage: OpenStage) -> None:
    async with till_and_visitor(stage) as (_, visitor):
        page = await visitor.get("/freezes")
        refused = await visitor.submit(page, "/freezes/add", asset="eur", why="pays twice")
        assert "there is no asset 'eur'; did you mean EUR?" in refused.words
        assert "Nothing is frozen." in (await visitor.get("/freezes")).words


async def test_a_freeze_tells_of_sends_that_had_begun(stage: OpenStage) -> None:
    async with till_and_visitor(stage) as (till, visitor):
        [work] = await till.claim()
        till.vendor.faults.append("stop before")
        sending = asyncio.create_task(till.pay(work, "p-1", 700))
        await till.vendor.arrived.wait()
        made = await visitor.submit(await visitor.get("/freezes"), "/freezes/add", vendor="bank", why="strange")
        assert "1 sends had begun before and may still go out: 7.00 EUR" in made.words
        till.vendor.resume.set()
        await sending
        path = made.url.partition("/console")[2]
        assert "No matching send is in flight." in (await visitor.get(path)).words


async def test_a_freeze_without_a_condition_or_a_reason_is_refused(stage: OpenStage) -> None:
    async with till_and_visitor(stage) as (till, visitor):
        page = await visitor.get("/freezes")
        for form in ({"why": "all"}, {"vendor": "bank"}, {"vendor": "bank", "why": "x", "for": "soon"}):
            refused = await visitor.submit(page, "/freezes/add", **form)
            assert refused.status == 400, form
        assert await till.s.owner.fetchval("select count(*) from payonce.freezes") == 0
        everything = await visitor.submit(page, "/freezes/add", everything="yes", why="stop all", **{"for": "2h"})
        assert "of everything is in force" in everything.words


async def test_a_limit_is_set_shown_with_its_use_and_removed_in_two_steps(stage: OpenStage) -> None:
    async with till_and_visitor(stage) as (till, visitor):
        [work] = await till.claim()
        await till.pay(work, "p-1", 2_500)
        page = await visitor.get("/limits")
        assert "No limit is set" in page.words
        page = await visitor.submit(page, "/limits/set", asset="EUR", amount="100.00", window="1h", vendor="bank")
        assert "25 %" in page.words
        assert "25.00 EUR" in page.words
        number = await till.s.owner.fetchval("select id from payonce.velocity_limits")
        check = await visitor.submit(page, f"/limits/{number}/remove")
        assert "Nothing is changed yet" in check.words
        assert await till.s.owner.fetchval("select count(*) from payonce.velocity_limits") == 1
        gone = await visitor.submit(check, f"/limits/{number}/remove", sure="yes")
        assert "is removed" in gone.words
        assert await till.s.owner.fetchval("select count(*) from payonce.velocity_limits") == 0


async def test_leases_are_shown_with_their_holder(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        assert "There is no lease" in (await visitor.get("/leases")).words
        await acquire(s.database, "janitors", "machine-7:4711", 60.0)
        page = await visitor.get("/leases")
        assert "janitors held machine-7:4711 1" in page.words


async def test_schedules_are_shown_beside_what_every_worker_does_all_the_time(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        empty = await visitor.get("/schedules")
        assert "pump_delayed_queues nothing to do within" in empty.words
        assert "No schedule has run" in empty.words
        queue = await s.queue(PAY)
        await queue.log_maintenance(Task.SWEEP, 1)
        await queue.log_maintenance(Task.SWEEP, 2)
        schedules = [Schedule("nightly", PAY, every=Daily("02:00", "UTC")), Schedule("often", PAY, every=Every(900))]
        lease = await acquire(s.database, "janitors", "machine-7:4711", 60.0)
        assert lease is not None
        await Scheduler(s.database, s.feed, schedules).tick(lease)
        page = await visitor.get("/schedules")
        assert "nightly daily at 02:00 UTC" in page.words
        assert "often every 900 s" in page.words
        assert "pay 2 messages taken from dead or stopped workers worker-1" in page.words
        log = await visitor.get("/jobs?correlation_id=sweep_processing_queues")
        assert "1 message taken from dead or stopped workers" in log.words
        assert "clamp bad" not in log.text, "what was done is no error"


async def test_the_audit_log_is_filtered_and_paged(stage: OpenStage) -> None:
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        assert "Nothing has been changed yet." in (await visitor.get("/audit")).words
        async with s.database.transaction() as connection:
            for number in range(60):
                who = "ann" if number % 2 else "bob"
                await note(connection, "brakes.freeze", f"freeze {number}", f"note {number:03}", actor=who)
        first = await visitor.get("/audit")
        assert "note 059" in first.words
        assert "note 009" not in first.words
        assert "Next page" in first.words
        following = first.text.split('rel="next"')[0].rpartition('href="')[2].partition('"')[0].replace("&amp;", "&")
        second = await visitor.get(following)
        assert "note 009" in second.words
        assert "note 010" not in second.words
        only_ann = await visitor.get("/audit?actor=ann&location=brakes")
        assert "note 059" in only_ann.words
        assert "note 058" not in only_ann.words
        assert "No note matches." in (await visitor.get("/audit?actor=nobody")).words
        assert "60 notes wait for the next seal" in first.words


async def parked(context: AppContext, count: int) -> list[str]:
    ids = await context.put(count)
    for each in ids:
        context.broker.faults[each] = Refusal("no such topic, password=hunter22")
    for _ in range(context.broker.config.refusals_max):
        await context.step()
        await context.s.clock.advance(60)
    return [str(each) for each in ids]


async def test_parked_entries_are_shown_with_their_reason_and_the_ticked_ones_redriven(stage: OpenStage) -> None:
    async with open_context(stage) as context, console(context.s) as address, visiting(address) as visitor:
        first, second = await parked(context, 2)
        page = await visitor.get(f"/outbox/{NAME}")
        assert "refused 3 times: no such topic" in page.words
        assert "hunter22" not in page.text
        assert (await visitor.submit(page, f"/outbox/{NAME}/redrive")).status == 400
        check = await visitor.submit(page, f"/outbox/{NAME}/redrive", id=first)
        assert "1 parked entry of broker will be delivered again" in check.words
        done = await visitor.submit(check, f"/outbox/{NAME}/redrive", ids=check.field("ids"), sure="yes")
        assert "1 entry of broker redriven." in done.words
        assert first not in done.text
        assert second in done.text
        check = await visitor.submit(done, f"/outbox/{NAME}/redrive", all="yes")
        form = {"all": "yes", "shown": check.field("shown"), "sure": "yes"}
        done = await visitor.submit(check, f"/outbox/{NAME}/redrive", **form)
        assert "No entry is parked" in done.words


async def test_all_parked_entries_are_those_that_were_shown(stage: OpenStage) -> None:
    async with open_context(stage) as context, console(context.s) as address, visiting(address) as visitor:
        path = f"/outbox/{NAME}/redrive"
        await parked(context, 3)
        check = await visitor.submit(await visitor.get(f"/outbox/{NAME}"), path, all="yes")
        assert "3 parked entries of broker will be delivered again" in check.words
        assert "as_new" not in check.text
        form = {"all": "yes", "shown": check.field("shown"), "sure": "yes"}
        assert (await visitor.submit(check, path, **form, as_new="yes")).status == 400
        assert (await visitor.submit(check, path, all="yes", sure="yes")).status == 400
        await parked(context, 2)
        done = await visitor.submit(check, path, **form)
        assert "3 entries of broker redriven." in done.words
        assert "Redrive all 2" in done.words
        check = await visitor.submit(done, path, all="yes")
        one = re.findall(r'name="id" value="([^"]+)"', done.text)[0]
        await visitor.submit(done, path, ids=one, sure="yes")
        stale = await visitor.submit(check, path, **{**form, "shown": check.field("shown")})
        assert (stale.status, "are no longer the 2 that were shown" in stale.words) == (409, True)


async def test_entries_are_discarded_one_by_one_for_a_reason(stage: OpenStage) -> None:
    async with open_context(stage) as context, console(context.s) as address, visiting(address) as visitor:
        first, second = await parked(context, 2)
        page = await visitor.get(f"/outbox/{NAME}")
        check = await visitor.submit(page, f"/outbox/{NAME}/discard", id=first)
        assert "1 parked entry of broker will be deleted permanently" in check.words
        assert (await visitor.submit(check, f"/outbox/{NAME}/discard", ids=first, sure="yes")).status == 400
        done = await visitor.submit(check, f"/outbox/{NAME}/discard", ids=first, sure="yes", why="the topic is gone")
        assert "1 entry of broker discarded." in done.words
        assert second in done.text
        [(actor, text)] = await notes_of(context.s, first)
        assert (actor, "the topic is gone" in text) == (SOMEBODY, True)


async def test_a_relay_is_paused_and_resumed(stage: OpenStage) -> None:
    async with open_context(stage) as context, console(context.s) as address, visiting(address) as visitor:
        page = await visitor.get(f"/outbox/{NAME}")
        page = await visitor.submit(page, f"/outbox/{NAME}/pause", why="the broker moves")
        assert "Paused: the broker moves" in page.words
        assert "the broker moves" in (await visitor.get("/outbox")).words
        await context.put()
        assert await context.step() == 0
        page = await visitor.submit(page, f"/outbox/{NAME}/resume")
        assert f"{NAME} delivers again." in page.words
        assert await context.step() == 1


@asynccontextmanager
async def branch_and_visitor(stage: OpenStage) -> AsyncIterator[tuple[Branch, Visitor, str]]:
    """An item that only the bank knows of."""
    async with open_branch(stage) as b, console(b.s) as address, visiting(address) as visitor:
        b.bank.book("bank.fee", None, -700, await b.s.clock.now())
        await b.after_the_lag()
        [item] = await unmatched(b.read)
        yield b, visitor, f"/reconcile/{item.id}"


async def test_what_is_in_suspense_is_shown_with_its_age_and_explained(stage: OpenStage) -> None:
    async with branch_and_visitor(stage) as (b, visitor, path):
        page = await visitor.get("/reconcile")
        assert "-7.00 EUR" in page.words
        assert "1 items, 1 unexplained" in page.words
        assert "only theirs" in page.words
        explained = await visitor.submit(await visitor.get(path), f"{path}/explain", why="the yearly fee")
        assert "the yearly fee" in explained.words
        assert "1 items, 0 unexplained" in (await visitor.get("/reconcile")).words
        assert await b.held(SUSPENSE) == 700


async def test_an_item_is_written_off_in_two_steps(stage: OpenStage) -> None:
    async with branch_and_visitor(stage) as (b, visitor, path):
        form = {"account": LOSSES, "why": "a fee"}
        check = await visitor.submit(await visitor.get(path), f"{path}/write-off", **form)
        assert "Nothing is changed yet" in check.words
        assert await b.held(SUSPENSE) == 700
        done = await visitor.submit(check, f"{path}/write-off", **form, sure="yes")
        assert f"Written off to {LOSSES}: -7.00 EUR." in done.words
        assert (await b.held(SUSPENSE), await b.held(LOSSES)) == (0, 700)
        again = await visitor.submit(check, f"{path}/write-off", **form, sure="yes")
        assert again.status == 409


async def test_a_write_off_above_the_threshold_waits_for_a_second_person(stage: OpenStage) -> None:
    async with branch_and_visitor(stage) as (b, visitor, path):
        async with b.s.begin() as tx:
            await set_threshold(tx, euros("1.00"), "root")
        form = {"account": LOSSES, "why": "a fee"}
        check = await visitor.submit(await visitor.get(path), f"{path}/write-off", **form)
        assert "7.00 EUR is above the threshold" in check.words
        asked = await visitor.submit(check, f"{path}/write-off", **form, sure="yes")
        assert "You made this request" in asked.words
        assert "payonce users add" in asked.words
        assert "a second person must agree" in (await visitor.get(path)).words
        assert await b.held(SUSPENSE) == 700
