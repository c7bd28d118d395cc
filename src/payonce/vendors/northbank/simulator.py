"""A simulator of Northbank over HTTP, with its own books and without faults (those are in `payonce.testing.faults`)."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from payonce.kit.money import Amount, loads_exact
from payonce.kit.outcomes import Invalid
from payonce.vendors.books import VAULT, Books, Denied, Movement, amount_on_wire, moment_on_wire, system_clock
from payonce.vendors.journal import Journal
from payonce.vendors.northbank.port import KEYS_KEPT_S

PAGE_MAX = 500
STATUS = {"insufficient_funds": 402, "no_such_account": 404, "account_closed": 409, "key_reuse": 422}


class NorthbankSimulator:
    """An ASGI application. With a journal its books survive the process."""

    def __init__(self, journal: Path | None = None, clock: Callable[[], datetime] = system_clock) -> None:
        self.books = Books()
        self._clock = clock
        self._answers: dict[str, dict[str, Any]] = {}
        self._journal = Journal(journal)
        for record in self._journal.records:
            self._apply(record)
        self._routes = Starlette(
            routes=[
                Route("/v1/transfers", _json_endpoint(self._transfer), methods=["POST"]),
                Route("/v1/transfers", _json_endpoint(self._find)),
                Route("/v1/accounts/{account}", _json_endpoint(self._account)),
                Route("/v1/statement", _json_endpoint(self._statement)),
            ]
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._routes(scope, receive, send)

    def open_account(self, account: str, *opening: Amount) -> None:
        """Opens an account with money in it; one that exists stays as it is."""
        if account not in self.books.accounts:
            amounts = [{"value": each.to_text(), "currency": each.asset.code} for each in opening]
            self._record({"event": "opened", "account": account, "opening": amounts})

    def close_account(self, account: str) -> None:
        self._record({"event": "closed", "account": account})

    def close(self) -> None:
        self._journal.close()

    def _record(self, record: dict[str, Any], at: datetime | None = None) -> None:
        record = {**record, "at": (at or self._clock()).isoformat()}
        self._journal.append(record)
        self._apply(record)

    def _apply(self, record: Mapping[str, Any]) -> None:
        """The only place that changes the state, so that replaying the journal rebuilds the same bank."""
        at = datetime.fromisoformat(record["at"])
        match record["event"]:
            case "opened":
                self.books.open(record["account"])
                for each in record["opening"]:
                    amount = amount_on_wire(each["value"], each["currency"])
                    self.books.book(VAULT, record["account"], amount, "", at)
            case "closed":
                self.books.shut(record["account"])
            case "answered":
                if (order := record["order"]) is not None:
                    amount = amount_on_wire(order["amount"]["value"], order["amount"]["currency"])
                    self.books.book(order["from"], order["to"], amount, record["key"], at)
                self._answers[record["key"]] = dict(record)

    async def _transfer(self, request: Request) -> tuple[int, Any]:
        key, body = request.headers.get("idempotency-key", ""), await request.body()
        if not key:
            raise Denied("bad_request", "an order needs an Idempotency-Key")
        digest, now = hashlib.sha256(body).hexdigest(), self._clock()
        earlier = self._answers.get(key)
        if earlier and now < datetime.fromisoformat(earlier["at"]) + timedelta(seconds=KEYS_KEPT_S):
            if earlier["digest"] != digest:
                raise Denied("key_reuse", "this key belongs to another order")
            return earlier["status"], earlier["answer"]
        status, answer, order = self._decide(key, body, now)
        # The refusal is remembered like the booking: a late copy of a refused order must not succeed.
        self._record(
            {"event": "answered", "key": key, "digest": digest, "status": status, "answer": answer, "order": order}, now
        )
        return status, answer

    def _decide(self, key: str, body: bytes, now: datetime) -> tuple[int, Any, Any]:
        try:
            order = _order(body)
            amount = amount_on_wire(order["amount"].get("value"), order["amount"].get("currency"))
            self.books.check(order["from"], order["to"], amount)
        except Denied as refusal:
            return *_error(refusal), None
        answer = {**order, "id": f"nb-{len(self.books.movements) + 1}", "key": key, "booked_at": now.isoformat()}
        return 201, answer, order

    async def _find(self, request: Request) -> tuple[int, Any]:
        found = self.books.under(request.query_params.get("key") or "-")
        return 200, {"transfers": [_booked(each) for each in found]}

    async def _account(self, request: Request) -> tuple[int, Any]:
        account = self._known(request.path_params["account"])
        held = [{"value": each.to_text(), "currency": each.asset.code} for each in self.books.balances(account)]
        return 200, {"account": account, "balances": held}

    async def _statement(self, request: Request) -> tuple[int, Any]:
        asked = request.query_params
        account = self._known(asked.get("account", ""))
        begin, end = moment_on_wire(asked.get("from", "")), moment_on_wire(asked.get("to", ""))
        limit, after = min(_number(asked.get("limit", "100")), PAGE_MAX), _number(asked.get("after", "0"))
        rest = [each for each in self.books.statement(account, begin, end) if each.number > after]
        found, more = rest[:limit], len(rest) > limit
        return 200, {
            "account": account,
            "entries": [_line(each, account) for each in found],
            "next": str(found[-1].number) if more else None,
        }

    def _known(self, account: str) -> str:
        if account not in self.books.accounts:
            raise Denied("no_such_account", f"there is no account {account}")
        return account


def _json_endpoint(answer: Callable[[Request], Awaitable[tuple[int, Any]]]) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            status, document = await answer(request)
        except Denied as refusal:
            status, document = _error(refusal)
        return Response(msgspec.json.encode(document), status, media_type="application/json")

    return endpoint


def _error(refusal: Denied) -> tuple[int, Any]:
    return STATUS.get(refusal.code, 400), {"error": {"code": refusal.code, "message": refusal.text}}


def _order(body: bytes) -> dict[str, Any]:
    try:
        order = loads_exact(body)
    except Invalid as error:
        raise Denied("bad_request", str(error)) from error
    if not isinstance(order, dict) or not isinstance(order.get("amount"), dict):
        raise Denied("bad_request", "an order has from, to and amount")
    if not all(isinstance(order.get(name), str) for name in ("from", "to")):
        raise Denied("bad_request", "an order has from, to and amount")
    return {name: order[name] for name in ("from", "to", "amount")}


def _booked(movement: Movement) -> dict[str, Any]:
    return {
        "id": f"nb-{movement.number}",
        "key": movement.reference,
        "from": movement.source,
        "to": movement.target,
        "amount": {"value": movement.amount.to_text(), "currency": movement.amount.asset.code},
        "booked_at": movement.booked_at.astimezone(UTC).isoformat(),
    }


def _line(movement: Movement, account: str) -> dict[str, Any]:
    change = movement.change_of(account)
    return {
        "id": f"nb-{movement.number}",
        "key": movement.reference,
        "counterparty": movement.source if account == movement.target else movement.target,
        "amount": {"value": change.to_text(), "currency": change.asset.code},
        "booked_at": movement.booked_at.astimezone(UTC).isoformat(),
    }


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise Denied("bad_request", f"{text[:40]!r} is no whole number")
    return int(text)
