"""The client: ChangeNOW's wire format, and the meaning of each answer for the caller.

| answer | a query (GET) | `create` (POST) |
|---|---|---|
| 200 that matches the request | the answer | it was created |
| 429 | Retry after its Retry-After, which all processes observe | NotSent, likewise |
| no connection; no turn in the budget | Retry | NotSent |
| 5xx, time-out, dropped connection, unusable 200; 400 and 422 in broken JSON | Retry | Unknown |
| 401, 403 | ExchangeRefused NOT_ALLOWED | the same |
| any other 4xx with an error code of the vendor; 400 and 422 in plain text | ExchangeRefused | the same |
| 404 `not_found` to `exchange` | None | |
| any other status | Retry | Unknown |
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final

from payonce.kit.budget import Budget, Unlimited
from payonce.kit.http import HttpClient, Response, Unsendable, request_within
from payonce.kit.outcomes import Invalid, NotSent, Refused, Retry, Unknown
from payonce.kit.redact import redact
from payonce.vendors.changenow import wire
from payonce.vendors.changenow.port import (
    PAGE_MAX,
    REFERENCE_MAX_CHARS,
    AddressVerdict,
    Code,
    Currency,
    Estimate,
    Exchange,
    ExchangeRefused,
    Order,
    Pair,
    Range,
    Swap,
)

KEY_HEADER: Final = "x-changenow-api-key"
FLOW: Final = {"flow": "standard"}
CODES: Final = {
    "out_of_range": Code.TOO_SMALL,
    "deposit_too_small": Code.TOO_SMALL,
    "less_min_amount": Code.TOO_SMALL,
    "max_amount_exceeded": Code.TOO_LARGE,
    "not_valid_address": Code.BAD_ADDRESS,
    "not_valid_refund_address": Code.BAD_REFUND_ADDRESS,
    "pair_is_inactive": Code.PAIR_INACTIVE,
}
ABOVE: Final = ("maxim", "more than", "more then", "greater", "exceed")
"""Words by which `out_of_range` denotes an amount that is too large; otherwise the amount is too small."""
NOT_ALLOWED: Final = (401, 403)
DEFINITE_IN_PLAIN_TEXT: Final = (400, 422)
"""Statuses that are definite even without an error code of the vendor; a 404 may be a proxy's."""
DOCUMENT: Final = b"{"
"""The first byte of the vendor's error documents."""
TRANSIENT: Final = (408, 425, 429)
CODE_MAX_CHARS: Final = 64
MESSAGE_MAX_CHARS: Final = 200

Watch = Callable[[str, str, float], None]
"""Told of every request: the call, how it was answered, and the seconds from sending it to that."""


class ChangeNowClient:
    """Speaks to ChangeNOW through one HTTP client, within a budget of calls."""

    def __init__(
        self,
        http: HttpClient,
        key: str,
        budget: Budget | None = None,
        *,
        private_key: str | None = None,
        watch: Watch | None = None,
    ) -> None:
        """Only the list of exchanges needs `private_key`, and only for partners who have one."""
        self._http = http
        self._budget = budget or Unlimited()
        self._headers = {KEY_HEADER: key}
        self._private_headers = {KEY_HEADER: private_key or key}
        self._watch = watch

    async def estimate(self, pair: Pair, from_amount: Decimal) -> Estimate:
        query = _pair(pair) | FLOW | {"type": "direct", "fromAmount": _written(from_amount)}
        answer = await self._question("estimate", "/v2/exchange/estimated-amount", query)
        with _usable(answer):
            return wire.estimate(wire.decoded(answer.body, wire.WireEstimate), pair, from_amount)

    async def create(self, order: Order) -> Swap:
        body = (
            _pair(order.pair)
            | FLOW
            | {
                "type": "direct",
                "fromAmount": _written(order.from_amount),
                "address": order.address,
                "refundAddress": order.refund_address,
            }
        )
        optional = {
            "extraId": order.extra_id,
            "refundExtraId": order.refund_extra_id,
            "userId": order.user_id,
            "payload": _payload(order.payload),
        }
        body |= {name: value for name, value in optional.items() if value}
        answer = await self._send("create", "POST", "/v2/exchange", headers=self._headers, json=body)
        if answer.status == 429:
            raise NotSent(f"{answer.source} was turned away: too many requests")
        if not answer.is_success:
            raise _error_of(answer) or Unknown(f"{answer.source} answered {answer.status}: {answer.excerpt()}")
        try:
            return wire.swap(wire.decoded(answer.body, wire.WireSwap), order)
        except Unknown as problem:
            raise Unknown(f"{answer.source} may have happened: its answer {problem.reason}") from None

    async def exchange(self, exchange_id: str) -> Exchange | None:
        answer = await self._ask("exchange", "/v2/exchange/by-id", {"id": exchange_id}, self._headers)
        if answer.status == 404 and _error(answer)[0] == "not_found":
            return None
        with _usable(_ok(answer)):
            found = wire.exchange(wire.decoded(answer.body, wire.WireExchange))
            if found.id != exchange_id:
                raise Unknown("is about another exchange than the one that was asked for")
            return found

    async def range(self, pair: Pair) -> Range:
        return await self._limits("range", pair)

    async def min_amount(self, pair: Pair) -> Decimal:
        return (await self._limits("min-amount", pair)).min_amount

    async def currencies(self) -> Sequence[Currency]:
        answer = await self._question("currencies", "/v2/exchange/currencies", FLOW | {"active": "true"})
        with _usable(answer):
            return [wire.currency(each) for each in wire.decoded(answer.body, list[wire.WireCurrency])]

    async def validate_address(self, currency: str, network: str, address: str, extra_id: str | None) -> AddressVerdict:
        # What the vendor calls `currency` here is the network of the address.
        query = {"currency": network or currency, "address": address}
        answer = await self._question("validate-address", "/v2/validate/address", query)
        with _usable(answer):
            verdict = wire.decoded(answer.body, wire.WireVerdict)
            return AddressVerdict(verdict.result, verdict.message or None)

    async def exchanges(self, since: datetime, until: datetime, offset: int, limit: int) -> Sequence[Exchange]:
        if not 1 <= limit <= PAGE_MAX or offset < 0:
            raise Invalid(f"a page of {limit} exchanges from {offset} on; ask for 1 to {PAGE_MAX} from 0 on")
        query: dict[str, str | int] = {
            "dateFrom": _moment(since),
            "dateTo": _moment(until + timedelta(milliseconds=1)),
            "limit": limit,
            "dateField": "createdAt",
            "sortField": "createdAt",
            "sortDirection": "ASC",
        }
        if offset:
            query["offset"] = offset
        answer = _ok(await self._ask("exchanges", "/v2/exchanges", query, self._private_headers))
        with _usable(answer):
            return [wire.listed(each) for each in wire.decoded(answer.body, wire.WireList).exchanges]

    async def _limits(self, name: str, pair: Pair) -> Range:
        answer = await self._question(name, f"/v2/exchange/{name}", _pair(pair) | FLOW)
        with _usable(answer):
            return wire.limits(wire.decoded(answer.body, wire.WireRange), pair)

    async def _question(self, call: str, path: str, query: dict[str, str]) -> Response:
        return _ok(await self._ask(call, path, query, self._headers))

    async def _ask(self, call: str, path: str, query: Any, headers: dict[str, str]) -> Response:
        """A question changes nothing: whatever kept its answer away, it is asked again."""
        try:
            return await self._send(call, "GET", path, headers=headers, query=query)
        except Unsendable:
            raise
        except (NotSent, Unknown) as problem:
            raise Retry(problem.reason) from None

    async def _send(self, call: str, method: str, path: str, **options: Any) -> Response:
        observe = None if self._watch is None else partial(self._watch, call)
        return await request_within(self._budget, self._http, method, path, observe=observe, **options)


def _ok(answer: Response) -> Response:
    """The answer to a question, or what its being none means."""
    if answer.status == 200:
        return answer
    raise _error_of(answer) or Retry(f"{answer.source} answered {answer.status}: {answer.excerpt()}", _rest_s(answer))


@contextmanager
def _usable(answer: Response) -> Iterator[None]:
    """A question whose answer cannot be used is asked again."""
    try:
        yield
    except Unknown as problem:
        raise Retry(f"{answer.source}: the answer cannot be used: it {problem.reason}") from None


def _error_of(answer: Response) -> Refused | None:
    """The vendor's definite no, if the answer is one."""
    status = answer.status
    if not 400 <= status < 500 or status in TRANSIENT:
        return None
    code, message = _error(answer)
    if status in NOT_ALLOWED:
        reason = f"{status} {code or answer.excerpt()}; check CHANGENOW_API_KEY and what it is allowed"
        return ExchangeRefused(Code.NOT_ALLOWED, reason)
    if code is not None:
        return ExchangeRefused(_meaning(code, message), f"{code}: {message}")
    if status in DEFINITE_IN_PLAIN_TEXT and not _is_broken(answer):
        return ExchangeRefused(Code.OTHER, f"{status}: {answer.excerpt()}")
    return None


def _is_broken(answer: Response) -> bool:
    """A document that was cut on its way. It held the vendor's word, which the next answer has again; taken for a no in
    plain text it would leave to a person what the vendor explains."""
    if not answer.body.lstrip().startswith(DOCUMENT):
        return False
    try:
        answer.json()
    except Unknown:
        return True
    return False


def _meaning(code: str, message: str) -> Code:
    if code == "out_of_range" and any(word in message.lower() for word in ABOVE):
        return Code.TOO_LARGE
    return CODES.get(code, Code.OTHER)


def _error(answer: Response) -> tuple[str | None, str]:
    """The vendor's code and words, without secrets and bounded; no code in plain text and in others' JSON."""
    try:
        document = answer.json()
    except Unknown:
        return None, ""
    code = document.get("error") if isinstance(document, dict) else None
    if not isinstance(code, str) or not 1 <= len(code) <= CODE_MAX_CHARS:
        return None, ""
    message = document.get("message")
    shown = " ".join(message.split()) if isinstance(message, str) else "no reason given"
    return redact(code), redact(shown)[:MESSAGE_MAX_CHARS]


def _rest_s(answer: Response) -> float | None:
    return None if answer.retry_after_s is None else float(answer.retry_after_s)


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "fromCurrency": pair.from_currency,
        "fromNetwork": pair.from_network,
        "toCurrency": pair.to_currency,
        "toNetwork": pair.to_network,
    }


def _written(amount: Decimal) -> str:
    """As text with all its digits: a number would lose some at the first reader in JavaScript."""
    if not amount.is_finite() or amount <= 0 or abs(amount.adjusted()) > wire.DIGITS_MAX:
        raise Invalid(f"{str(amount)[:80]} is no amount to exchange; it must be above zero")
    return format(amount, "f")


def _payload(reference: str | None) -> dict[str, str] | None:
    if reference is not None and len(reference) > REFERENCE_MAX_CHARS:
        raise Invalid(f"the reference {reference[:80]!r} is longer than the vendor's {REFERENCE_MAX_CHARS} characters")
    return {wire.REFERENCE: reference} if reference else None


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
