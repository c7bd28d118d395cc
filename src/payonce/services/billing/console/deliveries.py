"""Notifications from payments to subscriptions: their attempts, how they were received, and sending one again."""

from typing import Final

import msgspec
from starlette.responses import Response

from payonce.console.forms import PAGE_ROWS, choice_of, name_of, reason_of, text_of
from payonce.console.links import link
from payonce.console.page import Visit
from payonce.console.reads import bounded
from payonce.engine.audit import notes
from payonce.engine.ledger.model import Reads
from payonce.services.billing.console.queries import SUBSCRIPTIONS, has, id_from, not_found
from payonce.services.billing.payments.decisions import resend
from payonce.services.billing.payments.store import queries
from payonce.services.billing.payments.store.queries import Delivery
from payonce.services.billing.subscriptions.store import invoice_queries

CHOICES: Final = {"all": None, "waiting": False, "delivered": True}


async def list_deliveries(visit: Visit) -> Response:
    asked = visit.query
    chosen = choice_of(asked, "state", tuple(CHOICES), "all")
    reference, before = name_of(asked, "reference"), name_of(asked, "before")
    with_taken = await has(visit, SUBSCRIPTIONS)
    async with bounded(visit) as read:
        waiting, oldest = await queries.undelivered(read)
        found = await queries.deliveries(read, CHOICES[chosen], reference, before, PAGE_ROWS + 1)
        rows = found[:PAGE_ROWS]
        taken = await invoice_queries.received(read, [each.event_id for each in rows]) if with_taken else {}
    typed, here = {"reference": text_of(asked, "reference")}, "/billing/deliveries"
    return visit.page(
        "billing/deliveries.html",
        "Deliveries",
        rows=rows,
        taken=taken,
        chosen=chosen,
        choices=tuple(CHOICES),
        typed=typed,
        waiting=waiting,
        oldest=oldest,
        with_taken=with_taken,
        first=link(here, **typed, state=chosen) if before else None,
        next=link(here, **typed, state=chosen, before=rows[-1].event_id) if len(found) > PAGE_ROWS else None,
    )


async def send_again(visit: Visit) -> Response:
    """The receiver ignores duplicates, so no confirmation is needed; the audit log records who sent it again."""
    delivery = await _known(visit, visit.context.read)
    why = reason_of(visit.form)
    async with visit.context.begin(delivery.trace_id) as tx:
        await resend(tx, delivery.event_id, visit.person.name, why)
    return visit.done(f"/billing/deliveries/{delivery.event_id}", "It is being sent again.")


async def show_delivery(visit: Visit) -> Response:
    with_taken = await has(visit, SUBSCRIPTIONS)
    async with bounded(visit) as read:
        delivery = await _known(visit, read)
        said = await notes(read, reference=delivery.event_id, limit=PAGE_ROWS)
        attempts = await queries.attempts(read, delivery.event_id)
        received = await invoice_queries.received(read, [delivery.event_id]) if with_taken else {}
    return visit.page(
        "billing/delivery.html",
        f"Notification {delivery.event_id}",
        delivery=delivery,
        attempts=attempts,
        taken=received.get(delivery.event_id),
        with_taken=with_taken,
        body=_read(delivery.body),
        said=said,
    )


async def _known(visit: Visit, read: Reads) -> Delivery:
    given = id_from(visit, "notification")
    found = await queries.delivery(read, given)
    if found is None:
        raise not_found("notification", given)
    return found


def _read(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {"unreadable": body.decode(errors="replace")}
