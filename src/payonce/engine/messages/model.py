"""The shared vocabulary: messages, claims, settlements and their states."""

import hashlib
import math
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import msgspec

from payonce.kit.ids import new_id
from payonce.kit.outcomes import Invalid

PAYLOAD_MAX_BYTES: Final = 256 * 1024
NAME_MAX_LENGTH: Final = 200
ERROR_MAX_LENGTH: Final = 4_000
PAYLOAD_MAX_DEPTH: Final = 64
"""Levels of nested objects and lists. Readers have a larger limit of their own."""
ATTEMPTS_MAX: Final = 1_000_000
DELAY_MAX_S: Final = 10 * 366 * 86_400
"""Ten years: a longer delay is a mistake in the caller's arithmetic."""
EARLIEST_YEAR: Final = 1970
LATEST_YEAR: Final = 2200

SCHEMA_VERSION: Final = 1
"""Of the wire envelope. A message that states a higher version is left to a newer worker."""


class State(StrEnum):
    """The state of a stored message. A settled message has no row."""

    READY = "ready"
    ALONE = "alone"
    LEASED = "leased"
    PARKED = "parked"


TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    State.READY: frozenset({State.LEASED}),
    State.ALONE: frozenset({State.LEASED}),
    State.LEASED: frozenset({State.READY, State.ALONE, State.PARKED}),
    State.PARKED: frozenset({State.READY}),
}
"""Rows are also deleted: LEASED ones by a settle, all others by a purge."""


class Ending(StrEnum):
    """How one run of a message ended."""

    SUCCESS = "success"
    RETRY = "retry"
    FAILED = "failed"
    """The business object ended for good without success: it was rejected, or given up by a handler."""
    PARKED = "parked"
    RELEASED = "released"
    """Returned unchanged because this worker does not know the action. Neither counted nor logged."""


class SettleAnswer(StrEnum):
    """The store's answer to a settlement."""

    SETTLED = "settled"
    ALREADY = "already"
    """The message was settled before, by this claim or by a successor."""
    STALE = "stale"
    """The message belongs to another claim now. Nothing was changed."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The envelope. Wire names are the field names. Not tracked by the garbage collector, as a message cannot refer to
    itself."""

    id: UUID = msgspec.field(default_factory=new_id)
    queue: str
    action: str = ""
    correlation_id: str | None = None
    idempotency_key: str | None = None
    trace_id: str | None = None
    """The request that started it; a message without one starts a trace with its own id."""
    created_at: datetime | None = None
    """Set by the store at put unless the message has one."""
    attempts: int = 0
    """The number of ended runs; 0 in the first run."""
    max_attempts: int | None = None
    """Overrides the policy; counts executions, the first included."""
    not_before: datetime | None = None
    delay_s: float = 0.0
    """From the put, by the store's clock."""
    lane: str | None = None
    payload: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    """Unknown fields of the wire envelope, kept for the next reader."""

    @property
    def trace(self) -> str:
        return self.trace_id or str(self.id)


class Claim(msgspec.Struct, frozen=True, gc=False):
    """One worker's claim on one message, valid while its token is the newest and its lease has not ended."""

    message: Message
    token: int
    crashes: int
    claimed_at: datetime
    """By the store's due clock."""
    first_attempt_at: datetime
    first: bool = False
    """True if the message was certainly never claimed before. Where tokens grow, the first token shows it too."""

    @property
    def effects_since(self) -> datetime | None:
        """From when on ended effects are news to this run, by PostgreSQL's clock and not after the run began. None if
        no earlier run had effects."""
        return self.claimed_at


class Settlement(msgspec.Struct, frozen=True, gc=False):
    claim: Claim
    ending: Ending
    reason: str | None = None
    delay_s: float = 0.0
    recorded: bool = False
    """A transaction has committed it (settle_within), and only the copy in an external queue is left to move. Only
    where the queue `mirrors`."""


class Lease(msgspec.Struct, frozen=True):
    """A holder's named lease. A higher epoch is a newer holding."""

    name: str
    holder: str
    epoch: int
    ttl_s: float


_ENVELOPE_FIELDS: Final = frozenset(
    {"id", "action", "correlation_id", "idempotency_key", "trace_id", "created_at", "attempts", "max_attempts"}
    | {"not_before", "payload", "lane"}
)
_encode = msgspec.json.Encoder().encode


def encode_payloads(messages: Sequence[Message]) -> list[str]:
    """Payloads as JSON text. Raises Invalid for values that JSON cannot carry and for payloads that are too large."""
    try:
        encoded = [_encode(message.payload) for message in messages]
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Invalid(
            f"payload of a {messages[0].queue} message is not JSON: {error}; "
            "send strings, whole numbers, lists and objects"
        ) from error
    for message, payload in zip(messages, encoded, strict=True):
        if len(payload) > PAYLOAD_MAX_BYTES:
            raise Invalid(
                f"payload of a {message.queue} message has {len(payload):,} bytes, the limit is "
                f"{PAYLOAD_MAX_BYTES:,}; store the object elsewhere and send its key"
            )
        if b"null" in payload and not _finite(message.payload):
            raise Invalid(
                f"payload of a {message.queue} message holds NaN or Infinity, which JSON cannot carry; "
                "send amounts as strings or whole minor units"
            )
        if (
            payload.count(b"{") + payload.count(b"[") > PAYLOAD_MAX_DEPTH
            and _depth(message.payload) > PAYLOAD_MAX_DEPTH
        ):
            raise Invalid(
                f"payload of a {message.queue} message is nested more than {PAYLOAD_MAX_DEPTH} deep; make it flatter"
            )
    return [payload.decode() for payload in encoded]


def encode_extra(message: Message) -> str | None:
    """Encodes the unknown fields of the envelope under the same rules as the payload."""
    if not message.extra:
        return None
    return encode_payloads([msgspec.structs.replace(message, payload=message.extra)])[0]


def check_message(message: Message) -> None:
    """Raises Invalid for a message that the store could not keep unchanged."""
    if not isinstance(message.payload, dict):
        raise Invalid(f"payload must be a JSON object, not {type(message.payload).__name__}; wrap it in one")
    for name in ("queue", "action", "correlation_id", "idempotency_key", "trace_id", "lane"):
        text = getattr(message, name)
        if text is not None and (len(text) > NAME_MAX_LENGTH or "\x00" in text or not _encodable(text)):
            raise Invalid(
                f"{name} {text[:40]!r} must be at most {NAME_MAX_LENGTH} characters of valid text without NUL"
            )
    if message.idempotency_key == "":
        raise Invalid("idempotency_key is empty; give a key, or none at all")
    if not 0 <= message.delay_s <= DELAY_MAX_S:
        raise Invalid(f"delay_s is {message.delay_s}; it must be between 0 and {DELAY_MAX_S} seconds")
    if message.max_attempts is not None and not 1 <= message.max_attempts <= ATTEMPTS_MAX:
        raise Invalid(
            f"max_attempts is {message.max_attempts}; it counts the first run, so it must be 1 to {ATTEMPTS_MAX:,}"
        )
    if not 0 <= message.attempts <= ATTEMPTS_MAX:
        raise Invalid(f"attempts is {message.attempts}; it must be 0 to {ATTEMPTS_MAX:,}")
    for name in ("created_at", "not_before"):
        moment = getattr(message, name)
        if moment is not None and moment.tzinfo is None:
            raise Invalid(f"{name} {moment.isoformat()} has no time zone; give one, such as +00:00")
        if moment is not None and not EARLIEST_YEAR < moment.year < LATEST_YEAR:
            raise Invalid(f"{name} {moment.isoformat()} is not between {EARLIEST_YEAR} and {LATEST_YEAR}")


def message_to_wire(message: Message) -> bytes:
    """The envelope as JSON with the wire names; unknown fields of the original are included."""
    envelope: dict[str, Any] = dict(message.extra)
    for name in ("id", "action", "correlation_id", "idempotency_key", "trace_id", "created_at", "attempts"):
        envelope[name] = getattr(message, name)
    envelope["trace_id"] = message.trace
    for name in ("max_attempts", "not_before", "lane"):
        if getattr(message, name) is not None:
            envelope[name] = getattr(message, name)
    envelope["payload"] = message.payload
    return _encode(envelope)


def message_from_wire(queue: str, body: bytes) -> Message:
    """Reads an envelope, or wraps a raw object. The id of a raw object is derived from its bytes, so it is the same
    everywhere."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Invalid(f"message for {queue} is not JSON: {error}; send one JSON object") from error
    if not isinstance(value, dict):
        raise Invalid(f"message for {queue} must be a JSON object, not {type(value).__name__}")
    if not isinstance(value.get("payload"), dict):
        return Message(id=_id_of_bytes(body), queue=queue, action=_action_of(value), payload=value)
    known = {name: value[name] for name in _ENVELOPE_FIELDS & value.keys() if value[name] is not None}
    known.setdefault("id", str(_id_of_bytes(body)))
    extra = {name: value[name] for name in value.keys() - _ENVELOPE_FIELDS}
    try:
        return msgspec.convert({**known, "queue": queue, "extra": extra}, Message)
    except msgspec.ValidationError as error:
        raise Invalid(f"envelope for {queue} is malformed: {error}") from error


def clean_text(text: str) -> str:
    """Text that the store can always keep: no NUL, no lone surrogates, bounded."""
    text = text.replace("\x00", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace").decode()
    return text if len(text) <= ERROR_MAX_LENGTH else text[: ERROR_MAX_LENGTH - 1] + "…"


def schema_version(message: Message) -> int:
    version = message.extra.get("schema_version", SCHEMA_VERSION)
    return version if isinstance(version, int) else SCHEMA_VERSION


def _id_of_bytes(body: bytes) -> UUID:
    digest = bytearray(hashlib.sha256(body).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return UUID(bytes=bytes(digest))


def _action_of(raw: dict[str, Any]) -> str:
    action = raw.get("action")
    return action if isinstance(action, str) else ""


def _finite(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(_finite(item) for item in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(_finite(item) for item in value)
    return True


def _depth(value: object) -> int:
    depth, level = 0, [value]
    while level := [
        item
        for holder in level
        if isinstance(holder, (dict, list, tuple))
        for item in (holder.values() if isinstance(holder, dict) else holder)
    ]:
        depth += 1
    return depth + 1


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
