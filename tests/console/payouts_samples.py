"""Payouts in every state, made by the real handlers against the simulated exchange and chain; the console beside."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from payonce.engine.messages.transaction import begin
from payonce.services.payouts.api.webhook import PayoutOrder
from payonce.services.payouts.console.payout import FIELDS
from payonce.services.payouts.decisions.payouts import Verdict, decision_action
from payonce.services.payouts.decisions.wallet_limits import limit_action
from payonce.services.payouts.model import ETH, Payout, State
from payonce.services.payouts.policies import KEEPING, QUEUES
from payonce.services.payouts.store.orders import receive
from payonce.services.payouts.store.wallet_limits import clearance_action, set_wallet_limit
from payonce.testing import OpenStage
from tests.console.visitor import Answer, Visitor, console
from tests.services.payouts.hostpay_stage import BTC_CLIENT, House, eth, open_house, usdt

REFUSED_ADDRESS: Final = "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0"
"""It has the shape that we ask for, and not the one that the exchange does."""
OTHER_ADDRESS: Final = "bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq"
ACTIONS: Final = (decision_action, clearance_action, limit_action)


@asynccontextmanager
async def open_payouts(stage: OpenStage, **options: Any) -> AsyncIterator[House]:
    async with open_house(stage, **options) as house:
        await house.s.feed.declare([*QUEUES, KEEPING])
        yield house


@asynccontextmanager
async def open_console(stage: OpenStage, **options: Any) -> AsyncIterator[tuple[House, str]]:
    async with (
        open_payouts(stage, **options) as house,
        console(house.s, also=ACTIONS, resources=(house.client,)) as address,
    ):
        yield house, address


async def order(
    house: House,
    number: int = 1,
    *,
    price: str = "100",
    fee: str = "3",
    address: str = BTC_CLIENT,
    trace: str = "",
    coin: str = "btc",
    memo: str | None = None,
) -> Payout:
    asked = PayoutOrder(
        f"pay-{number}",
        7_000_000_000 + number,
        f"-100{number}",
        address,
        memo,
        memo is not None,
        coin,
        coin,
        usdt(price),
        usdt(fee),
        usdt(price) - usdt(fee),
    )
    async with begin(house.s.database, house.s.feed, trace or None) as tx:
        return (await receive(tx, asked)).payout


async def held(house: House, number: int = 1, **fields: Any) -> Payout:
    """The exchange does not take its address."""
    payout = await order(house, number, address=REFUSED_ADDRESS, **fields)
    await house.drain()
    assert await house.state(payout) is State.HELD
    return payout


async def above_the_limit(house: House, number: int = 1) -> Payout:
    async with house.s.begin() as tx:
        await set_wallet_limit(tx, ETH, "root", per_payment=eth("0.01"))
    payout = await order(house, number)
    await house.drain()
    assert await house.state(payout) is State.HELD
    return payout


async def multiply(house: House, count: int) -> None:
    """One payout so many times, a minute apart, under other ids."""
    await house.s.owner.execute(
        """
        insert into payouts.payouts (id, unique_id, payment_id, natural_key, user_id, closed_channel_id, wallet_address,
            payout_currency, payout_network, price_minor, fee_minor, adjusted_minor, value_minor, state, held_from,
            hold, reason, trace_id, created_at)
        select 'copy-' || n, lpad(n::text, 16, 'X'), 'copy-' || n, natural_key, user_id, closed_channel_id,
            wallet_address, payout_currency, payout_network, price_minor, fee_minor, adjusted_minor, value_minor, state,
            held_from, hold, reason, null, created_at - make_interval(secs => 60 * n)
        from payouts.payouts, generate_series(1, $1::int) as n where payment_id = 'pay-1'
        """,
        count,
    )


def rows_of(page: Answer) -> list[str]:
    body = page.text.partition("<tbody>")[2].partition("</tbody>")[0]
    return re.findall(r'href="/console/payouts/([^"]+)"', body)


def offered(page: Answer) -> set[str]:
    return set(re.findall(r'name="verdict" value="([^"]+)"', page.text))


async def choose(visitor: Visitor, payout: Payout, verdict: Verdict, **fields: str) -> Answer:
    """Up to the page that tells what would follow."""
    page = await visitor.get(f"/payouts/{payout.id}")
    form = {"verdict": verdict.value, "seen": page.field("seen"), "why": "the client asked", **fields}
    return await visitor.submit(page, f"/payouts/{payout.id}/decide", **form)


async def confirm(visitor: Visitor, payout: Payout, check: Answer) -> Answer:
    names = (*FIELDS, "sure")
    return await visitor.submit(check, f"/payouts/{payout.id}/decide", **{name: check.field(name) for name in names})
