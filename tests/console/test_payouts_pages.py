"""Payouts in the console: what is found, shown and added up, and what is said where there is nothing."""

import re
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from payonce.kit.money import Amount
from payonce.services.payouts.console import payout as payouts_deciding
from payonce.services.payouts.decisions.payouts import Verdict
from payonce.services.payouts.model import ETH, Hold, State
from payonce.services.payouts.store import queries
from payonce.services.payouts.store.lookup import waiting_payouts
from payonce.testing import Clock, OpenStage, Servers
from payonce.testing.faults import Fault
from tests.console.payouts_samples import (
    ACTIONS,
    OTHER_ADDRESS,
    choose,
    confirm,
    held,
    multiply,
    offered,
    open_console,
    order,
    rows_of,
)
from tests.console.visitor import console, visiting
from tests.services.payouts.hostpay_stage import BTC_CLIENT, House, eth
from tests.services.payouts.payouts_stage import TO_BTC, open_office

SOMEBODY = "operator@localhost"


@pytest.fixture(scope="session")
def servers(shared_servers: Servers) -> Servers:
    return shared_servers


async def test_without_tables_the_pages_say_so_and_a_form_is_refused(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        await house.s.owner.execute("drop schema payouts cascade")
        for path in ("/payouts", "/payouts/days", "/payouts/accumulating", "/payouts/some-id"):
            page = await visitor.get(path)
            assert (page.status, "This database has no payouts." in page.words) == (200, True), path
        refused = await visitor.submit(page, "/payouts/some-id/decide", verdict="hold")
        assert (refused.status, "this database has no payouts" in refused.words) == (400, True)
        assert "Host wallet" not in (await visitor.get("/vendors")).words


@dataclass
class GoesOnMeanwhile:
    """Reads, and lets what waits for a person go on after each look at it."""

    house: House

    async def fetch(self, sql: str, /, *arguments: Any) -> list[Any]:
        return list(await self._after(sql, await self.house.s.read.fetch(sql, *arguments)))

    async def fetchrow(self, sql: str, /, *arguments: Any) -> Any:
        return await self._after(sql, await self.house.s.read.fetchrow(sql, *arguments))

    async def fetchval(self, sql: str, /, *arguments: Any) -> Any:
        return await self._after(sql, await self.house.s.read.fetchval(sql, *arguments))

    async def _after(self, sql: str, found: Any) -> Any:
        if "'review'" in sql:
            await self.house.s.owner.execute(
                "update payouts.payouts set state = 'rejected', hold = null, held_from = null"
            )
        return found


async def test_the_last_payout_that_waits_may_go_on_while_it_is_counted(stage: OpenStage) -> None:
    async with open_console(stage) as (house, _):
        await held(house)
        [card] = await waiting_payouts(GoesOnMeanwhile(house))
        assert card.count == 1
        assert card.cause
        assert await waiting_payouts(house.s.read) == []


async def test_a_payment_that_waits_for_the_wallet_says_so_on_its_page(stage: OpenStage) -> None:
    async with open_console(stage, opening=eth("0.01")) as (house, address), visiting(address) as visitor:
        payout = await order(house)
        await house.run(1_200.0)
        said = (await visitor.get(f"/payouts/{payout.id}")).words
        assert "Part 1 is not paid yet: the wallet" in said
        assert "top it up" in said
        house.chain.arrive(house.wallet.address, eth("5"), "top-up")
        await house.run()
        assert "is not paid yet" not in (await visitor.get(f"/payouts/{payout.id}")).words


def shown_as(amount: Amount) -> str:
    return f"{amount.to_decimal():.18f} ETH"


async def test_what_accumulates_is_shown_by_client_with_what_is_missing(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        assert "No payouts are accumulating." in (await visitor.get("/payouts/accumulating")).words
        house.changenow.set_range(TO_BTC, Decimal("0.01"), None)
        first = await order(house, 1, price="10")
        await house.run()
        await house.s.clock.advance(86_400)
        second = await order(house, 2, price="10")
        await order(house, 3, price="8", address=OTHER_ADDRESS)
        await house.run()
        worth = [(await house.payout(each)).value for each in (first, second)]
        assert None not in worth
        both = sum(each.minor for each in worth if each is not None)
        page = await visitor.get("/payouts/accumulating")
        assert page.words.count(shown_as(eth("0.01"))) == 2, "the minimum of both clients"
        for value in (both, eth("0.01").minor - both):
            assert shown_as(Amount(value, ETH)) in page.words
        assert f"{both * 100 // eth('0.01').minor} %" in page.words
        assert page.words.index(BTC_CLIENT) < page.words.index(OTHER_ADDRESS), "who waits longest comes first"
        listed = await visitor.get(f"/payouts?state=accumulating&currency=btc&network=btc&wallet={BTC_CLIENT}")
        assert set(rows_of(listed)) == {first.id, second.id}


async def test_a_minimum_that_nobody_tells_is_not_made_up(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        house.changenow.set_range(TO_BTC, Decimal("0.01"), None)
        await order(house, 1, price="10")
        await house.run()
        house.changenow.switch(TO_BTC, active=False)
        page = await visitor.get("/payouts/accumulating")
        assert page.status == 200
        assert "unknown" in page.words


async def test_an_empty_list_says_what_comes_next(stage: OpenStage) -> None:
    async with open_console(stage) as (_, address), visiting(address) as visitor:
        assert "No payout has been ordered yet." in (await visitor.get("/payouts")).words
        assert "No payout matches." in (await visitor.get("/payouts?channel=-1")).words
        assert "No payout was ordered within 30d." in (await visitor.get("/payouts/days")).words
        assert (await visitor.get("/payouts/nobody")).status == 404


async def test_every_filter_finds_its_payout_and_only_that(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        wanted = await order(house, 1)
        await house.run()
        await house.s.clock.advance(3_600)
        others = [await held(house, 2), await house.order(3, direct=True)]
        swap = await house.swap(wanted)
        hash_ = await house.s.owner.fetchval("select hash from payouts.wallet_attempts")
        for query in (
            "state=finished",
            f"wallet={BTC_CLIENT}",
            "channel=-1001",
            "user=7000000001",
            "reference=pay-1",
            f"reference={wanted.unique_id.lower()}",
            f"reference={wanted.id}",
            f"reference={swap.cn_api_id}",
            f"reference={swap.id}",
            f"reference={hash_}",
            f"until={others[0].created_at.isoformat()[:19]}",
        ):
            page = await visitor.get(f"/payouts?{query.replace('+', '%2B')}")
            assert rows_of(page) == [wanted.id], query
        assert set(rows_of(await visitor.get("/payouts?currency=BTC&network=btc"))) == {wanted.id, others[0].id}
        assert set(rows_of(await visitor.get("/payouts"))) == {wanted.id, *(each.id for each in others)}
        for query in ("user=abc", "user=9223372036854775808", "state=gone", "since=yesterday"):
            assert (await visitor.get(f"/payouts?{query}")).status == 400, query


async def test_totals_are_by_state_within_the_other_filters(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        await order(house, 1)
        await house.run()
        for number in (2, 3):
            await held(house, number)
        page = await visitor.get("/payouts?state=finished")
        assert "All 3" in page.words
        assert "Finished 1" in page.words
        assert "Held 2" in page.words
        assert 'title="200.000000 USDT"' in page.text
        narrowed = await visitor.get("/payouts?channel=-1002")
        assert "All 1 Held or in review 1 Held 1" in narrowed.words


async def test_the_overview_is_not_quiet_while_a_payout_waits_for_a_person(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        assert "All quiet" in (await visitor.get("/")).words
        await held(house)
        page = await visitor.get("/")
        assert "All quiet" not in page.words
        assert "Payouts held or in review 1" in page.words
        assert "/console/payouts?state=with_people" in page.text


async def test_the_card_of_65_payouts_leads_to_65_and_says_why(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        await held(house)
        await multiply(house, 64)
        await house.s.owner.execute(
            "update payouts.payouts set state = 'review', reason = 'the exchange is away: ' || id "
            "where payment_id like 'copy-%' and substr(payment_id, 6)::int > 4"
        )
        page = await visitor.get("/")
        assert re.search(r"Payouts held or in review 65 .{1,60} the exchange is away: copy-\d+", page.words)
        listed = await visitor.get("/payouts?state=with_people")
        assert "Held or in review 65 Held 5 Review 60" in listed.words
        following = re.search(r'<a href="([^"]+)" rel="next"', listed.text)
        assert following
        rest = await visitor.get(following[1].replace("&amp;", "&"))
        assert len({*rows_of(listed), *rows_of(rest)}) == 65


async def test_pages_of_a_long_list_show_each_payout_once(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        await held(house)
        await multiply(house, 119)
        # Of the same moment, too, none is lost between two pages.
        await house.s.owner.execute("update payouts.payouts set created_at = $1", await house.s.clock.now())
        seen: list[str] = []
        path = "/payouts?state=held"
        while path:
            page = await visitor.get(path)
            seen += rows_of(page)
            found = re.search(r'<a href="([^"]+)" rel="next"', page.text)
            path = found[1].replace("&amp;", "&") if found else ""
        assert (len(seen), len(set(seen))) == (120, 120)
        assert "No more rows" in page.words


async def test_a_finished_payout_shows_its_whole_way_with_exact_amounts(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        payout = await order(house, trace="trace-1")
        await house.run()
        now, swap = await house.payout(payout), await house.swap(payout)
        [transfer] = house.transfers()
        page = await visitor.get(f"/payouts/{payout.unique_id}")
        assert now.value is not None
        for text in (
            "finished",
            "100.000000 USDT",
            "3.000000 USDT",
            "97.000000 USDT",
            f"{now.value.to_text()} ETH",
            BTC_CLIENT,
            "97.000000 USDT is worth",
            f"exchange {swap.cn_api_id}",
            f"hostpay is triggered to pay {swap.payin_address}",
            transfer.hash,
            f"in block {transfer.block_number}",
            "payouts/fees",
            "payouts/at_changenow",
            "changenow.create",
            "gcsplit-usdt-eth-estimate-queue",
            "pay-1",
        ):
            assert text in page.words, text
        assert offered(page) == set()
        words = page.words
        steps = ["paid for channel", "is worth", "hostpay is triggered", "nonce 0, attempt 1", "in block"]
        assert sorted(steps, key=words.index) == steps, "in time order"
        assert "Follow the trace" in words
        assert "trace-1" in (await visitor.get("/trace?id=trace-1")).words


async def until_noon(clock: Clock) -> None:
    """So that no midnight falls between the steps of a test of days."""
    now = await clock.now()
    await clock.advance((now.replace(hour=12) + timedelta(days=1) - now).total_seconds())


async def test_a_day_adds_up_what_came_in_and_what_is_kept(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        await until_noon(house.s.clock)
        await order(house, 1)
        await house.run()
        back = await held(house, 2, price="50", fee="1.5")
        await held(house, 3, price="25.000001", fee="0.750001")
        await confirm(visitor, back, await choose(visitor, back, Verdict.REFUND))
        page = await visitor.get("/payouts/days?window=7d")
        assert "Volume 125.000001 USDT" in page.words
        assert "Fee income 3.750001 USDT" in page.words
        assert "3 1 0 1 1 125.000001 USDT 3.750001 USDT" in page.words
        found = await queries.days(house.s.read, 7)
        assert [each.received for each in found] == [0, 0, 0, 0, 0, 0, 3]
        assert (await visitor.get("/payouts/days?window=year")).status == 400


async def test_vendors_are_shown_with_what_they_lost_and_what_is_paused(stage: OpenStage) -> None:
    lost = {("POST /v2/exchange", 1): Fault.ANSWER_LOST}

    class Lossy:
        def draw(self, route: str, call: str, number: int) -> Fault | None:
            return lost.pop((route.partition("?")[0], 1), None)

    async with open_console(stage, at_exchange=Lossy()) as (house, address), visiting(address) as visitor:
        assert "No effect was attempted in the last 24 hours." in (await visitor.get("/vendors")).words
        await order(house)
        await house.run()
        await house.s.owner.execute(
            "insert into payonce.budgets (name, rate_per_s, burst, arrival_at, held_until) "
            "select 'changenow', 30, 10, due + interval '100 milliseconds', due + interval '1 minute' "
            "from payonce.due_now() due"
        )
        await house.s.admin.pause("gcsplit-eth-client-swap-queue", "ChangeNOW refuses our API key", "payouts")
        page = await visitor.get("/vendors")
        assert not lost, "the answer was lost"
        assert re.search(r"changenow\.create 2 .* 1 0 0 1 ", page.words), page.words
        assert "changenow 30 10 30 % 30 % requested by the vendor" in page.words
        assert "gcsplit-eth-client-swap-queue is paused: ChangeNOW refuses our API key" in page.words
        assert "any amount per payment, any amount per day" in page.words
        assert "0 payments" in page.words


async def test_small_payouts_show_that_they_wait_and_then_the_swap_they_share(stage: OpenStage) -> None:
    async with open_office(stage) as office, console(office.s, also=ACTIONS) as address, visiting(address) as visitor:
        small = [await office.order(payment_id=f"pay-{n}", subscription_price="2.00") for n in range(2)]
        await office.run()
        waits = await visitor.get(f"/payouts/{small[1].payout.id}")
        assert "accumulating" in waits.words
        assert offered(waits) == {"refund", "reject"}
        small.append(await office.order(payment_id="pay-3", subscription_price="2.00"))
        await office.run()
        [swap] = await office.swaps(small[1])
        shared = await visitor.get(f"/payouts/{small[1].payout.id}")
        assert "for 3 payouts" in shared.words
        assert "0.000776000000000000 ETH" in shared.words
        assert "payouts/accumulated/" in shared.words
        lead = await visitor.get(f"/payouts/{swap.unique_id}")
        assert ("of another payout" in shared.words, "of another payout" in lead.words) == (
            swap.unique_id != small[1].payout.unique_id,
            False,
        )
        assert offered(shared) == {"hold"}
        assert len(rows_of(await visitor.get(f"/payouts?reference={swap.cn_api_id}"))) == 3


async def test_markup_in_a_reason_is_text(stage: OpenStage) -> None:
    async with open_console(stage) as (house, address), visiting(address) as visitor:
        payout = await held(house)
        await house.s.owner.execute("update payouts.payouts set reason = '<b>x</b> password=hunter22'")
        for path in ("/payouts", f"/payouts/{payout.id}"):
            page = await visitor.get(path)
            assert "<b>x</b>" not in page.text
            assert "hunter22" not in page.text


def test_the_operators_page_names_every_state_kind_and_decision() -> None:
    page = (Path(__file__).parents[2] / "docs/payouts.md").read_text(encoding="utf-8")
    assert [name for name in (*State, *Hold) if f"| `{name}` |" not in page] == []
    assert [label for label, _ in payouts_deciding.CHOICES.values() if f"| {label} |" not in page] == []
    assert set(payouts_deciding.NEXT_STEP) == set(Hold)
    assert set(payouts_deciding.CHOICES) == set(Verdict)
