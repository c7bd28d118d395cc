"""A customer's credit: balances, entries and payouts, and the form to adjust credit or pay it out."""

from typing import Final

from starlette.responses import Response

from payonce.console.decisions import Confirmation, DecisionForm, decide
from payonce.console.forms import PAGE_ROWS, number_of, reason_of, text_of
from payonce.console.links import link
from payonce.console.page import Visit
from payonce.console.reads import bounded
from payonce.engine.controls import Assessment, Executed, waiting_approval
from payonce.kit.money import Amount, Asset, asset_of
from payonce.kit.outcomes import Invalid, PayonceError, Stale
from payonce.services.billing.console.queries import id_from, not_found
from payonce.services.billing.subscriptions.decisions.credit import ACTION, CreditChange, CreditVerdict
from payonce.services.billing.subscriptions.store import credit, credit_payouts, queries
from payonce.services.billing.subscriptions.store.queries import CustomerSummary

FIELDS: Final = ("verdict", "currency", "amount", "invoice", "why")
PAYOUTS: Final = 24
"""The newest ones."""
CURRENCIES_MAX: Final = 20

CHOICES: Final = {
    CreditVerdict.PAY_OUT: (
        "Pay out to the card",
        "The credit is deducted now, and an earlier charge is refunded. If the refund fails, the credit is restored.",
    ),
    CreditVerdict.PAID_BY_HAND: (
        "Record a manual payout",
        "The customer already received the money, by bank or in cash. The credit is deducted, and no money moves here.",
    ),
    CreditVerdict.ADD: ("Add credit", "The next invoices use it."),
    CreditVerdict.REMOVE: ("Remove credit", "The customer loses it without a refund."),
    CreditVerdict.EXPIRE: ("Expire credit", "Like removing it; the entry says that it expired."),
}
"""Label and consequence of each decision."""


async def show_credit(visit: Visit) -> Response:
    return await _page(visit, await _known(visit))


async def change_credit(visit: Visit) -> Response:
    customer = await _known(visit)

    async def refused(error: PayonceError) -> Response:
        return await _page(visit, customer, error)

    def done(given: CreditChange, end: Executed) -> Response:
        left = f"{end.result['balance']} {end.result['currency']} of credit is left."
        return visit.done(_path(customer), f"Done: {left}")

    form = DecisionForm(
        ACTION,
        _path(customer),
        read=lambda: _given(visit, customer),
        confirm=lambda given, assessment: _confirmation(customer, given, assessment),
        done=done,
        refused=refused,
    )
    return await decide(visit, form)


def _given(visit: Visit, customer: CustomerSummary) -> CreditChange:
    if ACTION not in visit.context.actions:
        raise Invalid("this process does not run billing; decide in the console of one that does")
    said = text_of(visit.form, "verdict")
    if said not in tuple(CreditVerdict):
        raise Invalid(f"the decision is {said[:40]!r}; choose one of the options on the page")
    asset = _asset(text_of(visit.form, "currency"))
    amount = Amount.from_decimal(text_of(visit.form, "amount"), asset)
    seen = number_of(visit.form, f"seen_{asset.code}")
    return CreditChange(
        account_id=customer.id,
        currency=asset.code,
        exponent=asset.exponent,
        seen=seen or 0,
        verdict=CreditVerdict(said),
        amount_minor=amount.minor,
        invoice=text_of(visit.form, "invoice") or None,
        note=reason_of(visit.form),
    )


def _asset(currency: str) -> Asset:
    try:
        return asset_of(currency.upper())
    except Invalid:
        raise Invalid(f"unknown currency {currency[:10]!r}; use its ISO code, such as AED") from None


def _confirmation(customer: CustomerSummary, given: CreditChange, assessment: Assessment) -> Confirmation:
    label, consequence = CHOICES[given.verdict]
    crumbs = [
        ("Customers", "/billing/customers"),
        (customer.email, f"/billing/customers/{customer.id}"),
        ("Credit", _path(customer)),
    ]
    sentences = [f"{assessment.text[:1].upper()}{assessment.text[1:]}.", consequence]
    fields = (*FIELDS, f"seen_{given.currency}")
    return Confirmation(f"{label}?", crumbs, sentences, label, fields, danger=given.verdict is not CreditVerdict.ADD)


async def _known(visit: Visit) -> CustomerSummary:
    given = id_from(visit, "customer")
    found = await queries.customer(visit.context.read, given)
    if found is None:
        raise not_found("customer", given)
    return found


async def _page(visit: Visit, customer: CustomerSummary, problem: PayonceError | None = None) -> Response:
    before = number_of(visit.query, "before")
    async with bounded(visit) as read:
        balances = await credit.balances(read, customer.id)
        entries = await credit.entries(read, customer.id, before, PAGE_ROWS + 1)
        payouts = await credit_payouts.of_account(read, customer.id, None, PAYOUTS)
    found = [
        await waiting_approval(visit.context.read, ACTION, f"{customer.id}:{each.amount.asset.code}")
        for each in balances[:CURRENCIES_MAX]
    ]
    waiting = [each for each in found if each]
    rows = entries[:PAGE_ROWS]
    status = 200 if problem is None else 409 if isinstance(problem, Stale) else 400
    following = rows[-1].id if len(entries) > PAGE_ROWS else None
    return visit.page(
        "billing/credit.html",
        f"Credit of {customer.email}",
        status=status,
        customer=customer,
        balances=balances,
        entries=rows,
        payouts=payouts,
        waiting=waiting,
        choices=[(each, *CHOICES[each]) for each in CHOICES] if ACTION in visit.context.actions and not waiting else [],
        currency=text_of(visit.form, "currency") or (balances[0].amount.asset.code if balances else ""),
        problem="" if problem is None else str(problem),
        typed={name: text_of(visit.form, name) for name in FIELDS},
        first=link(_path(customer)) if before else None,
        next=None if following is None else link(_path(customer), before=str(following)),
    )


def _path(customer: CustomerSummary) -> str:
    return f"/billing/customers/{customer.id}/credit"
