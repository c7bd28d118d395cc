"""The client: the mint's wire format, and the meaning of each answer.

| answer | means |
|---|---|
| 201, about the card that was ordered | it happened |
| 402 `float_exhausted`, 422 `holder_blocked` | Refused: nothing moved, and nothing will under this key |
| 429; no connection | NotSent: nothing was done |
| any other status, an unreadable answer, no answer | Unknown |
"""

from functools import partial
from typing import Any, Final

import msgspec

from giftcards.mint.port import CardOrder, IssuedCard
from payonce import Budget, HttpClient, NotSent, Refused, Response, Unknown, Unlimited, Watch, request_within

DEFINITE: Final = {402: "float_exhausted", 422: "holder_blocked"}
"""By status, the code that is the mint's own word that nothing moved. A proxy gives no such word."""


class _Cards(msgspec.Struct, frozen=True):
    cards: list[IssuedCard]


class MintClient:
    def __init__(self, http: HttpClient, budget: Budget | None = None, *, watch: Watch | None = None) -> None:
        self._http = http
        self._budget = budget or Unlimited()
        self._watch = watch

    async def issue(self, order: CardOrder) -> IssuedCard:
        body = {"holder": order.holder, "value": order.value, "currency": order.currency}
        answer = await self._send("POST", "/cards", json=body, headers={"Idempotency-Key": order.key})
        if answer.status != 201:
            raise _failure_of(answer)
        issued = answer.decode(IssuedCard)
        if issued.key != order.key:
            raise Unknown(f"{answer.source} answered about another card than the one that was ordered")
        return issued

    async def find(self, key: str) -> IssuedCard | None:
        answer = await self._send("GET", "/cards", query={"key": key})
        if answer.status != 200:
            failure = _failure_of(answer)
            raise Unknown(str(failure)) if isinstance(failure, Refused) else failure
        found = answer.decode(_Cards).cards
        return found[0] if found else None

    async def _send(self, method: str, path: str, **options: Any) -> Response:
        observe = None if self._watch is None else partial(self._watch, f"{method} {path}")
        return await request_within(self._budget, self._http, method, path, observe=observe, **options)


def _failure_of(answer: Response) -> Exception:
    if answer.status == 429:
        return NotSent(f"{answer.source} was turned away: too many requests")
    try:
        error = answer.json()["error"]
        code, text = str(error["code"]), str(error["message"])
    except (Unknown, KeyError, TypeError):
        return Unknown(f"{answer.source} answered {answer.status}: {answer.excerpt()}")
    if DEFINITE.get(answer.status) == code:
        return Refused(f"{code}: {text}")
    return Unknown(f"{answer.source} answered {answer.status} {code}: {answer.excerpt()}")
