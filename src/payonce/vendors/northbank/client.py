"""The client: Northbank's wire format, and the meaning of each answer for the caller.

| answer | means |
|---|---|
| 201 that matches the order | it happened |
| 400, 402, 404, 409 with an error code of the bank | Refused: nothing moved, and nothing will under this key |
| 429; no connection | NotSent: nothing was done; all processes observe its Retry-After |
| 422 `key_reuse` | Unknown: something else happened under this key |
| any other status, an unreadable or mismatching answer, no answer | Unknown |
"""

from datetime import datetime
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import msgspec

from payonce.kit.budget import Budget, Unlimited
from payonce.kit.http import HttpClient, Response, Watch, request_within
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid, NotSent, Refused, Unknown
from payonce.vendors.northbank.port import StatementLine, StatementPage, TransferOrder, TransferReceipt

PAGE_LINES: Final = 200
DEFINITE: Final = {
    400: ("bad_request", "bad_amount"),
    402: ("insufficient_funds",),
    404: ("no_such_account",),
    409: ("account_closed",),
}
"""By status, the bank's own codes that guarantee that nothing moved. A proxy does not send them."""


class Money(msgspec.Struct, frozen=True):
    value: str
    currency: str


class WireTransfer(msgspec.Struct, frozen=True):
    id: str
    key: str
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    amount: Money
    booked_at: datetime


class TransferList(msgspec.Struct, frozen=True):
    transfers: list[WireTransfer]


class Balances(msgspec.Struct, frozen=True):
    account: str
    balances: list[Money]


class Line(msgspec.Struct, frozen=True):
    id: str
    key: str
    counterparty: str
    amount: Money
    booked_at: datetime


class Lines(msgspec.Struct, frozen=True):
    account: str
    entries: list[Line]
    next: str | None


class NorthbankClient:
    """Calls Northbank through one HTTP client, within a budget of calls."""

    def __init__(self, http: HttpClient, budget: Budget | None = None, *, watch: Watch | None = None) -> None:
        self._http = http
        self._budget = budget or Unlimited()
        self._watch = watch

    async def transfer(self, order: TransferOrder) -> TransferReceipt:
        body = {
            "from": order.source,
            "to": order.target,
            "amount": {"value": order.value, "currency": order.currency},
        }
        answer = await self._ask("POST", "/v1/transfers", json=body, headers={"Idempotency-Key": order.key})
        if answer.status != 201:
            raise _error_of(answer)
        booked = answer.decode(WireTransfer)
        if (booked.key, booked.source, booked.target) != (order.key, order.source, order.target) or (
            _amount(answer, booked.amount, order.amount.asset) != order.amount
        ):
            raise Unknown(f"{answer.source} answered about another transfer than the one that was ordered")
        return _receipt(booked)

    async def find_transfer(self, key: str) -> TransferReceipt | None:
        answer = _ok(await self._ask("GET", "/v1/transfers", query={"key": key}))
        found = answer.decode(TransferList).transfers
        if len(found) > 1 or any(each.key != key for each in found):
            raise Unknown(f"{answer.source} answered about other transfers than the one that was asked for")
        return _receipt(found[0]) if found else None

    async def balance(self, account: str, asset: Asset) -> Amount:
        answer = _ok(await self._ask("GET", f"/v1/accounts/{quote(account, safe='')}"))
        held = answer.decode(Balances)
        if held.account != account:
            raise Unknown(f"{answer.source} answered about another account than {account}")
        amounts = [_amount(answer, each, asset) for each in held.balances if each.currency == asset.code]
        return Amount.total(amounts, asset)

    async def statement(self, account: str, begin: datetime, end: datetime, after: str | None = None) -> StatementPage:
        query = {"account": account, "from": begin.isoformat(), "to": end.isoformat(), "limit": PAGE_LINES}
        answer = _ok(await self._ask("GET", "/v1/statement", query=query | ({"after": after} if after else {})))
        page = answer.decode(Lines)
        if page.account != account:
            raise Unknown(f"{answer.source} answered about another account than {account}")
        lines = [
            StatementLine(each.id, each.key, each.counterparty, each.amount.value, each.amount.currency, each.booked_at)
            for each in page.entries
        ]
        return StatementPage(lines, page.next)

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
        error = answer.json()["error"]
        code, text = str(error["code"]), str(error["message"])
    except (Unknown, KeyError, TypeError):
        return Unknown(f"{answer.source} answered {answer.status}: {answer.excerpt()}")
    if code in DEFINITE.get(answer.status, ()):
        return Refused(f"{code}: {text}")
    return Unknown(f"{answer.source} answered {answer.status} {code}: {answer.excerpt()}")


def _ok(answer: Response) -> Response:
    """Returns a successful answer to a query. A refused query proves nothing, so it raises Unknown."""
    if answer.status != 200:
        problem = _error_of(answer)
        raise Unknown(str(problem)) if isinstance(problem, Refused) else problem
    return answer


def _amount(answer: Response, money: Money, asset: Asset) -> Amount:
    try:
        return Amount.from_decimal(money.value, Asset(money.currency, asset.exponent))
    except Invalid as error:
        raise Unknown(f"{answer.source} answered with an invalid amount: {error}") from None


def _receipt(booked: WireTransfer) -> TransferReceipt:
    return TransferReceipt(booked.id, booked.key, booked.booked_at)
