"""The mint as it answers over HTTP, with its own books. Faults are put in front of it by `payonce.testing.Faulty`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from payonce import Amount
from payonce.vendors.books import VAULT, Books, Denied, amount_on_wire, system_clock
from payonce.vendors.journal import Journal

FLOAT: Final = "float"
"""Our money at the mint."""
CARDS: Final = "cards"
BLOCKED: Final = "mallory"
"""A holder for whom the mint issues nothing."""


class MintSimulator:
    """An ASGI application. With a journal, its books outlive the process."""

    def __init__(self, journal: Path | None = None) -> None:
        self.books = Books()
        self.books.open(FLOAT)
        self.books.open(CARDS)
        self._answers: dict[str, tuple[int, dict[str, Any]]] = {}
        self._journal = Journal(journal)
        for record in self._journal.records:
            self._apply(record)
        routes = [Route("/cards", self._issue, methods=["POST"]), Route("/cards", self._find)]
        self._application = Starlette(routes=routes)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._application(scope, receive, send)

    def deposit(self, *amounts: Amount) -> None:
        """Our first money at the mint; amounts of a currency that it already holds change nothing."""
        for amount in amounts:
            if not any(held.asset == amount.asset for held in self.books.balances(FLOAT)):
                self._record({"event": "deposited", "value": amount.to_text(), "currency": amount.asset.code})

    def balance(self, amount: Amount) -> Amount:
        """What is left of our money in the currency of this amount."""
        return self.books.balance(FLOAT, amount.asset)

    def close(self) -> None:
        self._journal.close()

    def _record(self, record: dict[str, Any]) -> None:
        self._journal.append(record)
        self._apply(record)

    def _apply(self, record: Mapping[str, Any]) -> None:
        """The only place that changes anything: the same records make the same mint."""
        if record["event"] == "deposited":
            amount = amount_on_wire(record["value"], record["currency"])
            self.books.book(VAULT, FLOAT, amount, "", system_clock())
            return
        if record["status"] == 201:
            amount = amount_on_wire(record["value"], record["currency"])
            self.books.book(FLOAT, CARDS, amount, record["key"], system_clock())
        self._answers[record["key"]] = (record["status"], record["answer"])

    async def _issue(self, request: Request) -> Response:
        key, order = request.headers.get("idempotency-key", ""), await request.json()
        if key not in self._answers:
            status, answer = self._decided(key, order)
            # A refusal is remembered like a card: a late copy of a refused order must not succeed.
            self._record({**order, "event": "answered", "key": key, "status": status, "answer": answer})
        status, answer = self._answers[key]
        return JSONResponse(answer, status)

    def _decided(self, key: str, order: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        if order["holder"] == BLOCKED:
            return 422, {"error": {"code": "holder_blocked", "message": f"{BLOCKED} gets no cards"}}
        try:
            self.books.check(FLOAT, CARDS, amount_on_wire(order["value"], order["currency"]))
        except Denied as denied:
            return 402, {"error": {"code": "float_exhausted", "message": denied.text}}
        return 201, {"code": f"GC{len(self.books.movements):08}", "key": key}

    async def _find(self, request: Request) -> Response:
        key = request.query_params["key"]
        status, answer = self._answers.get(key, (404, {}))
        return JSONResponse({"cards": [answer] if status == 201 else []})
