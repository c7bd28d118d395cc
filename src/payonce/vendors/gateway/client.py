"""The client: the gateway's wire format, and the meaning of each answer for the caller.

| answer | a query (GET) | `charge`, `refund` (POST) |
|---|---|---|
| 200, 201 that matches the request | the answer | it happened |
| 402 with a code of the gateway, to `charge` | | Declined: the card did not pay |
| 400, 404, 422 with a code of the gateway | Retry; None to `token` | GatewayRefused: nothing moved |
| 401, 403 in any form | NotAllowed | NotAllowed |
| 429 | Retry after its Retry-After, which all processes observe | NotSent, likewise |
| no connection; no turn in the budget | Retry | NotSent |
| 409: the key belongs to another order | | Unknown |
| any other status, an unreadable or mismatching answer, no answer | Retry | Unknown |
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from payonce.kit.budget import Budget, Unlimited
from payonce.kit.http import HttpClient, Response, Unsendable, request_within
from payonce.kit.outcomes import Invalid, NotSent, Retry, Unknown
from payonce.kit.redact import redact
from payonce.vendors.gateway import wire
from payonce.vendors.gateway.port import (
    AMOUNT_MAX,
    METADATA_MAX,
    METADATA_MAX_CHARS,
    PAGE_MAX,
    REFERENCE_MAX_CHARS,
    CardToken,
    Charge,
    ChargeOrder,
    ChargeStatus,
    Declined,
    GatewayRefused,
    NotAllowed,
    Refund,
    RefundOrder,
    RefusalCode,
    StatementPage,
)

NOT_ALLOWED: Final = (401, 403)
DEFINITE: Final = (400, 404, 422)
"""Definite only with a code of the gateway: a proxy's 404 proves nothing."""
MESSAGE_MAX_CHARS: Final = 200
_CODE: Final = re.compile(r"[a-z_]{1,64}")
_TOKEN: Final = re.compile(r"[A-Za-z]+_[A-Za-z0-9_]{1,120}", re.ASCII)
"""Begins with letters, so that a card number in the place of a token is never sent on."""

Watch = Callable[[str, str, float], None]
"""Called for every request with the call, the outcome, and the seconds until the answer."""


class GatewayClient:
    """Calls the gateway through one HTTP client, within a budget of calls."""

    def __init__(self, http: HttpClient, key: str, budget: Budget | None = None, *, watch: Watch | None = None) -> None:
        self._http = http
        self._headers = {"Authorization": f"Bearer {key}"}
        self._budget = budget or Unlimited()
        self._watch = watch

    async def charge(self, order: ChargeOrder) -> Charge:
        _check(order)
        if not _TOKEN.fullmatch(order.payment_method):
            raise GatewayRefused(RefusalCode.NO_SUCH_TOKEN, "a payment method is a token such as pm_1a2b")
        body = {
            "amount": order.amount,
            "currency": order.currency,
            "payment_method": order.payment_method,
            "reference": order.reference,
            "metadata": wire.metadata(order),
        }
        answer = await self._order("charge", "/v1/charges", order.key, body)
        if answer.status == 402:
            raise _declined(answer, order) or _unknown(answer)
        with _in_doubt(_made(answer)):
            return wire.charged(wire.decoded(answer.body, wire.WireCharge), order)

    async def refund(self, order: RefundOrder) -> Refund:
        _check(order)
        body = {"charge": order.charge, "amount": order.amount, "reference": order.reference, "reason": order.reason}
        answer = await self._order("refund", "/v1/refunds", order.key, body)
        with _in_doubt(_made(answer)):
            return wire.refunded(wire.decoded(answer.body, wire.WireRefund), order)

    async def find_charge(self, reference: str) -> Charge | None:
        answer = _ok(await self._ask("find_charge", "/v1/charges", {"reference": reference, "limit": PAGE_MAX}))
        with _usable(answer):
            page = wire.decoded(answer.body, wire.WireCharges)
            found = [wire.charge(each) for each in page.data]
            if any(each.reference != reference for each in found):
                raise Unknown("is about other charges than the one that was asked for")
        captured = [each for each in found if each.status is ChargeStatus.SUCCEEDED]
        if len(captured) > 1 or page.has_more:
            raise Unknown(f"{answer.source} shows {len(captured)} captures of {reference!r}; a person has to look")
        return captured[0] if captured else (found[-1] if found else None)

    async def find_refund(self, reference: str) -> Refund | None:
        answer = _ok(await self._ask("find_refund", "/v1/refunds", {"reference": reference, "limit": PAGE_MAX}))
        with _usable(answer):
            page = wire.decoded(answer.body, wire.WireRefunds)
            found = [wire.refund(each) for each in page.data]
            if any(each.reference != reference for each in found):
                raise Unknown("is about other refunds than the one that was asked for")
        if len(found) > 1 or page.has_more:
            raise Unknown(f"{answer.source} shows {len(found)} refunds of {reference!r}; a person has to look")
        return found[0] if found else None

    async def token(self, token_id: str) -> CardToken | None:
        if not _TOKEN.fullmatch(token_id):
            return None
        answer = await self._ask("token", f"/v1/tokens/{token_id}")
        if answer.status == 404 and (error := _error(answer)) and error.code == RefusalCode.NO_SUCH_TOKEN:
            return None
        with _usable(_ok(answer)):
            return wire.token(wire.decoded(answer.body, wire.WireToken), token_id)

    async def statement(self, after: str | None = None, limit: int = PAGE_MAX) -> StatementPage:
        if not 1 <= limit <= PAGE_MAX:
            raise Invalid(f"a page of {limit} lines of the statement; ask for 1 to {PAGE_MAX}")
        query: dict[str, str | int] = {"limit": limit} | ({} if after is None else {"after": after})
        answer = _ok(await self._ask("statement", "/v1/balance_transactions", query))
        with _usable(answer):
            page = wire.decoded(answer.body, wire.WireLines)
            lines = [wire.line(each) for each in page.data]
            if page.has_more and not lines:
                raise Unknown("promises more lines and has none")
        return StatementPage(lines, lines[-1].id if page.has_more else None)

    async def _order(self, call: str, path: str, key: str, body: dict[str, Any]) -> Response:
        answer = await self._send(call, "POST", path, json=body, headers=self._headers | {"Idempotency-Key": key})
        if answer.status == 429:
            raise NotSent(f"{answer.source} was turned away: too many requests")
        return answer

    async def _ask(self, call: str, path: str, query: dict[str, str | int] | None = None) -> Response:
        """A question changes nothing: whatever kept its answer away, it is asked again."""
        try:
            return await self._send(call, "GET", path, headers=self._headers, query=query)
        except (Unsendable, NotAllowed):
            raise
        except (NotSent, Unknown) as problem:
            raise Retry(problem.reason) from None

    async def _send(self, call: str, method: str, path: str, **options: Any) -> Response:
        observe = None if self._watch is None else partial(self._watch, call)
        answer = await request_within(self._budget, self._http, method, path, observe=observe, **options)
        if answer.status in NOT_ALLOWED:
            raise NotAllowed(
                f"{answer.source} answered {answer.status}: {answer.excerpt()}; check GATEWAY_API_KEY and what it is "
                "allowed"
            )
        return answer


def _made(answer: Response) -> Response:
    """The answer to an order that was carried out, or what its being none means."""
    if answer.status == 201:
        return answer
    error = _error(answer)
    if answer.status in DEFINITE and error is not None:
        raise GatewayRefused(error.code, _shown(error.message))
    raise _unknown(answer)


def _declined(answer: Response, order: ChargeOrder) -> Declined | None:
    """None for a 402 without the gateway's word, or about another charge: whether this one happened is open."""
    error = _error(answer)
    if error is None or (error.reference is not None and error.reference != order.reference):
        return None
    charge_id = error.charge if error.charge and _TOKEN.fullmatch(error.charge) else None
    return Declined(error.code, _shown(error.message), charge_id)


def _unknown(answer: Response) -> Unknown:
    return Unknown(f"{answer.source} answered {answer.status}: {answer.excerpt()}")


def _ok(answer: Response) -> Response:
    """The answer to a question. A no to a question proves nothing."""
    if answer.status == 200:
        return answer
    rest_s = None if answer.retry_after_s is None else float(answer.retry_after_s)
    raise Retry(f"{answer.source} answered {answer.status}: {answer.excerpt()}", rest_s)


@contextmanager
def _usable(answer: Response) -> Iterator[None]:
    """Turns an unusable answer to a query into a Retry."""
    try:
        yield
    except Unknown as problem:
        raise Retry(f"{answer.source}: the answer cannot be used: it {problem.reason}") from None


@contextmanager
def _in_doubt(answer: Response) -> Iterator[None]:
    try:
        yield
    except Unknown as problem:
        raise Unknown(f"{answer.source} may have happened: its answer {problem.reason}") from None


def _error(answer: Response) -> wire.WireError | None:
    """The gateway's error; None for plain text, foreign JSON and truncated bodies."""
    try:
        error = wire.decoded(answer.body, wire.WireErrors).error
    except Unknown:
        return None
    return error if _CODE.fullmatch(error.code) else None


def _shown(message: str) -> str:
    return redact(" ".join(message.split()))[:MESSAGE_MAX_CHARS] or "no reason given"


def _check(order: ChargeOrder | RefundOrder) -> None:
    """Raises GatewayRefused for an impossible order before it is sent, in every attempt alike."""
    if type(order.amount) is not int or not 0 < order.amount <= AMOUNT_MAX:
        raise _bad(f"the amount {order.amount!r:.40} must be a whole number of minor units, from 1 to {AMOUNT_MAX}")
    for name, text in (("key", order.key), ("reference", order.reference)):
        if not 1 <= len(text) <= REFERENCE_MAX_CHARS or not text.isascii() or not text.isprintable():
            raise _bad(f"the {name} {redact(text)[:80]!r} must have 1 to {REFERENCE_MAX_CHARS} printable characters")
    if isinstance(order, ChargeOrder) and (
        len(order.metadata) > METADATA_MAX or any(len(each) > METADATA_MAX_CHARS for each in order.metadata.values())
    ):
        raise _bad(f"metadata has up to {METADATA_MAX} fields of up to {METADATA_MAX_CHARS} characters")


def _bad(reason: str) -> GatewayRefused:
    return GatewayRefused(RefusalCode.BAD_REQUEST, reason)
