"""Pushed queues: a task service delivers their messages over HTTP, instead of workers claiming them.

The message itself stays in the outbox until it is settled. The delivered body proves which message is meant.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

import msgspec

from payonce.engine.messages.model import Message, message_to_wire
from payonce.kit.outcomes import Invalid


class DecodedTask(msgspec.Struct, frozen=True):
    """The message that a delivered body refers to."""

    id: UUID
    message: Message | None = None
    """None: the message must be on record here, and the record applies. Otherwise it was sent by a party that keeps no
    record with us, and gets one with its first run."""


class Codec(Protocol):
    """The wire format of one queue's messages."""

    def encode(self, message: Message) -> bytes:
        """The body of a task; made anew for every delivery."""
        ...

    def decode(self, body: bytes, headers: Mapping[str, str]) -> DecodedTask:
        """Raises Invalid for anything that `encode` of this queue's sender did not produce. Names in `headers` are in
        lower case."""
        ...


@dataclass(frozen=True)
class Target:
    """Where the messages of one pushed queue are delivered."""

    queue: str
    path: str
    """The path in the process that serves the queue, such as /usdt-eth-estimate."""
    url: str | None
    """The base URL of that process for the task service; None: this process."""
    codec: Codec
    called: str | None = None
    """The queue's name at the task service; the same name by default."""
    vendor_per_s: float | None = None
    """The vendor's allowance per second: `payonce queues tune` stays below it."""


class EnvelopeCodec:
    """For queues without a wire format of their own: the body is the envelope's JSON. The task service proves the
    sender."""

    def encode(self, message: Message) -> bytes:
        return message_to_wire(message)

    def decode(self, body: bytes, headers: Mapping[str, str]) -> DecodedTask:
        try:
            return DecodedTask(msgspec.json.decode(body, type=_EnvelopeId).id)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Invalid(
                "the body is not an envelope with an id; send the body with which the task was created"
            ) from error


class _EnvelopeId(msgspec.Struct):
    id: UUID
