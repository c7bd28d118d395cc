"""The card gateway as it answers over HTTP, with books of its own; it draws no faults of the wire (those are
`payonce.testing.faults`). Below `/simulator` is what a gateway does not have: its books for oracles, and switches."""

import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from payonce.kit.http import HttpClient
from payonce.kit.outcomes import Invalid
from payonce.kit.webhooks import Secret
from payonce.vendors.books import Denied, system_clock
from payonce.vendors.gateway import cards, documents, outbox, requests
from payonce.vendors.gateway.books import ChargeEntry, GatewayBooks, RefundEntry
from payonce.vendors.gateway.controls import control_routes
from payonce.vendors.gateway.port import KEYS_KEPT_S, REQUESTS_PER_S, EventType, RefusalCode
from payonce.vendors.journal import Journal
from payonce.vendors.meter import Meter

ID_BYTES: Final = 12
KEY_MAX_CHARS: Final = 255
RETRY_AFTER_S: Final = 1
ENDLESS: Final = datetime.max.replace(tzinfo=UTC)
REPLAYED: Final = "Idempotent-Replayed"
TOKENS: Final = "/v1/tokens"
"""Cards are handed in by browsers, which have no key of ours."""
STATUS: Final = {
    "unauthorized": 401,
    RefusalCode.NO_SUCH_TOKEN: 404,
    RefusalCode.NO_SUCH_CHARGE: 404,
    "no_such_refund": 404,
    "key_reuse": 409,
    RefusalCode.AMOUNT_TOO_LARGE: 422,
    RefusalCode.CHARGE_FAILED: 422,
}

Answer = tuple[int, Any, Mapping[str, str]]
PLAIN: Final[Mapping[str, str]] = {}


class GatewaySimulator:
    """An ASGI application. Its books outlive the process when it is given a journal."""

    def __init__(
        self,
        journal: Path | None = None,
        clock: Callable[[], datetime] = system_clock,
        *,
        seed: int | None = None,
        post: outbox.WebhookFaults | None = None,
        limit_per_s: float | None = REQUESTS_PER_S,
        api_key: str | None = None,
        tick: Callable[[], float] = time.monotonic,
    ) -> None:
        """With a seed the ids are the same each time, and it decides which cards pay; without, no two books have the
        same ids. Without an `api_key` any key will do."""
        self.books = GatewayBooks()
        self.outbox = outbox.Outbox()
        self.cards: dict[str, cards.Card] = {}
        self.meter = Meter(limit_per_s, tick)
        self._clock = clock
        self._ahead = timedelta()
        self._down_until: datetime | None = None
        self._seed = seed
        self._post = post or outbox.WebhookFaults()
        self._api_key = api_key
        self._answers: dict[str, Mapping[str, Any]] = {}
        self._journal = Journal(journal)
        for record in self._journal.records:
            self._apply(record)
        self._routes = Starlette(
            routes=[
                Route(TOKENS, self._spoken(self._tokenise), methods=["POST"]),
                Route(f"{TOKENS}/{{id}}", self._spoken(self._token)),
                Route("/v1/charges", self._keyed(self._charge), methods=["POST"]),
                Route("/v1/charges", self._spoken(self._charges)),
                Route("/v1/charges/{id}", self._spoken(self._charge_of)),
                Route("/v1/refunds", self._keyed(self._refund), methods=["POST"]),
                Route("/v1/refunds", self._spoken(self._refunds)),
                Route("/v1/refunds/{id}", self._spoken(self._refund_of)),
                Route("/v1/balance_transactions", self._spoken(self._statement)),
                *control_routes(self),
            ]
        )

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._routes(scope, receive, send)

    @property
    def now(self) -> datetime:
        return self._clock() + self._ahead

    def tokenise(self, number: str, exp_month: int = 12, exp_year: int = 2099) -> str:
        """As a browser does it; for tests and demonstrations that have none."""
        try:
            number = cards.check_number(number)
            cards.check_expiry(exp_month, exp_year, self.now)
        except Denied as refusal:
            raise Invalid(f"the card cannot be used: {refusal.text}") from None
        return self._keep_card(self._new_id("pm"), number, exp_month, exp_year)

    def replace_card(self, token: str, number: str) -> None:
        """Another card behind the same token."""
        card = self._card(token)
        try:
            number = cards.check_number(number)
        except Denied as refusal:
            raise Invalid(f"the card cannot be used: {refusal.text}") from None
        self._keep_card(token, number, card.exp_month, card.exp_year)

    def script(self, token: str, *ends: str) -> None:
        """How the card's next charges end, each `succeeds` or a code; after them it is as before."""
        self._card(token)
        if unknown := [each for each in ends if each not in cards.OUTCOMES]:
            raise Invalid(f"a charge cannot end as {unknown[0][:40]!r}; it can as {', '.join(cards.OUTCOMES)}")
        self._record({"event": "scripted", "token": token, "ends": list(ends)})

    def advance(self, seconds: float) -> None:
        """Moves the books' clock ahead."""
        self._record({"event": "advanced", "seconds": seconds})

    def take_down(self, for_s: float | None = None) -> None:
        """An outage: every call is answered 503, until it is over by the books' clock or brought up."""
        until = ENDLESS if for_s is None else self.now + timedelta(seconds=for_s)
        self._record({"event": "went_down", "until": until.isoformat()})

    def bring_up(self) -> None:
        self._record({"event": "went_down", "until": None})

    async def deliver(self, http: HttpClient, secrets: Sequence[Secret]) -> int:
        """Posts the webhooks that are due by the books' clock to the address of `http`."""

        def record(webhook: outbox.QueuedWebhook, arrived: bool) -> None:
            self._record({"event": "told", "letter": webhook.number, "arrived": arrived})

        return await outbox.deliver(self.outbox, http, secrets, self.now, record)

    def close(self) -> None:
        self._journal.close()

    def _card(self, token: str) -> cards.Card:
        card = self.cards.get(token)
        if card is None:
            raise Invalid(f"there is no token {token[:40]!r} at this gateway")
        return card

    def _keep_card(self, token: str, number: str, exp_month: int, exp_year: int) -> str:
        self._record(
            {
                "event": "carded",
                "token": token,
                "brand": cards.brand_of(number),
                "last4": number[-4:],
                "exp_month": exp_month,
                "exp_year": exp_year,
                "nature": cards.nature_of(number),
                "fingerprint": cards.fingerprint_of(number, self._seed or 0),
            }
        )
        return token

    def _record(self, record: dict[str, Any], at: datetime | None = None) -> None:
        record = {**record, "at": (at or self.now).isoformat()}
        self._journal.append(record)
        self._apply(record)

    def _apply(self, record: Mapping[str, Any]) -> None:
        """The only place that changes the state, so that replaying the journal rebuilds the same gateway."""
        match record["event"]:
            case "carded":
                fields = {name: record[name] for name in record if name not in ("event", "at")}
                self.cards[record["token"]] = cards.Card(**fields)
            case "scripted":
                self.cards[record["token"]].script = list(record["ends"])
            case "answered":
                self._apply_answer(record)
            case "told":
                self.outbox.record_attempt(record["letter"], record["arrived"], datetime.fromisoformat(record["at"]))
            case "advanced":
                self._ahead += timedelta(seconds=record["seconds"])
            case "went_down":
                self._down_until = datetime.fromisoformat(record["until"]) if record["until"] else None

    def _apply_answer(self, record: Mapping[str, Any]) -> None:
        at = datetime.fromisoformat(record["at"])
        self._answers[record["key"]] = {name: record[name] for name in ("digest", "status", "answer", "at")}
        due = [datetime.fromisoformat(each) for each in record["due"]]
        if (fields := record["charge"]) is not None:
            entry = ChargeEntry(**fields, created=at)
            self.books.charge(entry)
            if (script := self.cards[entry.payment_method].script) != []:
                script.pop(0)
            kind = EventType.CHARGE_FAILED if entry.decline_code else EventType.CHARGE_SUCCEEDED
            self.outbox.put(record["event_id"], kind, documents.moment(at), documents.charge(entry, 0), due)
        if (fields := record["refund"]) is not None:
            refund = RefundEntry(**fields, created=at)
            self.books.refund(refund)
            moment = documents.moment(at)
            self.outbox.put(record["event_id"], EventType.REFUND_SUCCEEDED, moment, documents.refund(refund), due)

    async def _tokenise(self, request: Request) -> Answer:
        asked = requests.document_in(await request.body())
        number = cards.check_number(asked.get("number"))
        month, year = cards.check_expiry(asked.get("exp_month"), asked.get("exp_year"), self.now)
        cards.check_security_code(asked.get("cvc"))
        token = self._keep_card(self._new_id("pm"), number, month, year)
        return 201, documents.token(self.cards[token]), PLAIN

    async def _token(self, request: Request) -> Answer:
        card = self.cards.get(request.path_params["id"])
        if card is None:
            raise Denied(RefusalCode.NO_SUCH_TOKEN, "There is no such payment method.")
        return 200, documents.token(card), PLAIN

    def _charge(self, asked: dict[str, Any], now: datetime) -> tuple[int, Any, dict[str, Any]]:
        amount, currency, reference = (
            requests.amount_in(asked),
            requests.currency_in(asked),
            requests.reference_in(asked),
        )
        metadata, method = requests.metadata_in(asked), asked.get("payment_method")
        card = self.cards.get(method) if isinstance(method, str) else None
        if card is None:
            raise Denied(RefusalCode.NO_SUCH_TOKEN, "There is no such payment method.")
        seed = self._seed or 0
        entry = ChargeEntry(
            self._new_id("ch"),
            card.token,
            amount,
            currency,
            reference,
            metadata,
            now,
            cards.delay_ms(reference, seed),
            cards.decline_of(card, reference, seed),
        )
        answer = documents.declined(entry) if entry.decline_code else documents.charge(entry, 0)
        return (402 if entry.decline_code else 201), answer, {"charge": _fields(entry)}

    def _refund(self, asked: dict[str, Any], now: datetime) -> tuple[int, Any, dict[str, Any]]:
        amount, reference, reason = requests.amount_in(asked), requests.reference_in(asked), asked.get("reason") or ""
        if not isinstance(reason, str):
            raise requests.bad("A reason is a text.")
        charge = self.books.check_refund(asked.get("charge"), amount)
        entry = RefundEntry(self._new_id("re"), charge.id, amount, charge.currency, reference, reason, now)
        return 201, documents.refund(entry), {"refund": _fields(entry)}

    async def _charges(self, request: Request) -> Answer:
        found = self.books.charges_of(request.query_params.get("reference", ""))
        limit = requests.limit_in(request.query_params.get("limit"))
        return 200, documents.page(found, limit, lambda entry: documents.charge(entry, self._refunded(entry))), PLAIN

    async def _charge_of(self, request: Request) -> Answer:
        entry = self.books.charges.get(request.path_params["id"])
        if entry is None:
            raise Denied(RefusalCode.NO_SUCH_CHARGE, "There is no such charge.")
        return 200, documents.charge(entry, self._refunded(entry)), PLAIN

    async def _refunds(self, request: Request) -> Answer:
        found = self.books.refunds_of(request.query_params.get("reference", ""))
        return 200, documents.page(found, requests.limit_in(request.query_params.get("limit")), documents.refund), PLAIN

    async def _refund_of(self, request: Request) -> Answer:
        entry = self.books.refunds.get(request.path_params["id"])
        if entry is None:
            raise Denied("no_such_refund", "There is no such refund.")
        return 200, documents.refund(entry), PLAIN

    async def _statement(self, request: Request) -> Answer:
        limit = requests.limit_in(request.query_params.get("limit"))
        begin = requests.line_in(request.query_params.get("after"))
        return 200, documents.page(self.books.lines[begin : begin + limit + 1], limit, documents.line), PLAIN

    def _refunded(self, entry: ChargeEntry) -> int:
        return self.books.refunded_of(entry.id)

    def _keyed(
        self, decide: Callable[[dict[str, Any], datetime], tuple[int, Any, dict[str, Any]]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """An order under a key: decided once, and the decision is remembered, a no like a yes: a late copy of an order
        that was declined must not succeed."""

        async def answer(request: Request) -> Answer:
            key, body = request.headers.get("idempotency-key", ""), await request.body()
            if not 1 <= len(key) <= KEY_MAX_CHARS:
                raise requests.bad("An order needs an Idempotency-Key.")
            digest, now = requests.digest_of(request.url.path, body), self.now
            earlier = self._answers.get(key)
            if earlier and now < datetime.fromisoformat(earlier["at"]) + timedelta(seconds=KEYS_KEPT_S):
                if earlier["digest"] != digest:
                    raise Denied("key_reuse", "The key was used for another order.")
                return earlier["status"], earlier["answer"], {REPLAYED: "true"}
            made: dict[str, Any] = {}
            try:
                status, document, made = decide(requests.document_in(body), now)
            except Denied as refusal:
                status, document = STATUS.get(refusal.code, 400), documents.error(refusal)
            event_id = self._new_id("evt")
            delay = timedelta(milliseconds=made.get("charge", {}).get("delay_ms", cards.DELAY_MIN_MS))
            due = [each.isoformat() for each in self._post.draw(event_id, now + delay)]
            self._record(
                {
                    "event": "answered",
                    "key": key,
                    "digest": digest,
                    "status": status,
                    "answer": document,
                    "charge": None,
                    "refund": None,
                    "event_id": event_id,
                    "due": due,
                    **made,
                },
                now,
            )
            return status, document, PLAIN

        return self._spoken(answer)

    def _new_id(self, kind: str) -> str:
        if self._seed is None:
            return f"{kind}_{secrets.token_hex(ID_BYTES)}"
        count = len(self.cards) + len(self._answers)
        text = f"{self._seed} {kind} {count} {len(self.books.charges)} {len(self.books.refunds)}"
        return f"{kind}_{hashlib.blake2b(text.encode(), digest_size=ID_BYTES).hexdigest()}"

    def _spoken(self, answer: Callable[[Request], Awaitable[Answer]]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            if not self.meter.admits():
                return Response("Too Many Requests", 429, {"Retry-After": str(RETRY_AFTER_S)}, "text/plain")
            if self._down_until is not None and self.now < self._down_until:
                return Response("<html><body>503 Service Unavailable</body></html>", 503, media_type="text/html")
            try:
                self._check_key(request)
                status, document, headers = await answer(request)
            except Denied as refusal:
                status, document, headers = STATUS.get(refusal.code, 400), documents.error(refusal), {}
            return Response(msgspec.json.encode(document), status, headers, "application/json")

        return endpoint

    def _check_key(self, request: Request) -> None:
        if request.url.path == TOKENS:
            return
        scheme, _, said = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not said or self._api_key not in (None, said):
            raise Denied("unauthorized", "The API key is not valid.")


def _fields(entry: ChargeEntry | RefundEntry) -> dict[str, Any]:
    """For the journal, which has the moment already."""
    return {name: getattr(entry, name) for name in entry.__dataclass_fields__ if name != "created"}
