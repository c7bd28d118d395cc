"""A simulator of ChangeNOW over HTTP, with its own books and without faults (those are in `payonce.testing.faults`).

The endpoints below `/simulator` are not the vendor's: deposits from the chain, the books for test oracles, switches.
"""

import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Invalid
from payonce.vendors.books import Denied, system_clock
from payonce.vendors.changenow import documents
from payonce.vendors.changenow.books import Deposit, Entry, ExchangeBooks, Fate, Pace
from payonce.vendors.changenow.controls import control_routes
from payonce.vendors.changenow.fates import Fates
from payonce.vendors.changenow.port import PAGE_MAX, REQUESTS_PER_S, Pair, Range, Status
from payonce.vendors.changenow.prices import Listing, both, is_address, listing, quote
from payonce.vendors.changenow.requests import (
    amount_asked,
    free_fields,
    moment_or_none,
    order_in,
    parts,
    payin_address,
    whole_number,
)
from payonce.vendors.journal import Journal
from payonce.vendors.meter import Meter
from payonce.vendors.simulator_http import Paths

ID_BYTES: Final = 7
DOUBLE_DIGITS: Final = 16
RETRY_AFTER_S: Final = 1
ENDLESS: Final = datetime.max.replace(tzinfo=UTC)
UNKNOWN_DECIMALS: Final = 18
"""For deposits of unlisted assets."""
OPEN_PATHS: Final = ("/v2/exchange/currencies", "/v2/validate/address")
"""Paths that need no key."""
STATUS: Final = {"unauthorized": 401, "invalid_api_key": 403, "not_found": 404}


class ChangeNowSimulator:
    """An ASGI application. With a journal its books survive the process."""

    def __init__(
        self,
        journal: Path | None = None,
        clock: Callable[[], datetime] = system_clock,
        *,
        pace: Pace | None = None,
        fates: Fates | None = None,
        seed: int | None = None,
        limit_per_s: float | None = REQUESTS_PER_S,
        digits: int | None = None,
        api_key: str | None = None,
        private_key: str | None = None,
        tick: Callable[[], float] = time.monotonic,
    ) -> None:
        """With a seed the ids are the same each time; without, no two books have the same. Without an `api_key` any
        key will do; with a `private_key` the list wants that one. With `digits` amounts are said with no more:
        DOUBLE_DIGITS is what a number out of JavaScript is good for."""
        self.books = ExchangeBooks(pace or Pace())
        self.meter = Meter(limit_per_s, tick)
        self.inactive: set[Pair] = set()
        self.ranges: dict[Pair, Range] = {}
        self.small_is_inactive = False
        """The vendor's habit of calling a pair inactive when the amount is too small for it."""
        self._clock = clock
        self._ahead = timedelta()
        self._down_until: datetime | None = None
        self._fates = fates or Fates()
        self._seed = seed
        self._digits = digits
        self._keys = (api_key, private_key)
        self._journal = Journal(journal)
        for record in self._journal.records:
            self._apply(record)
        self._routes = Paths(
            [
                Route("/v2/exchange/estimated-amount", self._spoken(self._estimate)),
                Route("/v2/exchange", self._spoken(self._create), methods=["POST"]),
                Route("/v2/exchange/by-id", self._spoken(self._by_id)),
                Route("/v2/exchange/range", self._spoken(self._range)),
                Route("/v2/exchange/min-amount", self._spoken(self._range)),
                Route("/v2/exchange/currencies", self._spoken(self._currencies)),
                Route("/v2/validate/address", self._spoken(self._validate)),
                Route("/v2/exchanges", self._spoken(self._list)),
                *control_routes(self),
            ]
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._routes(scope, receive, send)

    @property
    def now(self) -> datetime:
        return self._clock() + self._ahead

    def deposit(self, payin_address: str, asset: str, amount: Decimal, tx_hash: str, network: str = "eth") -> Deposit:
        """Records a final payment on the chain, once per transaction; another transaction is a second deposit."""
        if (earlier := self.books.known(payin_address, tx_hash)) is not None:
            return earlier
        found = listing(asset, network)
        kind = found.asset if found else Asset(f"{asset}.{network}".upper(), UNKNOWN_DECIMALS)
        if not Amount.from_decimal(amount, kind).minor > 0:
            raise Invalid(f"a deposit of {amount} {asset}; it must be above zero")
        if (entry := self.books.at_address(payin_address)) is not None:
            self.settle(entry)
        self._record(
            {
                "event": "deposited",
                "address": payin_address,
                "asset": [kind.code, kind.exponent],
                "amount": format(amount, "f"),
                "tx_hash": tx_hash,
            }
        )
        return self.books.deposits[-1]

    def settle(self, entry: Entry) -> None:
        """Applies the exchange's due transitions, each at its own time."""
        now = self.now
        while (due := self.books.due(entry)) is not None and due[1] <= now:
            self._move(entry, due[0], due[1])

    def settle_all(self) -> ExchangeBooks:
        for entry in self.books.entries.values():
            self.settle(entry)
        return self.books

    def step(self, exchange_id: str) -> Status:
        """Advances to the next status now, regardless of the clock."""
        entry = self._entry(exchange_id)
        if (due := self.books.due(entry)) is not None:
            self._move(entry, due[0], self.now)
        return entry.status

    def decide(self, exchange_id: str, fate: Fate) -> Status:
        """Sets the outcome; also releases a verifying exchange or refunds a failed one."""
        entry = self._entry(exchange_id)
        self.settle(entry)
        self._record({"event": "decided", "id": exchange_id, "fate": fate.value})
        if entry.status in (Status.VERIFYING, Status.FAILED) and fate is Fate.REFUND:
            self._move(entry, Status.REFUNDED, self.now)
        elif entry.status is Status.VERIFYING and fate is not Fate.VERIFY:
            self._move(entry, Status.EXCHANGING, self.now)
        return entry.status

    def advance(self, seconds: float) -> None:
        """Moves the books' clock ahead."""
        self._record({"event": "advanced", "seconds": seconds})

    def take_down(self, for_s: float | None = None) -> None:
        """An outage: every call is answered 503, until it is over by the books' clock or brought up."""
        until = ENDLESS if for_s is None else self.now + timedelta(seconds=for_s)
        self._record({"event": "went_down", "until": until.isoformat()})

    def bring_up(self) -> None:
        self._record({"event": "went_down", "until": None})

    def switch(self, pair: Pair, *, active: bool) -> None:
        self._record({"event": "switched", "pair": list(parts(pair)), "active": active})

    def set_range(self, pair: Pair, least: Decimal, most: Decimal | None) -> None:
        written = None if most is None else format(most, "f")
        self._record({"event": "ranged", "pair": list(parts(pair)), "least": format(least, "f"), "most": written})

    def close(self) -> None:
        self._journal.close()

    def _entry(self, exchange_id: str) -> Entry:
        entry = self.books.entries.get(exchange_id)
        if entry is None:
            raise Invalid(f"there is no exchange {exchange_id[:40]!r} in these books")
        return entry

    def _move(self, entry: Entry, to: Status, at: datetime) -> None:
        tx_hash = f"0x{hashlib.blake2b(f'{entry.id} {to}'.encode(), digest_size=32).hexdigest()}"
        self._record({"event": "moved", "id": entry.id, "to": to.value, "tx_hash": tx_hash}, at)

    def _record(self, record: dict[str, Any], at: datetime | None = None) -> None:
        record = {**record, "at": (at or self.now).isoformat()}
        self._journal.append(record)
        self._apply(record)

    def _apply(self, record: Mapping[str, Any]) -> None:
        """The only place that changes the state, so that replaying the journal rebuilds the same exchange."""
        at = datetime.fromisoformat(record["at"])
        match record["event"]:
            case "created":
                self.books.create(_entry_of(record, at))
            case "deposited":
                asset = Asset(*record["asset"])
                self.books.deposit(record["address"], asset, Decimal(record["amount"]), record["tx_hash"], at)
            case "moved":
                self.books.move(record["id"], Status(record["to"]), record["tx_hash"], at)
            case "decided":
                self.books.decide(record["id"], Fate(record["fate"]))
            case "advanced":
                self._ahead += timedelta(seconds=record["seconds"])
            case "went_down":
                self._down_until = datetime.fromisoformat(record["until"]) if record["until"] else None
            case "switched":
                (self.inactive.discard if record["active"] else self.inactive.add)(Pair(*record["pair"]))
            case "ranged":
                most = None if record["most"] is None else Decimal(record["most"])
                self.ranges[Pair(*record["pair"])] = Range(Decimal(record["least"]), most)

    async def _estimate(self, request: Request) -> Any:
        pair, given, got = self._traded(request.query_params)
        amount = amount_asked(request.query_params.get("fromAmount"))
        self._check_range(pair, given, amount, "deposit_too_small", "Out of min amount")
        return documents.estimate(pair, quote(given, got, amount))

    async def _create(self, request: Request) -> Any:
        order = order_in(await request.body())
        pair, given, got = self._traded(order)
        amount = amount_asked(order.get("fromAmount"))
        address, refund = order.get("address"), order.get("refundAddress")
        least = self._limits(pair, given).min_amount
        small = f"Amount is less then minimal: {least:f} {given.ticker.upper()}"
        self._check_range(pair, given, amount, "out_of_range", small)
        if not isinstance(address, str) or not is_address(got.network, address):
            raise Denied("not_valid_address", "Recipient address is not valid")
        if refund and not (isinstance(refund, str) and is_address(given.network, refund)):
            raise Denied("not_valid_refund_address", "Refund address is not valid")
        new_id, now = self._new_id(), self.now
        extra = str(int(new_id, 16) % 10**9) if given.has_extra_id else None
        self._record(
            {
                "event": "created",
                "id": new_id,
                "pair": list(parts(pair)),
                "from_amount": format(amount, "f"),
                "to_amount": format(quote(given, got, amount).to_amount, "f"),
                "payin_address": payin_address(given, new_id),
                "payin_extra_id": extra,
                "address": address,
                "extra_id": order.get("extraId") or None,
                "refund_address": refund or None,
                "refund_extra_id": order.get("refundExtraId") or None,
                "user_id": order.get("userId") or None,
                "payload": free_fields(order.get("payload")),
                "fate": self._fates.draw(new_id).value,
                "valid_s": self.books.pace.waiting_s,
            },
            now,
        )
        return documents.created(self.books.entries[new_id])

    async def _by_id(self, request: Request) -> Any:
        entry = self.books.entries.get(request.query_params.get("id", ""))
        if entry is None:
            raise Denied("not_found", "Transaction not found")
        self.settle(entry)
        return documents.exchange(entry)

    async def _range(self, request: Request) -> Any:
        pair, given, _ = self._traded(request.query_params)
        limits = self._limits(pair, given)
        document = documents.pair(pair) | {"minAmount": limits.min_amount}
        return document if request.scope["path"].endswith("min-amount") else document | {"maxAmount": limits.max_amount}

    async def _currencies(self, request: Request) -> Any:
        return documents.currencies()

    async def _validate(self, request: Request) -> Any:
        network, address = request.query_params.get("currency", ""), request.query_params.get("address", "")
        if not address or not documents.supports(network):
            raise Denied("bad_params", f"Currency {network[:40]} is not supported")
        return documents.verdict(network, address, is_address(network, address))

    async def _list(self, request: Request) -> Any:
        asked = request.query_params
        begin, end = (moment_or_none(asked.get(name)) for name in ("dateFrom", "dateTo"))
        limit, offset = whole_number(asked.get("limit", "100")), whole_number(asked.get("offset", "0"))
        if not 1 <= limit <= PAGE_MAX:
            raise Denied("bad_params", f"limit must be 1 to {PAGE_MAX}")
        found = [
            each
            for each in self.settle_all().entries.values()
            if (begin is None or each.created_at >= begin) and (end is None or each.created_at <= end)
        ]
        if asked.get("sortDirection", "DESC").upper() == "DESC":
            found.reverse()
        return {"count": len(found), "exchanges": [documents.listed(each) for each in found[offset : offset + limit]]}

    def _traded(self, asked: Mapping[str, Any]) -> tuple[Pair, Listing, Listing]:
        names = ("fromCurrency", "fromNetwork", "toCurrency", "toNetwork")
        said = [asked.get(name) or "" for name in names]
        found = both(Pair(*said)) if all(isinstance(part, str) for part in said) else None
        if found is None:
            raise Denied("not_valid_params", "Currency is not supported")
        given, got = found
        pair = Pair(given.ticker, given.network, got.ticker, got.network)
        if given == got or pair in self.inactive:
            raise Denied("pair_is_inactive", "Pair is inactive")
        return pair, given, got

    def _limits(self, pair: Pair, given: Listing) -> Range:
        return self.ranges.get(pair) or Range(given.least, given.most)

    def _check_range(self, pair: Pair, given: Listing, amount: Decimal, code: str, text: str) -> None:
        limits = self._limits(pair, given)
        if amount < limits.min_amount:
            raise Denied("pair_is_inactive", "Pair is inactive") if self.small_is_inactive else Denied(code, text)
        if limits.max_amount is not None and amount > limits.max_amount:
            raise Denied("max_amount_exceeded", "Maximum amount exceeded")

    def _new_id(self) -> str:
        if self._seed is None:
            return secrets.token_hex(ID_BYTES)
        text = f"{self._seed} {len(self.books.entries)}"
        return hashlib.blake2b(text.encode(), digest_size=ID_BYTES).hexdigest()

    def _spoken(self, answer: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            if not self.meter.admits():
                return Response("Too Many Requests", 429, {"Retry-After": str(RETRY_AFTER_S)}, "text/plain")
            if self._down_until is not None and self.now < self._down_until:
                return Response(
                    "<html><body>503 Service Temporarily Unavailable</body></html>", 503, media_type="text/html"
                )
            try:
                self._check_key(request)
                document, status = await answer(request), 200
            except Denied as refusal:
                document, status = {"error": refusal.code, "message": refusal.text}, STATUS.get(refusal.code, 400)
            return Response(documents.encoded(document, self._digits), status, media_type="application/json")

        return endpoint

    def _check_key(self, request: Request) -> None:
        path, said = request.scope["path"], request.headers.get("x-changenow-api-key", "")
        key, private = self._keys
        if path in OPEN_PATHS:
            return
        if not said or (key is not None and said not in self._keys):
            raise Denied("unauthorized", "Unauthorized")
        if path == "/v2/exchanges" and private is not None and said != private:
            raise Denied("invalid_api_key", "Use private key for this endpoint")


def _entry_of(record: Mapping[str, Any], at: datetime) -> Entry:
    return Entry(
        record["id"],
        Pair(*record["pair"]),
        Decimal(record["from_amount"]),
        Decimal(record["to_amount"]),
        record["payin_address"],
        record["payin_extra_id"],
        record["address"],
        record["extra_id"],
        record["refund_address"],
        record["refund_extra_id"],
        record["user_id"],
        record["payload"],
        Fate(record["fate"]),
        at,
        at,
        at + timedelta(seconds=record["valid_s"]),
    )
