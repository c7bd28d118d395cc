"""Queues whose messages a task service brings over HTTP, instead of workers claiming them.

The message itself stays in the outbox until it is settled. What travels is a body that proves which message is meant.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

import msgspec

from payonce.engine.messages.model import Message, message_to_wire
from payonce.kit.outcomes import Invalid


class DecodedTask(msgspec.Struct, frozen=True):
    """What a body says that was brought."""

    id: UUID
    message: Message | None = None
    """None: the message must be on record here, and the record stands. Else it came from somebody who keeps no record
    with us, and gets one with its first run."""


class Codec(Protocol):
    """How the messages of one queue travel."""

    def encode(self, message: Message) -> bytes:
        """The body of a task; made anew for every delivery."""
        ...

    def decode(self, body: bytes, headers: Mapping[str, str]) -> DecodedTask:
        """Raises Invalid for anything that `encode` of this queue's sender did not make. Names in `headers` are in
        lower case."""
        ...


@dataclass(frozen=True)
class Target:
    """Where the messages of one pushed queue go."""

    queue: str
    path: str
    """Where the process that serves the queue answers, such as /usdt-eth-estimate."""
    url: str | None
    """Of that process, without the path, as the task service reaches it; None: it is this very process."""
    codec: Codec
    called: str | None = None
    """What the queue is called at the task service; as here unless said."""
    vendor_per_s: float | None = None
    """What the vendor behind it allows, a second: `payonce queues tune` stays below."""


class EnvelopeCodec:
    """For queues without a form of their own: the body is the envelope's JSON. The task service proves who sent it."""

    def encode(self, message: Message) -> bytes:
        return message_to_wire(message)

    def decode(self, body: bytes, headers: Mapping[str, str]) -> DecodedTask:
        try:
            return DecodedTask(msgspec.json.decode(body, type=_EnvelopeId).id)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Invalid("the body is not an envelope with an id; send what the task was made with") from error


class _EnvelopeId(msgspec.Struct):
    id: UUID
