"""Envelopes as stored in Redis: the id comes first, where scripts find it by position, then the time of creation."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from hashlib import sha1
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from payonce.engine.messages.model import (
    NAME_MAX_LENGTH,
    PAYLOAD_MAX_BYTES,
    PAYLOAD_MAX_DEPTH,
    Message,
    check_message,
    encode_extra,
    encode_payloads,
    message_from_wire,
)
from payonce.kit.outcomes import Invalid

ID_START: Final = 7
ID_END: Final = 43
"""Position of the id in a body written by payonce: after {"id":" ."""

PART_MAX_BYTES: Final = 4 * 1024 * 1024
"""Total body size per command: at 10 Mbit/s it takes less than a command's timeout."""

Item = TypeVar("Item")

GROWS_AT_MOST: Final = 8
"""How much longer a re-encoded body may be: 1e15 becomes 1000000000000000.0."""


UNREADABLE_KEYS: Final = {"unreadable", "begins"}
"""Keys of the payload shown for an unreadable body."""


class _Envelope(msgspec.Struct, frozen=True, gc=False):
    id: str
    created_at: datetime | UnsetType
    action: str
    correlation_id: str | None
    idempotency_key: str | None
    trace_id: str
    attempts: int
    max_attempts: int | UnsetType
    lane: str | UnsetType
    payload: msgspec.Raw


class _ReadEnvelope(msgspec.Struct, gc=False):
    id: UUID
    payload: dict[str, Any]
    created_at: datetime | None = None
    action: str = ""
    correlation_id: str | None = None
    idempotency_key: str | None = None
    trace_id: str | None = None
    attempts: int = 0
    max_attempts: int | None = None
    lane: str | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_ReadEnvelope).decode


def batches(items: Sequence[Item], most: int, size: Callable[[Item], int]) -> Iterator[Sequence[Item]]:
    """Splits items, in order, by count and by total size in bytes."""
    start, total = 0, 0
    for end, item in enumerate(items):
        total += size(item)
        if end > start and (end - start == most or total > PART_MAX_BYTES):
            yield items[start:end]
            start, total = end, size(item)
    if items:
        yield items[start:]


def encode_bodies(messages: Sequence[Message]) -> list[bytes]:
    """Encodes messages; raises Invalid for what JSON cannot represent. The script that stores a message without a time
    of creation adds it."""
    payloads = encode_payloads(messages)
    return [_body(message, payload.encode()) for message, payload in zip(messages, payloads, strict=True)]


def _body(message: Message, payload: bytes) -> bytes:
    envelope = _Envelope(
        str(message.id),
        UNSET if message.created_at is None else message.created_at,
        message.action,
        message.correlation_id,
        message.idempotency_key,
        message.trace,
        message.attempts,
        UNSET if message.max_attempts is None else message.max_attempts,
        UNSET if message.lane is None else message.lane,
        msgspec.Raw(payload),
    )
    if not message.extra:
        return _encode(envelope)
    encode_extra(message)
    plain = msgspec.to_builtins(envelope, builtin_types=(datetime, msgspec.Raw))
    first = {name: plain.pop(name) for name in ("id", "created_at") if name in plain}
    return _encode({**first, **message.extra, **plain})


def decode_plain(queue: str, body: bytes) -> Message:
    """Decodes a body that has only payonce's fields. In manually pushed ones, a script has added all fields but action
    and payload."""
    read = _decode(body)
    if len(read.action) > NAME_MAX_LENGTH or "\x00" in read.action:
        raise Invalid(f"action {read.action[:40]!r} must be at most {NAME_MAX_LENGTH} characters without NUL")
    message = Message(
        id=read.id,
        queue=queue,
        action=read.action,
        correlation_id=read.correlation_id,
        idempotency_key=read.idempotency_key,
        trace_id=read.trace_id,
        created_at=read.created_at,
        attempts=read.attempts,
        max_attempts=read.max_attempts,
        lane=read.lane,
        payload=read.payload,
    )
    _check_writable(message, body)
    return message


def decode_any(queue: str, body: bytes) -> Message:
    """Decodes a body that may have foreign fields. The leading id is the one by which the store knows it."""
    return msgspec.structs.replace(_checked(queue, body), id=UUID(id_text(body)))


def _checked(queue: str, body: bytes) -> Message:
    message = message_from_wire(queue, body)
    if message.idempotency_key == "":
        message = msgspec.structs.replace(message, idempotency_key=None)
    check_message(message)
    _check_writable(message, body)
    return message


def _check_writable(message: Message, body: bytes) -> None:
    """Raises Invalid for a message that could not be re-encoded, and so neither retried nor parked. Small flat bodies
    need no check."""
    if GROWS_AT_MOST * len(body) > PAYLOAD_MAX_BYTES or body.count(b"{") + body.count(b"[") > PAYLOAD_MAX_DEPTH:
        encode_payloads([message])
        encode_extra(message)


def id_text(body: bytes) -> str:
    return body[ID_START:ID_END].decode("ascii", "replace")


def shown(queue: str, message_id: UUID, body: bytes) -> Message:
    """A message for display; for an unreadable body, the error and its beginning."""
    try:
        return msgspec.structs.replace(_checked(queue, body), id=message_id)
    except ValueError as error:
        note = {"unreadable": str(error), "begins": body[:200].decode("utf-8", "replace")}
        return Message(id=message_id, queue=queue, payload=note)


def id_of_bytes(body: bytes) -> UUID:
    """The id that the scripts derive from a body without one."""
    return UUID(sha1(body, usedforsecurity=False).hexdigest()[:32])
