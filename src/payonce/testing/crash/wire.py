"""What the explorer and its children say to each other, over a pair of sockets, in frames of known length."""

import asyncio
import socket
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import msgspec

from payonce.kit.outcomes import Unavailable

FRAME_MAX_BYTES: Final = 32 * 1024 * 1024
SILENCE_MAX_S: Final = 60.0
"""How long a child waits for the explorer; longer than any point may take."""
_LENGTH_BYTES: Final = 4


class Channel(StrEnum):
    """What is crossed: each has a far side that may have acted although nobody heard of it."""

    STORE = "store"
    VENDOR = "vendor"
    REDIS = "redis"
    TASKS = "tasks"
    """A call to the task service."""
    PUSH = "push"
    """What the task service sends to a role."""


class CrossingAction(StrEnum):
    GO = "go"
    DIE = "die"
    DIE_AFTER = "die_after"
    LOSE_ANSWER = "lose_answer"
    """Send, and ask the explorer again when the answer is here; the process never sees it."""


class AtCrossing(msgspec.Struct, tag=True, frozen=True):
    """A child stands before a crossing and asks what to do."""

    message: str
    site: str
    channel: Channel
    reads: bool
    """What it is about to send changes nothing, wherever it arrives."""
    carried_out: bool = False
    """Asked for the second time at this crossing: it has sent, and the answer is about to be lost."""


class VendorRequest(msgspec.Struct, tag=True, frozen=True):
    """A child's request to a vendor."""

    host: str
    method: str
    url: str
    headers: list[tuple[str, str]]
    body: bytes | None


class ChildReady(msgspec.Struct, tag=True, frozen=True):
    """A child has opened the engine; by these names its janitors tick."""

    janitors: list[str]


class CommandDone(msgspec.Struct, tag=True, frozen=True):
    """A child has done what it was told, and whether there was anything to do."""

    worked: bool = True
    error: str | None = None


class Verdict(msgspec.Struct, tag=True, frozen=True):
    end: CrossingAction = CrossingAction.GO
    stop: bool = False
    """Stop itself (SIGSTOP) first; `end` holds once it is woken."""
    asleep_s: float = 0.0
    """By how much its own clock has gone on when it wakes."""
    transaction_id: int | None = None
    """Of the transaction that is to end at this crossing. Only ablations look at it."""


class VendorResponse(msgspec.Struct, tag=True, frozen=True):
    """The vendor's answer, or how the connection broke."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    may_have_left: bool
    broken: str | None = None


class Step(msgspec.Struct, tag=True, frozen=True):
    """Claim, run and settle one message of this queue."""

    queue: str


class Reap(msgspec.Struct, tag=True, frozen=True):
    queue: str


class RunRelay(msgspec.Struct, tag=True, frozen=True):
    """Hand over what is due in the outbox for this relay."""

    relay: str


class Tick(msgspec.Struct, tag=True, frozen=True):
    janitor: str


class AnswerReview(msgspec.Struct, tag=True, frozen=True):
    """What the person has decided about one effect."""

    effect_id: UUID
    revision: int
    answer: str
    outcome: Any = None
    vendor_ref: str | None = None


class Redrive(msgspec.Struct, tag=True, frozen=True):
    """Let a parked message start over, now that the person has answered."""

    queue: str
    message_id: UUID


class Notice(msgspec.Struct, tag=True, frozen=True):
    """Look which server serves the database, as every process does every few seconds."""


class Release(msgspec.Struct, tag=True, frozen=True):
    """The person releases the quarantine."""


class Leave(msgspec.Struct, tag=True, frozen=True):
    """End in order."""


FromChild = ChildReady | AtCrossing | VendorRequest | CommandDone
Command = Step | Reap | RunRelay | Tick | AnswerReview | Redrive | Notice | Release | Leave
ToChild = Verdict | VendorResponse | Command

_decode_from_child: Final = msgspec.msgpack.Decoder(FromChild)
_decode_to_child: Final = msgspec.msgpack.Decoder(ToChild)
_encode: Final = msgspec.msgpack.Encoder().encode


class ChildEnd:
    """Blocking: while a child waits here nothing else happens in it."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(SILENCE_MAX_S)
        self._connection = connection

    def send(self, said: FromChild) -> None:
        self._connection.sendall(_framed(said))

    def receive(self) -> ToChild:
        length = int.from_bytes(self._exactly(_LENGTH_BYTES), "big")
        said: ToChild = _decode_to_child.decode(self._exactly(length))
        return said

    def _exactly(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            part = self._connection.recv(count - len(received))
            if not part:
                raise Unavailable("the explorer is gone")
            received += part
        return bytes(received)


class ParentEnd:
    """For the explorer, which serves several children at a time."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection

    async def send(self, said: ToChild) -> None:
        await asyncio.get_running_loop().sock_sendall(self._connection, _framed(said))

    async def receive(self) -> FromChild | None:
        """None when the child has gone."""
        head = await self._exactly(_LENGTH_BYTES)
        body = None if head is None else await self._exactly(int.from_bytes(head, "big"))
        return None if body is None else _decode_from_child.decode(body)

    def close(self) -> None:
        self._connection.close()

    async def _exactly(self, count: int) -> bytes | None:
        loop, received = asyncio.get_running_loop(), bytearray()
        while len(received) < count:
            try:
                part = await loop.sock_recv(self._connection, count - len(received))
            except ConnectionResetError:
                return None
            if not part:
                return None
            received += part
        return bytes(received)


def _framed(said: FromChild | ToChild) -> bytes:
    body = _encode(said)
    if len(body) > FRAME_MAX_BYTES:
        raise ValueError(f"a frame of {len(body):,} bytes is over the limit of {FRAME_MAX_BYTES:,}")
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body
