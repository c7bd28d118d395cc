"""A whole life in a currency of three decimals and in one of none: every step rounds to what that currency has."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO

import pytest
from pypdf import PdfReader

from payonce.engine.reconcile import reconcile
from payonce.kit.money import Amount, asset_of
from payonce.services.billing.payments import statements
from payonce.services.billing.payments.handlers import refunds
from payonce.services.billing.subscriptions.decisions.credit import CreditChange, CreditVerdict
from payonce.services.billing.subscriptions.domain.calendar import Interval, Unit
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.model import Invoice, InvoiceState, PayoutState, State, Subscription
from payonce.services.billing.subscriptions.pdf.operator_copy import operator_pdf
from payonce.services.billing.subscriptions.store import credit, credit_payouts, plans
from payonce.services.billing.subscriptions.store.plans import Offer
from payonce.testing import OpenStage
from tests.services.billing.billing_stage import SECRET, House, open_house
from tests.services.billing.test_credit import decide

BEGIN = datetime(2026, 2, 1, 9, tzinfo=UTC)
TRIAL_ENDS = BEGIN + timedelta(days=14)
"""The month that begins then has 28 days."""


@dataclass(frozen=True)
class Life:
    """Prices and what must come of them, as people write them."""

    currency: str
    trial: str
    small: str
    large: str
    upgrade: tuple[str, str]
    """After a quarter of the month: three quarters back at the small price, three quarters at the large one."""
    downgrade: tuple[str, str]
    """At half of it: two thirds of what the upgrade charged back, half a month at the small price."""
    given_back: str
    """Of the first month, in money."""
    due: tuple[str, ...]
    """Of each invoice; the month after the downgrade is paid by credit, the one after that in part."""


LIVES = [
    Life(
        "KWD",
        "0.105",
        "9.505",
        "29.995",
        ("-7.129", "22.496"),
        ("-14.997", "4.752"),
        "1.001",
        ("0.105", "9.505", "15.367", "0.000", "0.000", "8.765"),
    ),
    Life(
        "JPY", "107", "1001", "4999", ("-751", "3749"), ("-2499", "500"), "101", ("107", "1001", "2998", "0", "0", "3")
    ),
]


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.currency)
async def test_a_whole_life_in_minor_units_of_its_currency(stage: OpenStage, life: Life) -> None:
    asset = asset_of(life.currency)

    def money(text: str) -> Amount:
        return Amount.from_decimal(text, asset)

    async with open_house(stage, at=BEGIN) as house:
        subscription = await begin(house, life)
        await house.go_to(TRIAL_ENDS)
        await house.go_to(TRIAL_ENDS + timedelta(days=7))
        await house.change_plan(subscription, "large", ChangeTiming.NOW)
        await house.go_to(TRIAL_ENDS + timedelta(days=14))
        await house.change_plan(subscription, "small", ChangeTiming.NOW)
        invoices = await house.invoices(subscription)
        assert [[line.amount for line in each.lines] for each in invoices[2:]] == [
            [money(text) for text in life.upgrade],
            [money(text) for text in life.downgrade],
        ]
        assert invoices[1].transaction_id is not None
        async with house.s.begin() as tx:
            await refunds.request(tx, invoices[1].transaction_id, money(life.given_back), "a bad day", "by hand")
        await house.go_to(TRIAL_ENDS + timedelta(days=70))
        invoices = await house.invoices(subscription)
        assert [each.due for each in invoices] == [money(text) for text in life.due]
        assert {each.state for each in invoices} == {InvoiceState.PAID}
        assert [each.refunded for each in invoices[:2]] == [money(life.trial), money(life.given_back)]
        assert await house.s.owner.fetchval("select sum(minor) from subscriptions.credits") == 0, "used up"
        kept = sum((money(text).minor for text in life.due), -money(life.trial).minor - money(life.given_back).minor)
        assert await house.balance("gateway_clearing", asset) == kept
        assert await house.balance("captured", asset) == 0
        await on_paper_and_statement(house, life, invoices)
        assert await house.broken() == {}


@pytest.mark.parametrize(
    ("currency", "price", "granted", "paid_out", "due"),
    [("KWD", "99.999", "50.000", "49.995", "9.500"), ("JPY", "10001", "5000", "4999", "1000")],
)
async def test_credit_is_granted_paid_out_and_used_in_minor_units_of_its_currency(
    stage: OpenStage, currency: str, price: str, granted: str, paid_out: str, due: str
) -> None:
    """Half of a month comes back. Almost all of it is paid out, once; the rest pays a part of the renewal."""
    asset = asset_of(currency)

    def money(text: str) -> Amount:
        return Amount.from_decimal(text, asset)

    async with open_house(stage, at=BEGIN) as house:
        left = money(granted) - money(paid_out)
        async with house.s.begin() as tx:
            for code, cost in (("large", money(price)), ("free", Amount.zero(asset)), ("small", money(due) + left)):
                await plans.add_version(tx, Offer(code, code.title(), cost, Interval(Unit.MONTH)))
        customer = await house.customer()
        subscription = await house.subscribe(customer, "large")
        await house.go_to(BEGIN + timedelta(days=14))
        await house.change_plan(subscription, "free", ChangeTiming.NOW)
        await house.change_plan(subscription, "small", ChangeTiming.PERIOD_END)
        assert (await credit.balance(house.s.read, customer.id, asset)).amount == money(granted)
        asked = CreditChange(
            account_id=customer.id,
            currency=currency,
            exponent=asset.exponent,
            seen=1,
            verdict=CreditVerdict.PAY_OUT,
            amount_minor=money(paid_out).minor,
            note="they asked for it",
        )
        done = await decide(house, asked)
        await house.run()
        payout = await credit_payouts.find(house.s.read, done["payout"])
        assert payout is not None
        assert (payout.state, payout.amount) == (PayoutState.SUCCEEDED, money(paid_out))
        assert house.gateway.books.refunded_total(currency) == money(paid_out)
        await house.go_to(BEGIN + timedelta(days=29))
        renewal = (await house.invoices(subscription))[-1]
        assert (renewal.credit, renewal.due) == (left, money(due))
        assert (await credit.balances(house.s.read, customer.id))[0].amount == Amount.zero(asset)
        assert await house.balance("credit", asset) == 0
        assert await house.broken() == {}


async def begin(house: House, life: Life) -> Subscription:
    asset = asset_of(life.currency)
    month = Interval(Unit.MONTH)
    async with house.s.begin() as tx:
        for code, price in (("small", life.small), ("large", life.large)):
            await plans.add_version(tx, Offer(code, code.title(), Amount.from_decimal(price, asset), month))
        cheap = Amount.from_decimal(life.trial, asset)
        trial = Offer("try", "Try", cheap, Interval(Unit.DAY, 14), trial_days=14, renews_to="small")
        await plans.add_version(tx, trial)
    subscription = await house.start_trial(await house.customer(), "try")
    assert subscription.state is State.TRIALING
    return subscription


async def on_paper_and_statement(house: House, life: Life, invoices: list[Invoice]) -> None:
    for invoice, due in ((invoices[2], life.due[2]), (invoices[-1], life.due[-1])):
        document = await operator_pdf(house.s.read, invoice.id, SubscriptionConfig((SECRET,)))
        assert document is not None
        words = "\n".join(page.extract_text() for page in PdfReader(BytesIO(document)).pages).replace(",", "")
        assert due in words, (invoice.number, words)
    [source] = statements([house.client, house.notifier])
    run = await reconcile(house.s.database, house.s.feed, source, by="ann", holder="test", since=BEGIN)
    assert (run.unmatched, run.missing, run.found) == (0, 0, 0)
    assert run.lines == len(house.gateway.books.lines) == 6
