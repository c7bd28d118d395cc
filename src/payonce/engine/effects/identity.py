"""Checks that the effect on record under a key is the one requested now.

A key stands for one request. Answering a different request from the record would report something as done that was
never sent. So that is an error, and it names both requests.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic

import msgspec

from payonce.engine.effects.declaration import Effect, Outcome, Request, decode, encode
from payonce.engine.effects.model import EffectRecord
from payonce.kit.money import Amount, loads_exact
from payonce.kit.outcomes import Invalid, KeyReused
from payonce.kit.redact import redact

OWN_REQUEST: Final = "null"
"""The recorded identity of an effect that declares none: the requests are compared."""
DIFFERENCES_MAX: Final = 5
"""Differences named in an error."""
VALUE_MAX_CHARS: Final = 100
"""Per value in an error."""
_ABSENT: Final = object()
_DECLARE: Final = "declare identity() with what stays the same in every run: the parties, the amount"


@dataclass(frozen=True)
class Prepared(Generic[Request]):
    request: Request
    document: str
    identity: str
    """JSON, stored with the request."""


async def prepare(effect: Effect[Request, Outcome]) -> Prepared[Request]:
    """The request of a new generation. Raises Invalid when a later run could not recognise it as its own."""
    declared = _declared(effect)
    if declared is None:
        request = await _prepare_without_waiting(effect)
        document = _request_document(effect, request)
        request = await _prepare_without_waiting(effect)
        _check_repeatable(effect, "prepare()", document, _request_document(effect, request))
        return Prepared(request, document, OWN_REQUEST)
    _check_repeatable(effect, "identity()", declared, _declared(effect) or OWN_REQUEST)
    request = await effect.prepare()
    return Prepared(request, _request_document(effect, request), declared)


async def check_same(effect: Effect[Any, Any], stored: EffectRecord, service: str) -> None:
    """Raises KeyReused when the effect on record has another request, amount or service. Calls nothing outside."""
    if stored.identity is None:
        return
    declared = _declared(effect)
    if declared is None:
        request = await _prepare_without_waiting(effect)
        amount = effect.amount(request)
        on_record, requested = _normal(effect, stored.request), _normal(effect, _request_document(effect, request))
    else:
        amount = _amount_on_record(effect, stored)
        on_record, requested = loads_exact(stored.identity), loads_exact(declared)
    found: list[tuple[str, Any, Any]] = []
    if stored.service != service:
        found.append(("service", stored.service, service))
    if stored.amount is not None and amount is not None and stored.amount != amount:
        found.append(("amount", str(stored.amount), str(amount)))
    # A later version may have a request of another form, and after a refusal the next generation may request something
    # else.
    declares_as_on_record = (declared is None) == (stored.identity == OWN_REQUEST)
    if stored.version == effect.version and not stored.superseded and declares_as_on_record:
        found += _differences(on_record, requested, "request" if declared is None else "identity")
    if found:
        raise KeyReused(
            f"{stored.label} is on record with {_named((name, value) for name, value, _ in found)}, but was "
            f"requested with {_named((name, value) for name, _, value in found)}; nothing was sent and the record "
            "is unchanged. Give a different request a different key; if the same request has a new form, raise "
            "the effect's version"
        )


async def _prepare_without_waiting(effect: Effect[Request, Outcome]) -> Request:
    """The request of an effect without a declared identity. If prepare() waits for anything, a later run may get
    another answer, so it must not wait. A callback that runs meanwhile proves that it did."""
    waited: list[bool] = []
    look = asyncio.get_running_loop().call_soon(waited.append, True)
    try:
        request = await effect.prepare()
    finally:
        look.cancel()
    if waited:
        raise Invalid(
            f"prepare() of {effect.kind} waits for an answer from outside, and a later run may get a different "
            f"one; {_DECLARE}"
        )
    return request


def _check_repeatable(effect: Effect[Any, Any], what: str, first: str, second: str) -> None:
    found = list(_differences(loads_exact(first), loads_exact(second), "result"))
    if found:
        raise Invalid(
            f"{what} of {effect.kind} returned two results for {effect.reference}: "
            f"{_named((n, v) for n, v, _ in found)} and {_named((n, v) for n, _, v in found)}; {_DECLARE}"
        )


def _amount_on_record(effect: Effect[Any, Any], stored: EffectRecord) -> Amount | None:
    """The amount this effect counts for the request on record; an effect may know it without looking at the request.
    None where this code cannot read the request, which only another send would need."""
    try:
        return effect.amount(decode(stored.request, effect.request_type, f"the request of {stored.label}"))
    except Invalid:
        return None


def _declared(effect: Effect[Any, Any]) -> str | None:
    declared = effect.identity()
    return None if declared is None else encode(declared, Any, f"the identity of {effect.kind}")


def _request_document(effect: Effect[Any, Any], request: object) -> str:
    return encode(request, effect.request_type, f"the request of {effect.kind} {effect.reference}")


def _normal(effect: Effect[Any, Any], document: str) -> Any:
    """The document as this code reads it, so that new fields with defaults make no difference; unchanged if it cannot
    be read."""
    try:
        return loads_exact(msgspec.json.encode(msgspec.json.decode(document, type=effect.request_type)))
    except msgspec.MsgspecError:
        return loads_exact(document)


def _differences(on_record: Any, requested: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(on_record, dict) and isinstance(requested, dict):
        for field in dict.fromkeys([*on_record, *requested]):
            yield from _differences(on_record.get(field, _ABSENT), requested.get(field, _ABSENT), f"{name}.{field}")
    elif on_record != requested:
        yield name, on_record, requested


def _named(values: Any) -> str:
    """With field names, so that redaction by name applies."""
    named = [f"{name}={_shown(value)}" for name, value in values]
    more = "" if len(named) <= DIFFERENCES_MAX else f" and {len(named) - DIFFERENCES_MAX} more"
    return ", ".join(redact(each)[:VALUE_MAX_CHARS] for each in named[:DIFFERENCES_MAX]) + more


def _shown(value: Any) -> str:
    return "nothing" if value is _ABSENT else msgspec.json.encode(value).decode()
