"""Decisions about payouts in the console: only what is safe is offered, and done once it is sure, by whom it takes."""

import re
from typing import Any

import pytest

from payonce.engine.controls import preview, set_threshold
from payonce.engine.operators import Role
from payonce.kit.outcomes import Invalid
from payonce.services.payouts import ledger
from payonce.services.payouts.console import payout as payouts_deciding
from payonce.services.payouts.decisions import wallet_limits
from payonce.services.payouts.decisions.payouts import Decision, Verdict, decision_action
from payonce.services.payouts.model import Payout, State
from payonce.services.payouts.store import timeline
from payonce.testing import OpenStage, Servers
from tests.ablations import Ablations, cases, missed, patched
from tests.console.payouts_samples import (
    OTHER_ADDRESS,
    REFUSED_ADDRESS,
    above_the_limit,
    choose,
    confirm,
    held,
    offered,
    open_console,
    order,
)
from tests.console.visitor import give_login, notes_of, visiting
from tests.services.payouts.hostpay_stage import House, usdt

SOMEBODY = "operator@localhost"


@pytest.fixture(scope="session")
def servers(shared_servers: Servers) -> Servers:
    return shared_servers


async def test_a_held_payout_goes_on_to_a_new_address(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        payout = await held(house, trace="trace-1")
        page = await visitor.get(f"/payouts/{payout.id}")
        assert "Ask the client for an address of that network" in page.words
        assert offered(page) == {"release", "readdress", "refund", "reject"}
        check = await choose(visitor, payout, Verdict.READDRESS, address=OTHER_ADDRESS)
        assert "Nothing is changed yet." in check.words
        assert f"From {REFUSED_ADDRESS} to {OTHER_ADDRESS}" in check.words
        assert await house.state(payout) is State.HELD
        done = await confirm(visitor, payout, check)
        assert "The payout is priced." in done.words
        await house.run()
        assert await house.state(payout) is State.FINISHED
        assert (await house.swap(payout)).address == OTHER_ADDRESS
        told = [(actor, text) for actor, text in await notes_of(house.s, payout.id) if actor == SOMEBODY]
        assert [(actor, "the client asked" in text) for actor, text in told] == [(SOMEBODY, True)]
        traces = await house.s.owner.fetch(
            "select distinct trace_id from payonce.job_logs where correlation_id = $1", payout.id
        )
        assert [row["trace_id"] for row in traces] == ["trace-1"], "what follows belongs to the same timeline"


async def test_a_decision_about_what_has_changed_meanwhile_does_nothing(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        payout = await held(house)
        check = await choose(visitor, payout, Verdict.REFUND)
        await house.s.clock.advance(1)
        other = await choose(visitor, payout, Verdict.READDRESS, address=OTHER_ADDRESS)
        assert (await confirm(visitor, payout, other)).status == 200
        stale = await confirm(visitor, payout, check)
        assert (stale.status, "has changed since you loaded it" in stale.words) == (409, True)
        assert await house.state(payout) is State.PRICED


async def test_what_is_typed_wrong_is_told_beside_the_form_and_changes_nothing(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        payout = await held(house)
        path = f"/payouts/{payout.id}/decide"
        page = await visitor.get(f"/payouts/{payout.id}")
        good = {"verdict": "readdress", "seen": page.field("seen"), "why": "x", "address": OTHER_ADDRESS, "sure": "yes"}
        for wrong, said in (
            ({"verdict": "pay"}, "the decision is 'pay'"),
            ({"seen": ""}, "lacks the payout's revision"),
            ({"why": ""}, "give one of 1 to"),
            ({"address": ""}, "the new address is missing"),
            ({"address": "0xnot"}, "is not an address of the network btc"),
            ({"verdict": "hold"}, "is held; hold requires"),
        ):
            refused = await visitor.submit(page, path, **{**good, **wrong})
            assert (refused.status, "Nothing was changed" in refused.words, said in refused.words) == (400, True, True)
        assert await house.state(payout) is State.HELD


async def test_a_refund_undoes_the_books_and_a_rejection_keeps_the_fee(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        back, gone = await held(house, 1), await held(house, 2)
        done = await confirm(visitor, back, await choose(visitor, back, Verdict.REFUND))
        assert "The payout is refunded." in done.words
        await confirm(visitor, gone, await choose(visitor, gone, Verdict.REJECT))
        assert [await house.state(each) for each in (back, gone)] == [State.REFUNDED, State.REJECTED]
        fees = await house.s.owner.fetchval(
            "select sum(l.minor) from payonce.posting_lines l join payonce.accounts a on a.id = l.account_id "
            "where a.path = $1",
            ledger.FEES,
        )
        assert int(fees) == -usdt("3").minor
        assert offered(await visitor.get(f"/payouts/{back.id}")) == set()


async def test_what_is_offered_is_what_would_be_carried_out(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        done = await order(house, 1)
        await house.run()
        waits = await house.waiting_for_hostpay(2)
        kept = await house.waiting_for_hostpay(3)
        await confirm(visitor, kept, await choose(visitor, kept, Verdict.HOLD))
        payouts = [done, waits, kept, await order(house, 4), await held(house, 5), await above_the_limit(house, 6)]
        assert {await house.state(each) for each in payouts} >= {State.FINISHED, State.HELD}
        for payout in payouts:
            page = await visitor.get(f"/payouts/{payout.id}")
            accepted = await _accepted(house, payout)
            if "Waits for an approver" in page.words:
                assert offered(page) == set()
            else:
                assert offered(page) == accepted, (await house.state(payout), payout.payment_id)


async def _accepted(house: House, payout: Payout) -> set[str]:
    found = set()
    now = await house.payout(payout)
    for verdict in Verdict:
        asked = Decision(payout_id=now.id, seen=now.revision, verdict=verdict, note="x", address=OTHER_ADDRESS)
        try:
            async with house.s.begin() as tx:
                await preview(tx, decision_action(house.s.admin), asked, "ann")
        except Invalid:
            continue
        found.add(verdict.value)
    return found


async def test_above_a_threshold_a_second_person_decides(stage: OpenStage) -> None:
    async with (
        open_console(stage) as (house, address),
        visiting(address) as ann,
        visiting(address) as bob,
    ):
        payout = await held(house)
        async with house.s.begin() as tx:
            await set_threshold(tx, usdt("50"), "root")
        await give_login(house.s, "ann", Role.APPROVER)
        await give_login(house.s, "bob", Role.APPROVER)
        await ann.log_in("ann")
        await bob.log_in("bob")
        check = await choose(ann, payout, Verdict.REFUND)
        assert "97.000000 USDT is above the threshold" in check.words
        asked = await confirm(ann, payout, check)
        assert "You made this request" in asked.words
        path = asked.url.partition("/console")[2]
        refused = await ann.submit(asked, f"{path}/grant")
        assert refused.status >= 400
        assert await house.state(payout) is State.HELD
        page = await bob.get(f"/payouts/{payout.id}")
        assert "Waits for a second person" in page.words
        assert offered(page) == set()
        granted = await bob.submit(await bob.get(path), f"{path}/grant", why="seen")
        assert "is granted and executed" in granted.words
        assert f"/console/payouts/{payout.id}" in granted.text
        assert await house.state(payout) is State.REFUNDED


async def test_a_payment_above_the_wallets_limit_is_approved(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        payout = await above_the_limit(house)
        page = await visitor.get(f"/payouts/{payout.id}")
        assert "Waits for an approver" in page.words
        assert "is above the wallet's limit of 0.010000000000000000 ETH per payment" in page.words
        [number] = re.findall(r"/console/approvals/(\d+)", page.text)
        approval = await visitor.get(f"/approvals/{number}")
        assert f"/console/payouts/{payout.unique_id}" in approval.text
        granted = await visitor.submit(approval, f"/approvals/{number}/grant", why="agreed with ann")
        assert "is granted and executed" in granted.words
        await house.run()
        assert await house.state(payout) is State.FINISHED
        assert len(house.transfers()) == 1


async def test_a_viewer_sees_no_form(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        payout = await held(house)
        await give_login(house.s, "vic", Role.VIEWER)
        await visitor.log_in("vic")
        page = await visitor.get(f"/payouts/{payout.id}")
        assert "You are viewer; an operator decides." in page.words
        assert f"/payouts/{payout.id}/decide" not in page.text
        refused = await visitor.submit(page, f"/payouts/{payout.id}/decide", verdict="refund", why="x", sure="yes")
        assert refused.status == 403
        assert await house.state(payout) is State.HELD


async def test_the_wallets_limits_are_lowered_by_one_person_and_raised_by_two(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        path, form = "/vendors/wallet-limits", {"per_payment": "2", "per_day": "10", "why": "the new policy"}
        check = await visitor.submit(await visitor.get("/vendors"), path, **form)
        assert "Nothing is changed yet." in check.words
        assert "instead of any amount per payment and any amount per day" in check.words
        done = await visitor.submit(check, path, **form, sure="yes")
        assert "2.000000000000000000 ETH per payment, 10.000000000000000000 ETH per day" in done.words
        for more in ({"per_payment": "2.5"}, {"per_day": ""}):
            check = await visitor.submit(done, path, **{**form, **more})
            assert "only after a second person agrees: it raises the amount that the wallet pays" in check.words
        asked = await visitor.submit(check, path, **{**form, "per_day": ""}, sure="yes")
        assert "You made this request" in asked.words
        page = await visitor.get("/vendors")
        assert "10.000000000000000000 ETH per day" in page.words
        assert "Open approval" in page.words
        for wrong in ({"per_payment": "-1"}, {"per_day": "much"}, {"why": ""}):
            assert (await visitor.submit(page, path, **{**form, **wrong})).status == 400, wrong
        said = [actor for actor, text in await notes_of(house.s, "ETH") if text.startswith("the wallet pays")]
        assert said == [SOMEBODY], "only the first was done"


async def test_an_effect_that_nobody_knows_the_end_of_is_asked_about_first(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        payout = await held(house)
        await house.s.owner.execute("update payonce.effects set state = 'review', review_cause = 'orphaned'")
        effect_id = await house.s.owner.fetchval("select id from payonce.effects")
        page = await visitor.get(f"/payouts/{payout.id}")
        assert f"It is unknown whether changenow.create {payout.unique_id}/1/1:1 happened." in page.words
        assert f"/console/effects/{effect_id}" in page.text


def everything(payout: Payout, swaps: Any) -> list[Verdict]:
    return list(Verdict)


async def nobody_waits(*_: Any) -> None:
    return None


ABLATIONS: Ablations = {
    "only safe decisions": (
        patched(timeline, "available_verdicts", everything),
        [test_what_is_offered_is_what_would_be_carried_out],
    ),
    "a second person for a higher limit": (
        patched(wallet_limits, "_looser", lambda was, to: False),
        [test_the_wallets_limits_are_lowered_by_one_person_and_raised_by_two],
    ),
    "an open question keeps others out": (
        patched(payouts_deciding, "_waiting", nobody_waits),
        [test_above_a_threshold_a_second_person_decides],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_the_safeguard_a_test_fails(stage: OpenStage, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, stage)
