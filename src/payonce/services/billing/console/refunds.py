"""Refunding a charge on its invoice's page: the amount, a preview, and approval above the threshold."""

from typing import Final

from starlette.responses import Response

from payonce.console.decisions import Confirmation, DecisionForm, decide
from payonce.console.forms import number_of, reason_of, text_of
from payonce.console.page import Visit
from payonce.engine.controls import Assessment, Executed
from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid, PayonceError
from payonce.services.billing.console.invoices import invoice_page, known_invoice
from payonce.services.billing.payments.decisions import ACTION, RefundDecision
from payonce.services.billing.payments.store import queries
from payonce.services.billing.payments.store.queries import ChargeSummary
from payonce.services.billing.subscriptions.store.invoice_queries import InvoiceSummary

FIELDS: Final = ("charge", "left", "amount", "why", "outside")


async def refund(visit: Visit) -> Response:
    bill = await known_invoice(visit)

    async def refused(error: PayonceError) -> Response:
        return await invoice_page(visit, bill, error)

    def done(given: RefundDecision, end: Executed) -> Response:
        follows = "recorded" if given.outside else "in progress"
        return visit.done(_path(bill), f"Refund {end.result['refund']} is {follows}.")

    try:
        charge = await _charge(visit, bill)
    except Invalid as error:
        return await refused(error)
    form = DecisionForm(
        ACTION,
        _path(bill),
        read=lambda: _given(visit, charge),
        confirm=lambda given, assessment: _confirmation(bill, charge, given, assessment),
        done=done,
        refused=refused,
        verb="refund",
        trace_id=charge.trace_id,
    )
    return await decide(visit, form)


async def _charge(visit: Visit, bill: InvoiceSummary) -> ChargeSummary:
    named = text_of(visit.form, "charge")
    charges = await queries.charges_of_invoice(visit.context.read, bill.id)
    found = [each for each in charges if each.id == named]
    if not found:
        raise Invalid(f"invoice {bill.number} has no charge {named[:40]!r}; reload the page")
    return found[0]


def _given(visit: Visit, charge: ChargeSummary) -> RefundDecision:
    if ACTION not in visit.context.actions:
        raise Invalid("this process does not run billing; decide in the console of one that does")
    left = number_of(visit.form, "left")
    if left is None:
        raise Invalid("the form lacks the amount that you saw; reload the page")
    typed = text_of(visit.form, "amount")
    amount = None if not typed else Amount.from_decimal(typed, charge.amount.asset)
    return RefundDecision(
        transaction_id=charge.id,
        left_minor=left,
        amount_minor=None if amount is None else amount.minor,
        outside=text_of(visit.form, "outside") == "yes",
        note=reason_of(visit.form),
    )


def _confirmation(
    bill: InvoiceSummary, charge: ChargeSummary, given: RefundDecision, assessment: Assessment
) -> Confirmation:
    return Confirmation(
        "Refund this charge?",
        [("Invoices", "/billing/invoices"), (bill.number, _path(bill))],
        _sentences(bill, charge, given, assessment.amounts[0]),
        _button(given),
        FIELDS,
        danger=True,
    )


def _path(bill: InvoiceSummary) -> str:
    return f"/billing/invoices/{bill.id}"


def _button(given: RefundDecision) -> str:
    return "Record the refund" if given.outside else "Refund"


def _sentences(bill: InvoiceSummary, charge: ChargeSummary, given: RefundDecision, amount: Amount) -> list[str]:
    return [
        f"You state that {amount} was refunded to {bill.email} outside the gateway; the gateway is not called."
        if given.outside
        else f"{amount} is refunded to {charge.card or 'the card'} of {bill.email}.",
        "A credit note is issued. The subscription itself does not change."
        if charge.id == bill.transaction_id
        else "It did not pay the invoice, so there is no credit note; anything waiting for its return continues.",
    ]
