"""The wire format of one hop's messages: `{"token": "…"}`, in version 2 or, with older services, in version 1.

Version 2 names a message on our record, and the record is authoritative. A token of version 1 has no room for an id:

- From an older service, the message's id is derived from the hop and the task's name, which is the same in every
  delivery. After a day the token begins nothing new, but still delivers the message that it began.
- From ourselves, `{"token": "…", "record": "…"}` adds a token of version 2, which older services ignore and by which we
  find our own message with its exact amounts, after any number of days.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from payonce.engine.messages.model import Message
from payonce.engine.messages.push import DecodedTask
from payonce.kit.crypto import from_base64url, to_base64url
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid
from payonce.kit.webhooks.secrets import Secret
from payonce.services.payouts.messages.tokens.hops import EMIT, MADE_AT, OLDER, Hop, HopFields, plain, read
from payonce.services.payouts.messages.tokens.packed import Packer
from payonce.services.payouts.messages.tokens.refusal import BadToken, BadTokenReason
from payonce.services.payouts.messages.tokens.sealed import Content, Sealer
from payonce.services.payouts.metrics import HOP_TOKEN_FAILURES

BODY_MAX_BYTES: Final = 128 * 1024
"""More than two tokens with every field at its maximum length."""
TASK_NAME_HEADER: Final = "x-cloudtasks-taskname"
TASK_NAME_MAX_CHARS: Final = 500
"""Google's limit on a task's id."""

_NAMESPACE: Final = uuid5(NAMESPACE_URL, "payonce:payouts/tokens/1")

Keys = Sequence[Secret] | Callable[[], Sequence[Secret]]

log = get_logger(__name__)


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    token: str
    record: str | None = None
    """The same in version 2, beside a token of version 1 from ourselves."""


_body_of = msgspec.json.Decoder(Body).decode
_bytes_of = msgspec.json.Encoder().encode


class TokenCodec:
    """The codec (payonce.engine.messages.push) of one hop."""

    def __init__(
        self,
        hop: Hop,
        keys: Keys,
        *,
        action: str = "",
        accept_v1: bool = False,
        emit_v1: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """The first key encodes, all keys decode; they are loaded with the first token, since most commands need none.
        `action` is that of messages from older services. `emit_v1` implies `accept_v1`, as the answers are in it."""
        self._hop = hop
        self._action = action
        self._keys = keys
        self._accept_v1, self._emit_v1 = accept_v1 or emit_v1, emit_v1
        self._clock = clock

    @cached_property
    def _sealer(self) -> Sealer:
        return Sealer(self._hop, _resolved(self._keys))

    @cached_property
    def _packer(self) -> Packer:
        return Packer(self._hop, _resolved(self._keys))

    def encode(self, message: Message) -> bytes:
        """Raises BadToken for a payload that does not fit the hop's token."""
        try:
            return _bytes_of(self._body_for(message))
        except BadToken as refusal:
            raise self._reported(refusal, "encrypt", message_id=str(message.id)) from None

    def decode(self, body: bytes, headers: Mapping[str, str]) -> DecodedTask:
        """Returns the message, or raises BadToken, whatever the bytes."""
        task = headers.get(TASK_NAME_HEADER, "")
        try:
            return self._read(body, task)
        except BadToken as refusal:
            raise self._reported(refusal, "decrypt", task=task[:TASK_NAME_MAX_CHARS]) from None

    def _body_for(self, message: Message) -> Body:
        fields = self._fields_of(message)
        now_s = self._clock()
        content = Content(message.id, int(now_s), None if fields is None else plain(fields))
        record = to_base64url(self._sealer.make(content))
        if fields is None or not self._emit_v1:
            return Body(record)
        return Body(to_base64url(self._packer.make(fields, now_s)), record)

    def _fields_of(self, message: Message) -> HopFields | None:
        """None for a message without the hop's fields, such as a requeued check: only we send those."""
        if not message.payload.keys() & set(self._hop.fields.__struct_fields__):
            return None
        try:
            return read(self._hop.fields, message.payload)
        except Invalid as refusal:
            raise BadToken(BadTokenReason.UNFIT, str(refusal)) from None

    def _read(self, body: bytes, task: str) -> DecodedTask:
        found = _parsed(body)
        now_s = self._clock()
        if found.record is not None:
            return DecodedTask(self._sealer.open(_decoded(found.record), now_s).id)
        token = _decoded(found.token)
        try:
            return DecodedTask(self._sealer.open(token, now_s).id)
        except BadToken as refusal:
            # A token that opened as version 2 is of version 2, whatever else is wrong with it.
            if refusal.reason is not BadTokenReason.FORGED or not self._accept_v1:
                raise
        try:
            fields = self._packer.open(token, now_s)
        except BadToken as refused:
            if refused.reason is not BadTokenReason.EXPIRED:
                raise
            # Too old to begin anything. A message that it began is on record and is completed by this task.
            return DecodedTask(self._message_id(task))
        return self._external_message(fields, self._packer.made_at(token), task)

    def _message_id(self, task: str) -> UUID:
        if not 0 < len(task) <= TASK_NAME_MAX_CHARS:
            raise BadToken(BadTokenReason.UNNAMED, f"a token of version 1 came without the header {TASK_NAME_HEADER}")
        return uuid5(_NAMESPACE, f"{self._hop.name}/{task}")

    def _external_message(self, fields: HopFields, made_at: int, task: str) -> DecodedTask:
        message_id = self._message_id(task)
        payload = {**plain(fields), OLDER: EMIT if self._emit_v1 else "accept", MADE_AT: made_at}
        message = Message(id=message_id, queue=self._hop.queue, action=self._action, payload=payload)
        return DecodedTask(message_id, message)

    def _reported(self, refusal: BadToken, operation: str, **about: str) -> BadToken:
        HOP_TOKEN_FAILURES.labels(self._hop.name, operation, refusal.reason.value).inc()
        log.warning(
            "token_refused",
            hop=self._hop.name,
            operation=operation,
            reason=refusal.reason.value,
            detail=str(refusal),
            **about,
        )
        return refusal


def _resolved(keys: Keys) -> Sequence[Secret]:
    return keys() if callable(keys) else keys


def _parsed(body: bytes) -> Body:
    if len(body) > BODY_MAX_BYTES:
        raise BadToken(BadTokenReason.MALFORMED, f"the body has {len(body)} bytes; the limit is {BODY_MAX_BYTES}")
    try:
        return _body_of(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadToken(BadTokenReason.MALFORMED, 'the body is not {"token": "…"}') from None


def _decoded(text: str) -> bytes:
    try:
        return from_base64url(text)
    except Invalid:
        raise BadToken(BadTokenReason.MALFORMED, "the token is not base64url") from None
