"""Giving a charge back from its invoice's page: the amount, what would follow, and a second person where it is much."""

from typing import Final

from starlette.responses import Response

from payonce.console.forms import number_of, reason_of, text_of
from payonce.console.page import Visit
from payonce.engine.controls import Executed, preview, submit
from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid, PayonceError, Retry, Stale
from payonce.services.billing.console.invoices import invoice_page, known_invoice
from payonce.services.billing.payments.decisions import ACTION, RefundDecision
from payonce.services.billing.payments.store import queries
from payonce.services.billing.payments.store.queries import ChargeSummary
from payonce.services.billing.subscriptions.store.invoice_queries import InvoiceSummary

FIELDS: Final = ("charge", "left", "amount", "why", "outside")


async def refund(visit: Visit) -> Response:
    """The first time it tells what would follow; with `sure` it is done, or asked of a second person."""
    bill = await known_invoice(visit)
    try:
        charge = await _charge(visit, bill)
        given = _given(visit, charge)
        if text_of(visit.form, "sure") != "yes":
            return await _check(visit, bill, charge, given)
        async with visit.context.begin(charge.trace_id) as tx:
            end = await submit(tx, visit.context.actions[ACTION], given, visit.person.name, given.note)
    except PayonceError as error:
        if not isinstance(error, (Invalid, Stale, Retry)):
            raise
        return await invoice_page(visit, bill, Stale(error.reason) if isinstance(error, Retry) else error)
    if isinstance(end, Executed):
        follows = "on record" if given.outside else "on its way"
        return visit.done(f"/billing/invoices/{bill.id}", f"Refund {end.result['refund']} is {follows}.")
    return visit.awaiting_approval(end.id)


async def _charge(visit: Visit, bill: InvoiceSummary) -> ChargeSummary:
    named = text_of(visit.form, "charge")
    charges = await queries.charges_of_invoice(visit.context.read, bill.id)
    found = [each for each in charges if each.id == named]
    if not found:
        raise Invalid(f"invoice {bill.number} has no charge {named[:40]!r}; load the page again")
    return found[0]


def _given(visit: Visit, charge: ChargeSummary) -> RefundDecision:
    if ACTION not in visit.context.actions:
        raise Invalid("this process does not know billing; decide in the console of one that does")
    left = number_of(visit.form, "left")
    if left is None:
        raise Invalid("the form does not say what you saw; load the page again")
    typed = text_of(visit.form, "amount")
    amount = None if not typed else Amount.from_decimal(typed, charge.amount.asset)
    return RefundDecision(
        transaction_id=charge.id,
        left_minor=left,
        amount_minor=None if amount is None else amount.minor,
        outside=text_of(visit.form, "outside") == "yes",
        note=reason_of(visit.form),
    )


async def _check(visit: Visit, bill: InvoiceSummary, charge: ChargeSummary, given: RefundDecision) -> Response:
    async with visit.context.begin(charge.trace_id) as tx:
        found = await preview(tx, visit.context.actions[ACTION], given, visit.person.name)
    path = f"/billing/invoices/{bill.id}"
    return visit.page(
        "check_change.html",
        "Give it back?",
        crumbs=[("Invoices", "/billing/invoices"), (bill.number, path)],
        sentences=_sentences(bill, charge, given, found.weighed.amounts[0]),
        amounts=found.weighed.amounts,
        because=found.because,
        document=None,
        note=given.note,
        action=f"{path}/refund",
        back=path,
        button="Ask a second person" if found.because else _button(given),
        danger=True,
        hidden={**{name: text_of(visit.form, name) for name in FIELDS}, "sure": "yes"},
    )


def _button(given: RefundDecision) -> str:
    return "Note it as given back" if given.outside else "Give it back"


def _sentences(bill: InvoiceSummary, charge: ChargeSummary, given: RefundDecision, amount: Amount) -> list[str]:
    return [
        f"{amount} has gone back to {bill.email} outside the gateway, as you say; the gateway is not asked."
        if given.outside
        else f"{amount} goes back to {charge.card or 'the card'} of {bill.email}.",
        "A credit note is issued. Whether the subscription goes on is another decision."
        if charge.id == bill.transaction_id
        else "It paid nothing of the invoice, so there is no credit note; what waited for its return goes on.",
    ]
