"""A small bank with its own records: the vendor of the built-in scenarios, with a resource for each kind of safety.

POST /charges        takes an Idempotency-Key and charges once per key               (keyed)
POST /carts          opens a cart; POST /carts/N/pay pays it, once; DELETE wipes     (findable)
GET  /payments       lists paid carts, some time after they were paid
POST /broadcasts     accepts the same signed bytes once                              (rebroadcast)
POST /quotes         creates a new, unfunded order each time                         (harmless)
POST /wires          wires on each request                                           (blind)
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from payonce.kit.http.failures import AnswerLost, ConnectionRefused

SHOWN_AFTER_S: Final = 30.0
"""Delay until a paid cart appears among the payments."""


@dataclass(frozen=True)
class Entry:
    """One record: this happened."""

    resource: str
    reference: str
    minor: int
    number: str
    at: datetime


@dataclass
class Bank:
    """An ASGI application. `faults` lists by resource and reference the faults of the first, second, … request: `lost
    before` and `lost after` it happened, `refused connection`, `declined`."""

    name: str
    now: Callable[[], datetime]
    faults: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    books: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._tries: Counter[tuple[str, str]] = Counter()
        self._by_key: dict[str, Entry] = {}
        self._carts: dict[int, str] = {}
        self._carts_opened = 0
        self._application = Starlette(
            routes=[
                Route("/charges", self._charge, methods=["POST"]),
                Route("/carts", self._open_cart, methods=["POST"]),
                Route("/carts", self._wipe_carts, methods=["DELETE"]),
                Route("/carts/{number:int}/pay", self._pay_cart, methods=["POST"]),
                Route("/payments", self._payments, methods=["GET"]),
                Route("/broadcasts", self._broadcast, methods=["POST"]),
                Route("/quotes", self._quote, methods=["POST"]),
                Route("/wires", self._wire, methods=["POST"]),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._application(scope, receive, send)

    def entries(self, resource: str) -> list[Entry]:
        return [entry for entry in self.books if entry.resource == resource]

    def times(self) -> Counter[str]:
        """How often each reference is recorded per resource."""
        return Counter(f"{self.name} {entry.resource} {entry.reference}" for entry in self.books)

    async def _charge(self, request: Request) -> Response:
        order = await request.json()
        key = request.headers.get("Idempotency-Key", "")
        return self._take("charges", order, self._by_key.get(key), lambda entry: self._by_key.update({key: entry}))

    async def _open_cart(self, request: Request) -> Response:
        order = await request.json()
        fault = self._fault("carts", order["reference"])
        if fault == "lost before":
            raise AnswerLost
        self._carts_opened += 1
        self._carts[self._carts_opened] = order["reference"]
        return JSONResponse({"cart": self._carts_opened}, status_code=201)

    async def _wipe_carts(self, request: Request) -> Response:
        reference = request.query_params["reference"]
        wiped = [number for number, holder in self._carts.items() if holder == reference]
        for number in wiped:
            del self._carts[number]
        return JSONResponse({"wiped": len(wiped)})

    async def _pay_cart(self, request: Request) -> Response:
        order = await request.json()
        number = request.path_params["number"]
        if number not in self._carts:
            return JSONResponse({"error": "there is no such cart"}, status_code=404)
        return self._take("payments", order, None, lambda entry: self._carts.pop(number))

    async def _payments(self, request: Request) -> Response:
        seen_until = self.now() - timedelta(seconds=SHOWN_AFTER_S)
        shown = [
            _shown(entry)
            for entry in self.entries("payments")
            if entry.reference == request.query_params["reference"] and entry.at <= seen_until
        ]
        return JSONResponse({"payments": shown})

    async def _broadcast(self, request: Request) -> Response:
        order = await request.json()
        known = next((entry for entry in self.entries("broadcasts") if entry.reference == order["reference"]), None)
        return self._take("broadcasts", order, known)

    async def _quote(self, request: Request) -> Response:
        return self._take("quotes", await request.json())

    async def _wire(self, request: Request) -> Response:
        return self._take("wires", await request.json())

    def _take(
        self, resource: str, order: Any, known: Entry | None = None, then: Callable[[Entry], object] | None = None
    ) -> Response:
        """Records the order unless it is known, with the next fault."""
        fault = self._fault(resource, order["reference"])
        match fault:
            case "lost before":
                raise AnswerLost
            case "refused connection":
                raise ConnectionRefused
            case "declined" if known is None:
                return JSONResponse({"error": "declined"}, status_code=402)
        entry = known
        if entry is None:
            number = f"{self.name}-{resource}-{len(self.books) + 1}"
            entry = Entry(resource, order["reference"], order["minor"], number, self.now())
            self.books.append(entry)
            if then is not None:
                then(entry)
        if fault == "lost after":
            raise AnswerLost
        return JSONResponse(_shown(entry), status_code=201)

    def _fault(self, resource: str, reference: str) -> str:
        faults = self.faults.get((resource, reference), ())
        tries = self._tries[resource, reference]
        self._tries[resource, reference] += 1
        if faults and faults[-1] == "declined" and tries >= len(faults):
            return "declined"
        return faults[tries] if tries < len(faults) else ""


def _shown(entry: Entry) -> dict[str, Any]:
    return {"number": entry.number, "reference": entry.reference, "minor": entry.minor}
