"""One subscription: how it stands, its timeline from both services, and the decisions about it that are safe there."""

from datetime import datetime
from typing import Any, Final

from starlette.responses import Response

from payonce.console.forms import number_of, reason_of, text_of
from payonce.console.page import Visit
from payonce.console.reads import bounded
from payonce.engine.controls import Executed, preview, submit, waiting_approval
from payonce.engine.monitoring.timeline import Kind, read_timeline
from payonce.kit.outcomes import Invalid, PayonceError, Retry, Stale
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
"""Of the newest; the list of invoices has all."""
FIELDS: Final = ("verdict", "why", "seen")

CHOICES: Final = {
    Verdict.RETRY: ("Charge it now", "What is owed is charged at once with the card that is the default now."),
    Verdict.PAUSE: ("Pause it", "It is not renewed and may not be used until somebody resumes it."),
    Verdict.RESUME: (
        "Resume it",
        "It goes on as before; if its period is over meanwhile, a new one begins now and is charged at once.",
    ),
    Verdict.CANCEL_AT_END: ("Cancel it with its period", "It may be used until then, and is not renewed."),
    Verdict.KEEP: ("Take the cancellation back", "It is renewed again when its period ends."),
    Verdict.CANCEL_NOW: (
        "Cancel it now",
        "It ends at once, and open invoices are taken back. What was paid is not given back. This cannot be undone.",
    ),
    Verdict.GIVE_UP: (
        "Mark its invoice uncollectible",
        "It is not tried again, and the books take what was served as a loss; the plan says what becomes of it.",
    ),
}
"""Each decision in a person's words, and what follows from it."""
_FINAL: Final = (Verdict.CANCEL_NOW, Verdict.GIVE_UP)


async def show_subscription(visit: Visit) -> Response:
    return await _page(visit, await _known(visit))


async def decide(visit: Visit) -> Response:
    """The first time it tells what would follow; with `sure` it is done, or asked of a second person."""
    seen = await _known(visit)
    try:
        given = _given(visit, seen)
        if text_of(visit.form, "sure") != "yes":
            return await _check(visit, seen, given)
        # In the trace that it has: what follows from a decision belongs to the same timeline.
        async with visit.context.begin(seen.trace_id) as tx:
            end = await submit(tx, visit.context.actions[ACTION], given, visit.person.name, given.note)
    except (Invalid, Stale) as error:
        return await _page(visit, await _known(visit), error)
    except Retry as error:
        return await _page(visit, await _known(visit), Stale(error.reason))
    if not isinstance(end, Executed):
        return visit.awaiting_approval(end.id)
    said = end.result["state"].replace("_", " ")
    retried = " What it owes is being charged." if given.verdict is Verdict.RETRY else ""
    return visit.done(f"/billing/subscriptions/{seen.id}", f"The subscription is {said}.{retried}")


def _given(visit: Visit, seen: SubscriptionSummary) -> SubscriptionDecision:
    said = text_of(visit.form, "verdict")
    if said not in tuple(Verdict):
        raise Invalid(f"the decision is {said[:40]!r}; choose one of those that are offered")
    revision = number_of(visit.form, "seen")
    if revision is None:
        raise Invalid("the form does not say what you saw; load the page again")
    if ACTION not in visit.context.actions:
        raise Invalid("this process does not know billing; decide in the console of one that does")
    return SubscriptionDecision(
        subscription_id=seen.id, seen=revision, verdict=Verdict(said), note=reason_of(visit.form)
    )


async def _check(visit: Visit, seen: SubscriptionSummary, given: SubscriptionDecision) -> Response:
    async with visit.context.begin(seen.trace_id) as tx:
        found = await preview(tx, visit.context.actions[ACTION], given, visit.person.name)
    label, consequence = CHOICES[given.verdict]
    path = f"/billing/subscriptions/{seen.id}"
    return visit.page(
        "check_change.html",
        f"{label}?",
        crumbs=[("Customers", "/billing/customers"), (seen.email, path)],
        sentences=[consequence],
        amounts=found.weighed.amounts,
        because=found.because,
        document=None,
        note=given.note,
        action=f"{path}/decide",
        back=path,
        button="Ask a second person" if found.because else label,
        hidden={**{name: text_of(visit.form, name) for name in FIELDS}, "sure": "yes"},
        danger=given.verdict in _FINAL,
    )


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
    # Postings and notes are among the facts, by what they are about.
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
