"""Any message again, at any moment, changes nothing: state checks, keys and the record see to it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from payonce.engine.messages.model import Message
from payonce.services.payouts.handlers import next_messages
from payonce.services.payouts.messages.payloads import FOLLOW_EXCHANGE, HAND_OVER
from payonce.services.payouts.messages.tokens import hops
from payonce.services.payouts.model import State, payout_from
from payonce.services.payouts.policies import ESTIMATE, ESTIMATED, EXTERNAL, KEEPING, QUEUES, SWAP, SWAPPED
from payonce.services.payouts.store import payouts
from payonce.services.payouts.store import swaps as swap_store
from payonce.services.payouts.store.orders import Intake
from payonce.testing import OpenStage
from payonce.vendors.changenow.port import Estimate
from payonce.vendors.changenow.port import Swap as Made
from tests.services.payouts.payouts_stage import BTC_CLIENT, HOST_WALLET, PRICING, TERMS, TO_BTC, Office, open_office

TABLES = (
    "payouts.payouts",
    "payouts.parts",
    "payouts.swaps",
    "payouts.shares",
    "payouts.split_payout_request",
    "payouts.split_payout_que",
    "payouts.split_payout_hostpay",
    "payonce.postings",
    "payonce.posting_lines",
    "payonce.effects",
)
KINDS = ("estimate", "estimated", "swap", "swapped")


async def snapshot(office: Office) -> dict[str, Any]:
    """Everything that a payout has written, and what hostpay was told."""
    found = {table: await office.s.owner.fetch(f"select * from {table} order by 1, 2") for table in TABLES}
    told = await office.hostpay_told()
    return {**{table: [tuple(row) for row in rows] for table, rows in found.items()}, "hostpay": told}


async def again(office: Office, taken: Intake, kinds: Sequence[str], put: int = 77) -> None:
    """Messages of the flow as they were, or as an attacker with a key would like them to have been."""
    payout = await office.payout(taken)
    swaps = await swap_store.active_swaps(office.s.read, payout.id)
    asked = hops.EstimateRequest(
        user_id=payout.user_id,
        closed_channel_id=payout.closed_channel_id,
        wallet_address=payout.wallet_address,
        payout_currency="btc",
        payout_network="btc",
        adjusted_amount_usdt=payout.adjusted.to_decimal(),
    )
    async with office.s.begin() as tx:
        for number, kind in enumerate(kinds, start=put):
            if kind == "estimate":
                await next_messages.send_estimate(tx, payout, number)
            if kind == "estimated":
                dear = Estimate(PRICING, Decimal(97), Decimal(5), Decimal(1), Decimal("0.1"))
                now = int((await office.s.clock.now()).timestamp())
                await next_messages.send_estimated(tx, asked, payout, number, dear, now)
            for swap in swaps:
                if kind == "swap":
                    await next_messages.send_swap(tx, payout, swap, number)
                if kind == "swapped" and swap.cn_api_id is not None:
                    made = Made(
                        swap.cn_api_id,
                        TO_BTC,
                        swap.amount.to_decimal(),
                        Decimal(9),
                        "elsewhere",
                        None,
                        "elsewhere",
                        None,
                        HOST_WALLET,
                        "standard",
                        "direct",
                    )
                    await next_messages.send_swapped(tx, payout, swap, number, made, HOST_WALLET)


@pytest.mark.parametrize("paused", [ESTIMATED.queue, SWAP.queue, SWAPPED.queue])
async def test_messages_that_come_twice_on_the_way_make_one_payout(stage: OpenStage, paused: str) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        await office.s.admin.pause(paused, "to see it before")
        await office.drain()
        kinds = [kind for kind in KINDS if kind != "estimated"]
        await again(office, taken, kinds)
        await again(office, taken, kinds, put=177)
        await office.s.admin.resume(paused)
        await office.run()
        assert await office.state(taken) is State.SWAPPED
        assert len(office.changenow.books.entries) == 1
        assert len(await office.hostpay_told()) == 1
        seen = await snapshot(office)
        assert [len(seen[f"payouts.split_payout_{name}"]) for name in ("request", "que")] == [1, 1]
        assert await office.broken() == {}


@pytest.mark.parametrize("reached", [State.SWAPPED, State.PAID_IN, State.FINISHED])
async def test_nothing_that_comes_late_changes_anything(stage: OpenStage, reached: State) -> None:
    """In any order and any number; the order is drawn, and the same every time."""
    async with open_office(stage) as office:
        taken = await office.order()
        await office.run()
        [swap] = await office.swaps(taken)
        if reached is not State.SWAPPED:
            await office.pay(swap)
        if reached is State.FINISHED:
            await office.finish(swap)
        assert await office.state(taken) is reached
        before, draw = await snapshot(office), Random(reached)
        for number in range(1, 6):
            await again(office, taken, draw.choices(KINDS, k=draw.randint(1, 6)), put=100 * number)
            await office.drain()
        await office.run()
        assert await snapshot(office) == before


@pytest.mark.parametrize("price", ["100.00", "2.00"])
async def test_what_is_held_or_accumulates_stays_as_it_is(stage: OpenStage, price: str) -> None:
    async with open_office(stage) as office:
        address = BTC_CLIENT if price == "2.00" else "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0"
        taken = await office.order(subscription_price=price, wallet_address=address)
        await office.run()
        assert await office.state(taken) in (State.HELD, State.ACCUMULATING)
        before = await snapshot(office)
        await again(office, taken, KINDS)
        await office.run()
        assert await snapshot(office) == before


async def test_an_exchange_that_nobody_here_ordered_writes_nothing(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        await office.run()
        before = await snapshot(office)
        stranger = payout_from({**await _row(office, taken), "id": "nobody", "state": "received"})
        [swap] = await office.swaps(taken)
        made = Made("deadbeefdeadbe", TO_BTC, Decimal(1), Decimal(1), "p", None, "c", None, None, "standard", "direct")
        async with office.s.begin() as tx:
            await next_messages.send_swapped(tx, stranger, swap, 9, made, HOST_WALLET)
        await office.run()
        assert await snapshot(office) == before
        assert "no exchange 'deadbeefdeadbe' of" in await parked(office, SWAPPED.queue)


async def parked(office: Office, queue: str) -> str:
    """Why the queue's only message ended up for a person."""
    [left] = await office.s.owner.fetch("select state, last_error from payonce.messages where queue = $1", queue)
    assert left["state"] == "parked"
    return str(left["last_error"])


@pytest.mark.parametrize("changed", [{"unique_id": "A" * 16}, {"part": 2}])
async def test_a_swap_that_no_payout_asks_for_is_not_ordered_and_its_message_is_parked(
    stage: OpenStage, changed: dict[str, object]
) -> None:
    async with open_office(stage) as office:
        await office.s.admin.pause(SWAP.queue, "to change what it is asked for")
        await office.order()
        await office.run()
        [asked] = await office.s.owner.fetch("select payload from payonce.messages where queue = $1", SWAP.queue)
        await office.forget_messages()
        await office.s.admin.resume(SWAP.queue)
        await office.s.feed.put([Message(queue=SWAP.queue, payload={**json.loads(asked["payload"]), **changed})])
        await office.run(600)
        assert "nothing was ordered" in await parked(office, SWAP.queue)
        assert await office.s.owner.fetchval("select count(*) from payonce.effects") == 0


@pytest.mark.parametrize("action", [HAND_OVER, FOLLOW_EXCHANGE])
async def test_a_swap_that_nobody_knows_is_not_handed_over_and_its_message_is_parked(
    stage: OpenStage, action: str
) -> None:
    async with open_office(stage, config=replace(TERMS, external_hostpay=True)) as office:
        await office.s.feed.put([Message(queue=EXTERNAL.queue, action=action, payload={"swap_id": "nobody/1/1"})])
        await office.run(600)
        assert "there is no swap 'nobody/1/1'" in await parked(office, EXTERNAL.queue)


async def test_what_does_not_fit_is_parked_and_the_payout_goes_on(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        for policy in QUEUES[:4]:
            await office.s.feed.put([Message(queue=policy.queue, payload={"user_id": "nobody"})])
        taken = await office.order()
        await office.run()
        assert await office.state(taken) is State.SWAPPED
        ends = await office.s.owner.fetch("select status, count(*) from payonce.job_logs group by 1 order by 1")
        assert dict(map(tuple, ends))["parked"] == 4
        rows = await office.s.owner.fetch("select last_error from payonce.messages where state = 'parked'")
        assert all("the message does not fit" in row["last_error"] for row in rows)
        assert len(rows) == 4


@pytest.mark.parametrize("correlation_id", [None, "nobody"])
async def test_an_estimate_that_belongs_to_no_payout_is_not_asked_for(
    stage: OpenStage, correlation_id: str | None
) -> None:
    async with open_office(stage, roles=("estimator",)) as office:
        asked = hops.EstimateRequest(
            user_id=7,
            closed_channel_id="-100",
            wallet_address=BTC_CLIENT,
            payout_currency="btc",
            payout_network="btc",
            adjusted_amount_usdt=Decimal(97),
        )
        await office.s.feed.put(
            [Message(queue=ESTIMATE.queue, payload=hops.plain(asked), correlation_id=correlation_id)]
        )
        await office.drain()
        assert f"there is no payout {correlation_id!r} to price" in await parked(office, ESTIMATE.queue)


async def test_an_answer_or_a_batch_that_belongs_to_no_payout_is_parked(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        found = hops.EstimateResponse(
            user_id=7,
            closed_channel_id="-100",
            wallet_address=BTC_CLIENT,
            payout_currency="btc",
            payout_network="btc",
            from_amount_usdt=Decimal(97),
            to_amount_eth_post_fee=Decimal("0.04"),
            deposit_fee=Decimal(0),
            withdrawal_fee=Decimal(0),
        )
        await office.s.feed.put(
            [
                Message(queue=ESTIMATED.queue, payload=hops.plain(found), correlation_id="nobody"),
                Message(queue=KEEPING.queue, action="batch_client", payload={}, correlation_id="nobody"),
            ]
        )
        await office.drain()
        assert "there is no payout 'nobody' to price" in await parked(office, ESTIMATED.queue)
        assert "there is no payout 'nobody' to batch" in await parked(office, KEEPING.queue)


async def test_hostpay_is_told_what_is_on_record_and_not_what_a_message_says(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        taken = await office.order()
        await office.s.admin.pause(SWAPPED.queue, "to be first")
        await office.drain()
        await office.s.owner.execute("delete from payonce.messages where queue = $1", SWAPPED.queue)
        await again(office, taken, ["swapped"])
        await office.s.admin.resume(SWAPPED.queue)
        await office.run()
        [swap] = await office.swaps(taken)
        [told] = await office.hostpay_told()
        assert told["payin_address"] == swap.payin_address != "elsewhere"
        assert await office.s.owner.fetchval("select payout_address from payouts.split_payout_que") == BTC_CLIENT


async def _row(office: Office, taken: Intake) -> dict[str, Any]:
    row = await office.s.owner.fetchrow("select * from payouts.payouts where id = $1", taken.payout.id)
    assert row is not None
    assert await payouts.find(office.s.read, taken.payout.id) is not None
    return dict(row)
