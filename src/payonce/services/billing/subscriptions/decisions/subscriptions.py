"""Operators' decisions about a subscription: cancel, pause or resume it, charge what it owes, or write that off.

One action, executed at once or, above the threshold of its currency, after a second person's approval.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Any, Final

import msgspec

from payonce.engine.controls import Action, Assessment, Link
from payonce.engine.messages.ports import Admin
from payonce.engine.messages.transaction import Tx
from payonce.kit.outcomes import Invalid, Stale
from payonce.services.billing.subscriptions.domain.refusals import Conflict, NotFound
from payonce.services.billing.subscriptions.handlers import dunning, plan_changes
from payonce.services.billing.subscriptions.handlers.dunning import OWING
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.model import ENDED, Invoice, InvoiceState, State, Subscription
from payonce.services.billing.subscriptions.store import invoices, subscriptions
from payonce.services.billing.subscriptions.store.invoice_queries import InvoiceSummary
from payonce.services.billing.subscriptions.store.queries import SubscriptionSummary

ACTION: Final = "decide subscription"
_RUNNING: Final = frozenset({State.ACTIVE, State.TRIALING})
_ENDS_LATER: Final = _RUNNING | {State.PAST_DUE}


class Verdict(StrEnum):
    RETRY = "retry"
    """Charge the amount owed now."""
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL_AT_END = "cancel_at_end"
    KEEP = "keep"
    """Withdraw a cancellation at the end of the period."""
    CANCEL_NOW = "cancel_now"
    GIVE_UP = "give_up"
    """No further attempts: the invoice is uncollectible, and the plan decides what becomes of the subscription."""


class SubscriptionDecision(msgspec.Struct, frozen=True, kw_only=True):
    subscription_id: str
    seen: int
    """The revision that the operator saw."""
    verdict: Verdict
    note: str


def subscription_action(_: Admin) -> Action[SubscriptionDecision]:
    return Action(ACTION, SubscriptionDecision, _weigh, _execute, _page)


def _page(subscription_id: str) -> Link:
    return Link("The subscription", f"/billing/subscriptions/{subscription_id}")


def open_verdicts(seen: SubscriptionSummary, owed: InvoiceSummary | None) -> list[Verdict]:
    """The decisions that are possible now. Execution checks again; what would be refused is not offered. `owed` is the
    newest invoice that is open or uncollectible."""
    may = {
        Verdict.RETRY: seen.state in OWING and _can_be_charged(owed),
        Verdict.PAUSE: seen.state in _RUNNING and not seen.cancel_at_period_end and not _is_open(owed),
        Verdict.RESUME: seen.state is State.PAUSED,
        Verdict.CANCEL_AT_END: seen.state in _ENDS_LATER and not seen.cancel_at_period_end,
        Verdict.KEEP: seen.state in _ENDS_LATER and seen.cancel_at_period_end,
        Verdict.CANCEL_NOW: seen.state not in ENDED,
        Verdict.GIVE_UP: seen.state is State.PAST_DUE and _is_open(owed) and _can_be_charged(owed),
    }
    return [verdict for verdict, safe in may.items() if safe]


async def _weigh(tx: Tx, asked: SubscriptionDecision) -> Assessment:
    subscription = await _known(tx, asked.subscription_id)
    owed = await invoices.latest_owed(tx, subscription.id) if asked.verdict in _ABOUT_MONEY else None
    about = "" if owed is None else f", invoice {owed.number} of {owed.due}"
    text = f"{asked.verdict.replace('_', ' ')} subscription {subscription.id}, which is {subscription.state}{about}"
    return Assessment(subscription.id, text, [] if owed is None else [owed.due])


async def _execute(tx: Tx, asked: SubscriptionDecision, by: str) -> dict[str, Any]:
    async with _refused_in_a_sentence():
        locked = await subscriptions.locked(tx, asked.subscription_id)
        if locked.subscription.revision != asked.seen:
            raise Stale(f"subscription {locked.subscription.id} has changed since you looked at it; look again")
        await _carry_out(tx, locked, asked)
    after = await _known(tx, asked.subscription_id)
    return {"subscription": after.id, "state": after.state.value, "verdict": asked.verdict.value}


async def _carry_out(tx: Tx, locked: subscriptions.LockedSubscription, asked: SubscriptionDecision) -> None:
    subscription = locked.subscription
    match asked.verdict:
        case Verdict.RETRY:
            await dunning.pay_invoice(tx, None, (await _owed(tx, subscription)).id)
        case Verdict.PAUSE:
            await plan_changes.pause(tx, None, subscription.id)
        case Verdict.RESUME:
            _check(subscription, frozenset({State.PAUSED}), asked.verdict)
            await plan_changes.resume(tx, None, subscription.id)
        case Verdict.KEEP:
            _check(subscription, _ENDS_LATER, asked.verdict)
            await plan_changes.resume(tx, None, subscription.id)
        case Verdict.CANCEL_AT_END:
            _check(subscription, _ENDS_LATER, asked.verdict)
            if subscription.cancel_at_period_end:
                raise Invalid(f"subscription {subscription.id} already ends with its period")
            await plan_changes.cancel(tx, None, subscription.id, ChangeTiming.PERIOD_END, asked.note)
        case Verdict.CANCEL_NOW:
            await plan_changes.cancel(tx, None, subscription.id, ChangeTiming.NOW, asked.note)
        case Verdict.GIVE_UP:
            _check(subscription, frozenset({State.PAST_DUE}), asked.verdict)
            await dunning.end_dunning(tx, locked, await _owed(tx, subscription, only_open=True))


async def _owed(tx: Tx, subscription: Subscription, *, only_open: bool = False) -> Invoice:
    """The invoice that may be charged or written off, which excludes one with a charge in progress."""
    owed = await invoices.latest_owed(tx, subscription.id)
    if owed is None or (only_open and owed.state is not InvoiceState.OPEN):
        raise Invalid(f"subscription {subscription.id} owes nothing")
    if owed.charging:
        raise Invalid(f"invoice {owed.number} is being charged; wait for the answer")
    return owed


async def _known(tx: Tx, subscription_id: str) -> Subscription:
    found = await subscriptions.find(tx, subscription_id)
    if found is None:
        raise Invalid(f"there is no subscription {subscription_id[:100]!r}")
    return found


@asynccontextmanager
async def _refused_in_a_sentence() -> AsyncIterator[None]:
    try:
        yield
    except (Conflict, NotFound) as refusal:
        raise Invalid(str(refusal)) from refusal


def _check(subscription: Subscription, states: frozenset[State], verdict: Verdict) -> None:
    if subscription.state not in states:
        said, wanted = verdict.replace("_", " "), " or ".join(sorted(states))
        raise Invalid(f"subscription {subscription.id} is {subscription.state}; to {said}, it must be {wanted}")


def _is_open(owed: InvoiceSummary | None) -> bool:
    return owed is not None and owed.state is InvoiceState.OPEN


def _can_be_charged(owed: InvoiceSummary | None) -> bool:
    return owed is not None and not owed.charging and owed.period is not None


_ABOUT_MONEY: Final = frozenset({Verdict.RETRY, Verdict.GIVE_UP})
