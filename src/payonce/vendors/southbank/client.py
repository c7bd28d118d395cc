"""The client: Southbank's wire format, and the meaning of each answer for the caller.

| answer | means |
|---|---|
| 200 `BOOKED` that matches the order | it happened |
| 422 with a reason of the bank (AC01, AC04, AM04, AM12, FF01) | Refused: nothing moved |
| 422 `CUST` | Unknown: the reference was voided, so nothing moves under it; the next generation has another |
| 429; no connection | NotSent: nothing was done; all processes observe its Retry-After |
| any other status, an unreadable or mismatching answer, no answer | Unknown |
"""

from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec

from payonce.kit.budget import Budget, Unlimited
from payonce.kit.http import HttpClient, Response, Watch, request_within
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid, NotSent, Refused, Unknown
from payonce.vendors.southbank.port import PaymentOrder, PaymentReceipt, StatementLine, StatementPage

DEFINITE: Final = frozenset({"AC01", "AC04", "AM04", "AM12", "FF01"})
"""ISO 20022 reasons by which the bank says that nothing moved: account unknown, account closed, not enough money, bad
amount, bad form."""


class Payment(msgspec.Struct, frozen=True):
    status: str
    payment_id: str
    reference: str
    debtor: str
    creditor: str
    amount: str
    currency: str
    booked_ms: int


class PaymentList(msgspec.Struct, frozen=True):
    reference: str
    payments: list[Payment]


class Voided(msgspec.Struct, frozen=True):
    status: str
    reference: str


class Balance(msgspec.Struct, frozen=True):
    account: str
    currency: str
    amount: str


class Line(msgspec.Struct, frozen=True):
    payment_id: str
    reference: str
    counterparty: str
    amount: str
    currency: str
    booked_ms: int


class Lines(msgspec.Struct, frozen=True):
    account: str
    page: int
    pages: int
    lines: list[Line]


class SouthbankClient:
    """Speaks to Southbank through one HTTP client, within a budget of calls."""

    def __init__(self, http: HttpClient, budget: Budget | None = None, *, watch: Watch | None = None) -> None:
        self._http = http
        self._budget = budget or Unlimited()
        self._watch = watch

    async def pay(self, order: PaymentOrder) -> PaymentReceipt:
        body = {
            "reference": order.reference,
            "debtor": order.debtor,
            "creditor": order.creditor,
            "amount": order.value,
            "currency": order.currency,
        }
        answer = await self._ask("POST", "/payments", json=body)
        if answer.status != 200:
            raise _error_of(answer)
        return _receipt(answer, answer.decode(Payment), order)

    async def find_payment(self, order: PaymentOrder) -> PaymentReceipt | None:
        answer = _ok(await self._ask("GET", "/payments", query={"reference": order.reference}))
        found = answer.decode(PaymentList)
        if found.reference != order.reference:
            raise Unknown(f"{answer.source} answered about another reference than {order.reference}")
        if len(found.payments) > 1:
            raise Unknown(f"{answer.source} shows {len(found.payments)} payments under {order.reference}")
        return _receipt(answer, found.payments[0], order) if found.payments else None

    async def void(self, reference: str) -> None:
        answer = _ok(await self._ask("POST", "/payments/void", json={"reference": reference}))
        voided = answer.decode(Voided)
        if (voided.status, voided.reference) != ("VOIDED", reference):
            raise Unknown(f"{answer.source} does not say that {reference} is void")

    async def balance(self, account: str, asset: Asset) -> Amount:
        answer = _ok(await self._ask("GET", "/balance", query={"account": account, "currency": asset.code}))
        held = answer.decode(Balance)
        if (held.account, held.currency) != (account, asset.code):
            raise Unknown(f"{answer.source} answered about another account than {account} in {asset}")
        return _amount(answer, held.amount, asset)

    async def statement(self, account: str, begin: datetime, end: datetime, page: int = 1) -> StatementPage:
        query = {"account": account, "from_ms": _ms(begin), "to_ms": _ms(end), "page": page}
        answer = _ok(await self._ask("GET", "/statement", query=query))
        found = answer.decode(Lines)
        if (found.account, found.page) != (account, page):
            raise Unknown(f"{answer.source} answered with another page than {page} of {account}")
        lines = [
            StatementLine(
                each.payment_id, each.reference, each.counterparty, each.amount, each.currency, each.booked_ms
            )
            for each in found.lines
        ]
        return StatementPage(lines, found.pages)

    async def _ask(self, method: str, path: str, **options: Any) -> Response:
        # The first part of the path names the call: behind it may be ids.
        call = f"{method} {path.split('/')[1]}"
        observe = None if self._watch is None else partial(self._watch, call)
        return await request_within(self._budget, self._http, method, path, observe=observe, **options)


def _error_of(answer: Response) -> Exception:
    """The error that an unsuccessful answer means."""
    if answer.status == 429:
        return NotSent(f"{answer.source} was rate-limited: too many requests")
    try:
        document = answer.json()
        reason, text = str(document["reason"]), str(document["text"])
    except (Unknown, KeyError, TypeError):
        return Unknown(f"{answer.source} answered {answer.status}: {answer.excerpt()}")
    if answer.status == 422 and reason in DEFINITE:
        return Refused(f"{reason}: {text}")
    return Unknown(f"{answer.source} answered {answer.status} {reason}: {answer.excerpt()}")


def _ok(answer: Response) -> Response:
    """Returns a successful answer to a query. A refused query proves nothing, so it raises Unknown."""
    if answer.status != 200:
        problem = _error_of(answer)
        raise Unknown(str(problem)) if isinstance(problem, Refused) else problem
    return answer


def _receipt(answer: Response, payment: Payment, order: PaymentOrder) -> PaymentReceipt:
    """The receipt of the payment. Raises Unknown unless the payment matches the order in every field."""
    said = (payment.status, payment.reference, payment.debtor, payment.creditor, payment.currency)
    if said != ("BOOKED", order.reference, order.debtor, order.creditor, order.currency) or (
        _amount(answer, payment.amount, order.amount.asset) != order.amount
    ):
        raise Unknown(f"{answer.source} answered about another payment than {order.reference}")
    return PaymentReceipt(payment.payment_id, payment.reference, payment.booked_ms)


def _amount(answer: Response, text: str, asset: Asset) -> Amount:
    try:
        return Amount.from_decimal(text, asset)
    except Invalid as error:
        raise Unknown(f"{answer.source} answered with an invalid amount: {error}") from None


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)
