"""A simulator of Southbank over HTTP, with its own books and without faults (those are in `payonce.testing.faults`)."""

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from payonce.kit.money import Amount, loads_exact
from payonce.kit.outcomes import Invalid
from payonce.vendors.books import VAULT, Books, Denied, Movement, amount_on_wire, system_clock
from payonce.vendors.journal import Journal
from payonce.vendors.southbank.port import LISTED_WITHIN_S

DEFAULT_LAG_S: Final = LISTED_WITHIN_S * 0.75
PAGE_LINES: Final = 100
REASONS: Final = {
    "no_such_account": "AC01",
    "account_closed": "AC04",
    "insufficient_funds": "AM04",
    "bad_amount": "AM12",
    "bad_request": "FF01",
}


class SouthbankSimulator:
    """An ASGI application. With a journal its books survive the process."""

    def __init__(
        self,
        journal: Path | None = None,
        clock: Callable[[], datetime] = system_clock,
        lag_s: float = DEFAULT_LAG_S,
    ) -> None:
        self.books = Books()
        self.voided: set[str] = set()
        self._clock = clock
        self._lag = timedelta(seconds=lag_s)
        self._journal = Journal(journal)
        for record in self._journal.records:
            self._apply(record)
        self._routes = Starlette(
            routes=[
                Route("/payments", _json_endpoint(self._pay), methods=["POST"]),
                Route("/payments", _json_endpoint(self._find)),
                Route("/payments/void", _json_endpoint(self._void), methods=["POST"]),
                Route("/balance", _json_endpoint(self._balance)),
                Route("/statement", _json_endpoint(self._statement)),
            ]
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._routes(scope, receive, send)

    def open_account(self, account: str, *opening: Amount) -> None:
        """Opens an account with money in it; one that exists stays as it is."""
        if account not in self.books.accounts:
            amounts = [{"amount": each.to_text(), "currency": each.asset.code} for each in opening]
            self._record({"event": "opened", "account": account, "opening": amounts})

    def close_account(self, account: str) -> None:
        self._record({"event": "closed", "account": account})

    def close(self) -> None:
        self._journal.close()

    def _record(self, record: dict[str, Any]) -> None:
        record = {**record, "at": self._clock().isoformat()}
        self._journal.append(record)
        self._apply(record)

    def _apply(self, record: Mapping[str, Any]) -> None:
        """The only place that changes the state, so that replaying the journal rebuilds the same bank."""
        at = datetime.fromisoformat(record["at"])
        match record["event"]:
            case "opened":
                self.books.open(record["account"])
                for each in record["opening"]:
                    amount = amount_on_wire(each["amount"], each["currency"])
                    self.books.book(VAULT, record["account"], amount, "", at)
            case "closed":
                self.books.shut(record["account"])
            case "voided":
                self.voided.add(record["reference"])
            case "booked":
                amount = amount_on_wire(record["amount"], record["currency"])
                self.books.book(record["debtor"], record["creditor"], amount, record["reference"], at)

    async def _pay(self, request: Request) -> tuple[int, Any]:
        names = ("reference", "debtor", "creditor", "amount", "currency")
        order = _fields(await request.body(), names)
        amount = amount_on_wire(order["amount"], order["currency"])
        if order["reference"] in self.voided:
            return 422, {"reason": "CUST", "text": "this reference was voided"}
        self.books.check(order["debtor"], order["creditor"], amount)
        self._record({"event": "booked", **order})
        return 200, _payment(self.books.movements[-1])

    async def _find(self, request: Request) -> tuple[int, Any]:
        reference = request.query_params.get("reference") or "-"
        return 200, {"reference": reference, "payments": [_payment(each) for each in self._listed(reference)]}

    async def _void(self, request: Request) -> tuple[int, Any]:
        """Checks the books, not the listing: a payment that is booked but not yet listed can no longer be voided."""
        reference = _fields(await request.body(), ("reference",))["reference"]
        if self.books.under(reference):
            return 409, {"reason": "BOOKED", "text": "a payment under this reference is booked"}
        if reference not in self.voided:
            self._record({"event": "voided", "reference": reference})
        return 200, {"status": "VOIDED", "reference": reference}

    async def _balance(self, request: Request) -> tuple[int, Any]:
        account, currency = self._known(request), request.query_params.get("currency", "")
        held = self.books.balance(account, amount_on_wire("0", currency).asset)
        return 200, {"account": account, "currency": currency, "amount": held.to_text()}

    async def _statement(self, request: Request) -> tuple[int, Any]:
        account, asked = self._known(request), request.query_params
        begin, end = (_moment(asked.get(name, "")) for name in ("from_ms", "to_ms"))
        page = _number(asked.get("page", "1"))
        end = min(end, self._clock() - self._lag)
        found = self.books.statement(account, begin, end)
        shown = found[(page - 1) * PAGE_LINES : page * PAGE_LINES] if page else []
        return 200, {
            "account": account,
            "page": page,
            "pages": max(1, -(-len(found) // PAGE_LINES)),
            "lines": [_line(each, account) for each in shown],
        }

    def _listed(self, reference: str) -> list[Movement]:
        until = self._clock() - self._lag
        return [each for each in self.books.under(reference) if each.booked_at <= until]

    def _known(self, request: Request) -> str:
        account = request.query_params.get("account", "")
        if account not in self.books.accounts:
            raise Denied("no_such_account", f"there is no account {account}")
        return account


def _json_endpoint(answer: Callable[[Request], Awaitable[tuple[int, Any]]]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            status, document = await answer(request)
        except Denied as refusal:
            status, document = 422, {"reason": REASONS[refusal.code], "text": refusal.text}
        return Response(msgspec.json.encode(document), status, media_type="application/json")

    return endpoint


def _fields(body: bytes, names: tuple[str, ...]) -> dict[str, str]:
    try:
        document = loads_exact(body)
    except Invalid as error:
        raise Denied("bad_request", str(error)) from error
    if not isinstance(document, dict) or not all(isinstance(document.get(name), str) for name in names):
        raise Denied("bad_request", f"wanted are texts for {', '.join(names)}")
    return {name: document[name] for name in names}


def _payment(movement: Movement) -> dict[str, Any]:
    return {
        "status": "BOOKED",
        "payment_id": f"SB{movement.number:08}",
        "reference": movement.reference,
        "debtor": movement.source,
        "creditor": movement.target,
        "amount": movement.amount.to_text(),
        "currency": movement.amount.asset.code,
        "booked_ms": _ms(movement.booked_at),
    }


def _line(movement: Movement, account: str) -> dict[str, Any]:
    change = movement.change_of(account)
    return {
        "payment_id": f"SB{movement.number:08}",
        "reference": movement.reference,
        "counterparty": movement.source if account == movement.target else movement.target,
        "amount": change.to_text(),
        "currency": change.asset.code,
        "booked_ms": _ms(movement.booked_at),
    }


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000)


def _moment(text: str) -> datetime:
    return datetime.fromtimestamp(_number(text) / 1_000, UTC)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 14):
        raise Denied("bad_request", f"{text[:40]!r} is no whole number")
    return int(text)
