"""With a safeguard of subscriptions taken out, named tests fail. A check that cannot fail is none."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import asyncpg
import pytest

from payonce.engine.messages.transaction import Tx
from payonce.kit.outcomes import Retry
from payonce.services.billing.payments.handlers import credit_holds, refunds
from payonce.services.billing.payments.store import refunds as refund_store
from payonce.services.billing.subscriptions.decisions import credit
from payonce.services.billing.subscriptions.decisions.credit import CreditChange
from payonce.services.billing.subscriptions.domain import dunning
from payonce.services.billing.subscriptions.domain.proration import BilledLine
from payonce.services.billing.subscriptions.handlers import (
    invoices,
    payment_events,
    plan_change_invoices,
    plan_moves,
    renewals,
    settlement,
)
from payonce.services.billing.subscriptions.handlers import test_clocks as clocks
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.model import Invoice, InvoiceLine, Subscription
from payonce.services.billing.subscriptions.store import charge_credit
from payonce.services.billing.subscriptions.store import credit as credit_store
from payonce.services.billing.subscriptions.store import invoices as invoice_store
from payonce.services.billing.subscriptions.store.credit import Balance
from payonce.services.billing.subscriptions.store.subscriptions import LockedSubscription
from payonce.testing import OpenStage, Stage
from tests.ablations import Ablations, cases, given, missed, patched
from tests.conformance.wire import without
from tests.services.billing import (
    test_applying,
    test_changing,
    test_clocks,
    test_collecting,
    test_credit,
    test_given_back_once,
    test_life,
    test_odd_payments,
    test_outside,
    test_plan_notice,
    test_promises,
)


def key_without_generation(invoice_id: str, generation: int) -> str:
    return invoice_id


async def leave_force_alone(tx: Tx, lines: Sequence[tuple[Invoice, InvoiceLine]], at: object) -> None:
    return None


def billed_without_refunds(in_force: Sequence[tuple[Invoice, InvoiceLine]], _: Mapping[str, int]) -> list[BilledLine]:
    return [BilledLine(line.amount, line.service_start, line.service_end) for _, line in in_force]


async def nothing(*_: object, **__: object) -> None:
    return None


async def whatever_was_seen(tx: Tx, asked: CreditChange) -> Balance:
    return await credit_store.locked_or_created(tx, asked.account_id, asked.amount.asset)


async def nothing_goes_back(*_: object) -> Mapping[str, int]:
    return {}


async def the_same(_: Tx, invoice: Invoice) -> Invoice:
    return invoice


async def with_the_next_renewal(_: Tx, subscription: Subscription) -> str | None:
    return subscription.next_plan_id


async def unmoved(_: Tx, standing: LockedSubscription) -> Subscription:
    return standing.subscription


async def never(*_: object) -> bool:
    return False


def always(*_: object) -> bool:
    return True


COUNTED_NUMBER = """
    select 1 + count(*)::int as last from subscriptions.invoices where $1::text <> '' and $2::int > 0"""
"""What looks right until two do it at once."""


ABLATIONS: Ablations = {
    "an event applied once": (
        lambda: without(
            r"on conflict \(event_id\) do nothing returning id",
            "on conflict (event_id) do update set retry_count = 0 returning id",
        ),
        [test_applying.test_an_event_that_comes_again_is_a_duplicate_and_changes_nothing],
    ),
    "the generation in the key": (
        patched(invoices, "charge_key", key_without_generation),
        [test_collecting.test_paid_on_a_day_of_dunning_it_is_active_as_if_nothing_had_been],
    ),
    "the revision": (
        lambda: without(r"where id = \$1 and revision = \$2 returning", "where id = $1 and $2::int >= 0 returning"),
        [test_promises.test_what_was_read_before_somebody_else_moved_it_is_not_written],
    ),
    "the generation of an invoice": (
        lambda: without(
            r"and generation = \$2 and state", "and $2::int >= 0 and state", within="failures = failures + 1"
        ),
        [test_promises.test_an_invoice_that_was_charged_anew_is_not_marked_by_an_earlier_answer],
    ),
    "the price of the old line": (
        lambda: without(
            r"l.kind, l.text, l.plan_id, l.amount_minor,",
            "l.kind, l.text, l.plan_id, (select p.price_minor from subscriptions.plans p join subscriptions.plans o "
            "on o.code = p.code where o.id = l.plan_id and p.retired_at is null),",
        ),
        [test_changing.test_the_price_on_the_old_invoice_counts_and_not_todays],
    ),
    "what was given back before": (
        patched(plan_change_invoices, "_billed", billed_without_refunds),
        [test_changing.test_a_trial_can_become_a_plan_before_it_ends],
    ),
    "lines that are in force no more": (
        patched(invoice_store, "close_lines", leave_force_alone),
        [test_changing.test_a_second_change_gives_back_what_the_first_one_charged],
    ),
    "one charge at a time": (
        lambda: without(
            r"and i.state = 'open' order by i.issued_at limit 1\) as open_invoice", "and false) as open_invoice"
        ),
        [test_changing.test_while_an_upgrade_is_charged_nothing_else_is],
    ),
    "the lock of the numbers": (
        patched(invoice_store, "TAKE_NUMBER", COUNTED_NUMBER),
        [test_promises.test_numbers_of_many_at_the_same_moment_have_no_gaps],
    ),
    "the lock of the subscription": (
        lambda: without(
            r"from subscriptions.subscriptions where id = \$1 for no key update",
            "from subscriptions.subscriptions where id = $1",
        ),
        [test_promises.test_two_workers_with_one_renewal_issue_it_once],
    ),
    "whether it is due": (
        patched(renewals, "is_due", always),
        [test_applying.test_every_message_that_comes_again_changes_nothing],
    ),
    "the answer of the right try": (
        patched(payment_events, "_answers", always),
        [test_applying.test_an_answer_to_an_earlier_try_is_not_taken_for_the_present_one],
    ),
    "money back for what has ended": (
        patched(payment_events, "_refund_late", nothing),
        [test_applying.test_a_payment_that_comes_after_the_end_is_given_back],
    ),
    "no charge before the odd payment is back": (
        patched(invoice_store, "on_its_way_back", nothing),
        [
            test_odd_payments.test_nothing_is_charged_while_the_odd_payment_is_not_back,
            test_odd_payments.test_a_card_that_came_meanwhile_is_not_tried_before_the_odd_payment_is_back,
        ],
    ),
    "the look at refunds that are under way": (
        patched(credit_holds, "locked_refunds", nothing_goes_back),
        [test_given_back_once.test_a_change_that_meets_a_refund_waits_for_it_and_leaves_it_out],
    ),
    "no note of what the gateway may give back": (
        patched(refunds, "_refuse_while_refunding", always),
        [test_outside.test_while_the_gateway_gives_back_anything_of_it_nothing_is_noted],
    ),
    "credit that refunds do not reach": (
        patched(credit_holds, "hold_share", nothing),
        [
            test_given_back_once.test_a_refund_without_an_amount_leaves_out_what_came_back_as_credit,
            test_given_back_once.test_while_a_change_is_being_charged_its_credit_is_not_given_back_in_money,
            test_given_back_once.test_a_refund_that_meets_a_change_waits_for_it_and_is_refused,
        ],
    ),
    "credit that refunds reach again": (
        patched(charge_credit, "release", nothing),
        [given(test_given_back_once.test_the_credit_of_a_change_that_is_not_paid_goes_back_in_money, "declines")],
    ),
    "holds that are newer stay": (
        patched(credit_holds, "_is_outdated", never),
        [test_given_back_once.test_a_hold_that_comes_late_replaces_none_that_was_asked_for_after_it],
    ),
    "a late answer to a change that has ended": (
        patched(charge_credit, "release", nothing),
        [
            given(
                test_given_back_once.test_a_cancellation_before_the_credit_is_held_leaves_all_to_refunds,
                ChangeTiming.NOW,
            )
        ],
    ),
    "the balance that a person saw": (
        patched(credit, "_seen", whatever_was_seen),
        [
            given(test_credit.test_of_two_people_who_adjust_at_once_the_second_looks_again, "nothing"),
            test_credit.test_what_was_asked_before_the_balance_changed_is_not_granted,
        ],
    ),
    "a payout that was refused stays refused": (
        patched(refund_store, "was_refused", nothing),
        [test_credit.test_a_payout_that_payments_has_no_room_for_fails_once_and_for_all],
    ),
    "the clock that is woken": (
        patched(settlement, "wake", nothing),
        [test_clocks.test_a_year_of_a_customer_passes_at_once],
    ),
    "the look at what was passed over": (
        patched(clocks, "is_passed_over", nothing),
        [test_clocks.test_a_cancellation_that_holds_the_subscription_as_the_clock_arrives_is_followed],
    ),
    "the look at revenue that was passed over": (
        patched(clocks, "is_uncounted", nothing),
        [test_clocks.test_revenue_of_a_subscription_that_is_locked_as_the_clock_arrives_is_counted_then],
    ),
    "the days of dunning": (
        patched(dunning, "RETRY_DAYS", (1, 3, 5, 7)),
        [test_collecting.test_a_failed_renewal_is_tried_on_its_days_and_then_unpaid],
    ),
    "the notice of a new price": (
        patched(renewals, "_chosen_plan_id", with_the_next_renewal),
        [test_plan_notice.test_a_renewal_that_leaves_no_time_for_the_notice_is_at_the_older_price],
    ),
    "the move of whoever comes back to an older version": (
        patched(plan_moves, "follow", unmoved),
        [test_plan_notice.test_a_version_that_was_chosen_before_the_notice_is_over_is_had_first],
    ),
    "the new card while another is charged": (
        patched(invoice_store, "mark_for_new_card", the_same),
        [test_collecting.test_a_card_that_comes_while_another_is_charged_is_tried_when_that_fails],
    ),
}


def weakened(stage: OpenStage, ddl: str) -> OpenStage:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Stage]:
        async with stage() as s:
            await s.owner.execute(ddl)
            yield s

    return opened


UNLOCKED = """
    create or replace function payments.going_back(charges text[]) returns table (transaction_id text, minor bigint)
    language sql volatile as
    'select id, refunded_minor + refunding_minor from payments.transactions where id = any ($1)'
"""

PAYOUTS_ARE_REFUNDS = """
    create or replace function payments.going_back(charges text[]) returns table (transaction_id text, minor bigint)
    language sql volatile as
    'select id, refunded_minor + refunding_minor from payments.transactions where id = any ($1) for update'
"""

IN_THE_STORE = {
    "payouts of credit are no refunds of the plan that is left": (
        PAYOUTS_ARE_REFUNDS,
        given(test_credit.test_a_change_of_plan_that_meets_a_payout_of_the_same_charge_gives_back_no_less, False),
    ),
    "the lock of the charge whose credit is reckoned": (
        UNLOCKED,
        test_given_back_once.test_a_change_that_meets_a_refund_waits_for_it_and_leaves_it_out,
    ),
    "one invoice per period": (
        "drop index subscriptions.invoices_one_per_period",
        test_promises.test_a_period_has_one_invoice_by_the_stores_own_word,
    ),
    "one subscription at a time": (
        (
            "drop index subscriptions.subscriptions_one_at_a_time; create unique index on subscriptions.subscriptions "
            "(account_id, id) where state not in ('incomplete_expired', 'canceled')"
        ),
        test_life.test_an_account_has_one_subscription_at_a_time,
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_it_the_named_test_fails(stage: OpenStage, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, stage, asyncpg.PostgresError, Retry)


@pytest.mark.parametrize("name", IN_THE_STORE)
async def test_without_what_the_store_keeps_the_named_test_fails(stage: OpenStage, name: str) -> None:
    ddl, check = IN_THE_STORE[name]
    ablations: Ablations = {name: (patched(dunning, "__doc__", ""), [check])}
    await missed(ablations, name, 0, weakened(stage, ddl), asyncpg.PostgresError)
