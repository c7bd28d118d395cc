"""Whatever a customer and a card do, in any order: what billing promises holds after every step."""

import asyncio
from collections import Counter
from collections.abc import Coroutine
from contextlib import AsyncExitStack, ExitStack, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, TypeVar

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from payonce.engine.controls import submit
from payonce.kit.outcomes import Invalid
from payonce.services.billing.payments import decisions
from payonce.services.billing.payments.decisions import RefundDecision
from payonce.services.billing.payments.store import transactions
from payonce.services.billing.policies import REFUND_INITIATION
from payonce.services.billing.subscriptions.decisions.credit import CreditChange, CreditVerdict, credit_action
from payonce.services.billing.subscriptions.domain.refusals import Conflict
from payonce.services.billing.subscriptions.handlers import dunning, payment_events, test_clocks
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.model import Subscription
from payonce.services.billing.subscriptions.store import credit, subscriptions
from payonce.testing.servers import ScratchServer
from payonce.testing.stage import open_stage
from tests.services.billing.billing_stage import AED, DECLINES, EXPIRED, PAYS, Customer, aed, open_house

BEGIN = datetime(2024, 1, 31, 9, tzinfo=UTC)
PLANS = ("basic", "pro", "enterprise", "annual-pro")
OUTCOMES = ("succeeds", "insufficient_funds", "card_declined", "expired_card")
STEPS = 12

Answer = TypeVar("Answer")


class Life(RuleBasedStateMachine):
    """One customer on a test clock, and a database of their own. A wish that is refused is no step."""

    postgres: ClassVar[ScratchServer]

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        scratch = self.stack.enter_context(self.postgres.lent())
        self.runner = self.stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        inner = AsyncExitStack()
        self.house = self.run(inner.enter_async_context(open_house(lambda: open_stage(scratch), at=BEGIN)))
        self.stack.callback(lambda: self.run(inner.aclose()))

    def teardown(self) -> None:
        self.stack.close()

    @initialize(card=st.sampled_from([PAYS, DECLINES, None]))
    def register(self, card: str | None) -> None:
        self.clock = self.run(self.house.test_clock(BEGIN))
        self.customer: Customer = self.run(self.house.customer(card, test_clock=self.clock))

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return self.runner.run(work)

    def wish(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            self.run(work)
        except Conflict:
            self.run(self.house.run())

    def running(self) -> Subscription | None:
        return self.run(subscriptions.running(self.house.s.read, self.customer.id))

    @rule(plan=st.sampled_from(PLANS), trial=st.booleans())
    def subscribe(self, plan: str, trial: bool) -> None:
        house = self.house
        self.wish(house.start_trial(self.customer) if trial else house.subscribe(self.customer, plan))

    @rule(number=st.sampled_from([PAYS, DECLINES, EXPIRED]))
    def give_card(self, number: str) -> None:
        self.run(self.house.give_card(self.customer, number))
        self.run(self.house.run())

    @rule(outcomes=st.lists(st.sampled_from(OUTCOMES), min_size=1, max_size=4))
    def card_will(self, outcomes: list[str]) -> None:
        if self.customer.card is not None:
            self.house.card_will(self.customer, *outcomes)

    @rule(days=st.sampled_from([0, 1, 5, 15, 31, 70, 370]), seconds=st.integers(0, 86_399))
    def advance(self, days: int, seconds: int) -> None:
        to = self.clock.target_at + timedelta(days=days, seconds=seconds)
        self.clock = self.run(self.house.advance(self.clock, to))
        assert self.clock.arrived
        assert self.run(test_clocks.waits_for(self.house.s.read, self.clock.id)) is None

    @rule(plan=st.sampled_from(PLANS), when=st.sampled_from([None, ChangeTiming.NOW, ChangeTiming.PERIOD_END]))
    def change(self, plan: str, when: ChangeTiming | None) -> None:
        if (subscription := self.running()) is not None:
            self.wish(self.house.change_plan(subscription, plan, when))

    @rule(plan=st.sampled_from(PLANS), hundredths=st.integers(1, 100), outside=st.booleans())
    def change_while_a_refund_is_under_way(self, plan: str, hundredths: int, outside: bool) -> None:
        """Some of what is left of the last charge, which the gateway hears of when the plan has changed. Who has paid
        nothing so far pays first."""
        if self.running() is None:
            self.give_card(PAYS)
            self.subscribe(PLANS[0], trial=False)
        refunds = REFUND_INITIATION.queue
        self.run(self.house.s.admin.pause(refunds, "to be late"))
        self.run(self._give_back(hundredths, outside))
        self.change(plan, ChangeTiming.NOW)
        self.run(self.house.s.admin.resume(refunds))
        self.run(self.house.run())

    async def _give_back(self, hundredths: int, outside: bool) -> None:
        charges = await transactions.listed(self.house.s.read, self.customer.id, None, None, 1)
        for charge in charges:
            asked = RefundDecision(
                transaction_id=charge.id,
                left_minor=charge.left.minor,
                outside=outside,
                note="a bad day",
                amount_minor=-(-charge.free.minor * hundredths // 100),
            )
            with suppress(Invalid):
                async with self.house.s.begin() as tx:
                    await submit(tx, decisions.refund_action(self.house.s.admin), asked, "ann", asked.note)

    @rule(verdict=st.sampled_from(CreditVerdict), hundredths=st.integers(1, 100))
    def decide_about_credit(self, verdict: CreditVerdict, hundredths: int) -> None:
        self.run(self._change_credit(verdict, hundredths))
        self.run(self.house.run())

    @rule(plan=st.sampled_from(PLANS), hundredths=st.integers(1, 100), days=st.sampled_from([0, 31]))
    def change_and_renew_while_a_payout_is_under_way(self, plan: str, hundredths: int, days: int) -> None:
        """The credit is taken, and payments hears of it when the plan has changed and the period is over."""
        self.run(self._change_credit(CreditVerdict.ADD, hundredths))
        refunds = REFUND_INITIATION.queue
        self.run(self.house.s.admin.pause(refunds, "to be late"))
        self.run(self._change_credit(CreditVerdict.PAY_OUT, hundredths))
        self.change(plan, ChangeTiming.NOW)
        self.advance(days, 0)
        self.run(self._give_back(hundredths, outside=False))
        self.run(self.house.s.admin.resume(refunds))
        self.run(self.house.run())

    async def _change_credit(self, verdict: CreditVerdict, hundredths: int) -> None:
        """Some of what there is; of what is added, of the price of Pro."""
        has = await credit.balance(self.house.s.read, self.customer.id, AED)
        most = aed("99.00") if verdict is CreditVerdict.ADD else has.amount
        asked = CreditChange(
            account_id=self.customer.id,
            currency="AED",
            exponent=2,
            seen=has.revision,
            verdict=verdict,
            amount_minor=-(-most.minor * hundredths // 100),
            note="a good day",
        )
        with suppress(Invalid):
            async with self.house.s.begin() as tx:
                await submit(tx, credit_action(self.house.s.admin), asked, "ann", asked.note)

    @rule(when=st.sampled_from(ChangeTiming))
    def cancel(self, when: ChangeTiming) -> None:
        if (subscription := self.running()) is not None:
            self.wish(self.house.cancel(subscription, when))

    @rule()
    def pause(self) -> None:
        if (subscription := self.running()) is not None:
            self.wish(self.house.pause(subscription))

    @rule()
    def resume(self) -> None:
        if (subscription := self.running()) is not None:
            self.wish(self.house.resume(subscription))

    @rule()
    def pay(self) -> None:
        async def pay() -> None:
            for invoice in (await self.house.invoices(self.customer))[-1:]:
                async with self.house.s.begin() as tx:
                    await dunning.pay_invoice(tx, self.customer.id, invoice.id)
                await self.house.run()

        self.wish(pay())

    @rule(times=st.integers(1, 2))
    def lose_webhooks(self, times: int) -> None:
        self.house.door.answers = [503] * times

    @rule(back=st.integers(1, 5))
    def repeat_an_event(self, back: int) -> None:
        given = self.house.door.given[-back:]

        async def repeat() -> None:
            for notification in given[:1]:
                async with self.house.s.begin() as tx:
                    assert (await payment_events.apply(tx, notification)).status == "duplicate"

        self.run(repeat())

    @invariant()
    def all_promises_hold(self) -> None:
        assert self.run(self.house.broken()) == {}
        assert self.run(self.house.parked()) == []

    @invariant()
    def nothing_goes_back_both_in_money_and_as_credit(self) -> None:
        twice = """
            select id from payments.transactions
            where refunded_minor + refunding_minor - paid_out_minor + credited_minor > amount_minor
        """
        assert self.run(self.house.s.owner.fetch(twice)) == []

    @invariant()
    def the_money_and_the_credit_are_never_both_with_the_customer(self) -> None:
        """What payments gave back of credit, or has promised to, is what the balance no longer has."""
        differing = """
            select p.id, p.state, r.state from subscriptions.credit_payouts p
            left join payments.refunds r on r.refund_key = 'credit:' || p.id
            where p.way = 'card' and (p.state = 'failed') <> coalesce(r.state = 'failed', p.state = 'failed')
        """
        assert self.run(self.house.s.owner.fetch(differing)) == []

    @invariant()
    def the_gateways_books_are_ours(self) -> None:
        books = self.house.gateway.books
        kept: Counter[str] = Counter()
        for each in books.charges.values():
            kept[each.metadata["invoice"]] += each.captured - books.refunded_of(each.id)
        assert kept.total() == self.run(self.house.balance("gateway_clearing"))
        due = self.run(self.house.s.owner.fetch("select id, due_minor from subscriptions.invoices"))
        assert all(kept[row["id"]] <= row["due_minor"] for row in due)


def live(postgres: ScratchServer, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        type("AnyLife", (Life,), {"postgres": postgres}),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_any_life_keeps_every_promise(postgres: ScratchServer) -> None:
    live(postgres, examples=4, steps=STEPS)


@pytest.mark.full
@pytest.mark.timeout(3_600)
def test_many_lives_keep_every_promise(postgres: ScratchServer) -> None:
    live(postgres, examples=150, steps=30)
