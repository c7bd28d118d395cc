"""One subscription: its state, its timeline from both services, and the decisions that are safe now."""

from datetime import datetime
from typing import Any, Final

from starlette.responses import Response

from payonce.console.decisions import Confirmation, DecisionForm, decide
from payonce.console.forms import number_of, reason_of, text_of
from payonce.console.page import Visit
from payonce.console.reads import bounded
from payonce.engine.controls import Executed, waiting_approval
from payonce.engine.monitoring.timeline import Kind, read_timeline
from payonce.kit.outcomes import Invalid, PayonceError, Stale
from payonce.services.billing.console.queries import PAYMENTS, has, id_from, not_found
from payonce.services.billing.payments.store import queries, timeline
from payonce.services.billing.subscriptions.decisions.subscriptions import (
    ACTION,
    SubscriptionDecision,
    Verdict,
    open_verdicts,
)
from payonce.services.billing.subscriptions.store import invoice_queries
from payonce.services.billing.subscriptions.store import queries as subscription_queries
from payonce.services.billing.subscriptions.store import timeline as of_subscriptions
from payonce.services.billing.subscriptions.store.invoice_queries import InvoiceFilter
from payonce.services.billing.subscriptions.store.queries import SubscriptionSummary

INVOICES: Final = 24
"""The newest ones; the list of invoices has all."""
FIELDS: Final = ("verdict", "why", "seen")

CHOICES: Final = {
    Verdict.RETRY: ("Charge it now", "The default card is charged for the amount owed at once."),
    Verdict.PAUSE: ("Pause it", "It is not renewed and not usable until somebody resumes it."),
    Verdict.RESUME: (
        "Resume it",
        "It continues; if its period is over, a new one begins now and is charged at once.",
    ),
    Verdict.CANCEL_AT_END: ("Cancel at the end of the period", "It stays usable until then and is not renewed."),
    Verdict.KEEP: ("Withdraw the cancellation", "It is renewed again when its period ends."),
    Verdict.CANCEL_NOW: (
        "Cancel it now",
        "It ends at once, and open invoices are voided. Payments are not refunded. This cannot be undone.",
    ),
    Verdict.GIVE_UP: (
        "Mark the invoice uncollectible",
        (
            "There are no further attempts, and the service used is booked as bad debt; the plan decides what becomes "
            "of the subscription."
        ),
    ),
}
"""Label and consequence of each decision."""
_FINAL: Final = (Verdict.CANCEL_NOW, Verdict.GIVE_UP)


async def show_subscription(visit: Visit) -> Response:
    return await _page(visit, await _known(visit))


async def decide_subscription(visit: Visit) -> Response:
    seen = await _known(visit)

    async def refused(error: PayonceError) -> Response:
        return await _page(visit, await _known(visit), error)

    def done(given: SubscriptionDecision, end: Executed) -> Response:
        state = end.result["state"].replace("_", " ")
        retried = " The amount owed is being charged." if given.verdict is Verdict.RETRY else ""
        return visit.done(_path(seen), f"The subscription is {state}.{retried}")

    form = DecisionForm(
        ACTION,
        _path(seen),
        read=lambda: _given(visit, seen),
        confirm=lambda given, _: _confirmation(seen, given),
        done=done,
        refused=refused,
        trace_id=seen.trace_id,
    )
    return await decide(visit, form)


def _given(visit: Visit, seen: SubscriptionSummary) -> SubscriptionDecision:
    said = text_of(visit.form, "verdict")
    if said not in tuple(Verdict):
        raise Invalid(f"the decision is {said[:40]!r}; choose one of the options on the page")
    revision = number_of(visit.form, "seen")
    if revision is None:
        raise Invalid("the form lacks the revision that you saw; reload the page")
    if ACTION not in visit.context.actions:
        raise Invalid("this process does not run billing; decide in the console of one that does")
    return SubscriptionDecision(
        subscription_id=seen.id, seen=revision, verdict=Verdict(said), note=reason_of(visit.form)
    )


def _confirmation(seen: SubscriptionSummary, given: SubscriptionDecision) -> Confirmation:
    label, consequence = CHOICES[given.verdict]
    crumbs = [("Customers", "/billing/customers"), (seen.email, _path(seen))]
    return Confirmation(f"{label}?", crumbs, [consequence], label, FIELDS, danger=given.verdict in _FINAL)


def _path(seen: SubscriptionSummary) -> str:
    return f"/billing/subscriptions/{seen.id}"


async def _known(visit: Visit) -> SubscriptionSummary:
    given = id_from(visit, "subscription")
    found = await subscription_queries.subscription(visit.context.read, given)
    if found is None:
        raise not_found("subscription", given)
    return found


async def _page(visit: Visit, seen: SubscriptionSummary, problem: PayonceError | None = None) -> Response:
    with_payments = await has(visit, PAYMENTS)
    async with bounded(visit) as read:
        invoices = await invoice_queries.listed(read, InvoiceFilter(reference=seen.id), None, INVOICES)
        owed = await invoice_queries.owed(read, seen.id)
        charged = await queries.charges_of_subscription(read, seen.id) if with_payments else []
        deliveries = await queries.deliveries_of(read, charged) if with_payments else []
        own, cut = await of_subscriptions.facts(read, seen, [each.event_id for each in deliveries])
        engine = await read_timeline(read, seen.id)
    waiting = await waiting_approval(visit.context.read, ACTION, seen.id)
    # The services' own entries already include postings and notes.
    timeline_entries = [
        timeline_entry for timeline_entry in engine.entries if timeline_entry.kind not in (Kind.POSTING, Kind.NOTE)
    ]
    verdicts = [] if waiting or ACTION not in visit.context.actions else open_verdicts(seen, owed)
    status = 200 if problem is None else 409 if isinstance(problem, Stale) else 400
    return visit.page(
        "billing/subscription.html",
        f"Subscription {seen.id}",
        status=status,
        seen=seen,
        invoices=invoices,
        owed=owed,
        timeline_entries=sorted([*own, *timeline.facts(charged, deliveries), *timeline_entries], key=_at),
        truncated=cut or engine.truncated,
        waiting=waiting,
        choices=[(each, *CHOICES[each]) for each in verdicts],
        problem="" if problem is None else str(problem),
        typed={name: text_of(visit.form, name) for name in FIELDS},
    )


def _at(timeline_entry: Any) -> datetime:
    at: datetime = timeline_entry.at
    return at
