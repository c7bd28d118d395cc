"""Messages between the explorer and its children, over a socket pair, in length-prefixed frames."""

import asyncio
import socket
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import msgspec

from payonce.kit.outcomes import Unavailable

FRAME_MAX_BYTES: Final = 32 * 1024 * 1024
SILENCE_MAX_S: Final = 60.0
"""How long a child waits for the explorer; longer than any point takes."""
_LENGTH_BYTES: Final = 4


class Channel(StrEnum):
    """The channel of a crossing. Its other side may have acted although the response is lost."""

    STORE = "store"
    VENDOR = "vendor"
    REDIS = "redis"
    TASKS = "tasks"
    """A call to the task service."""
    PUSH = "push"
    """A delivery of the task service to a role."""


class CrossingAction(StrEnum):
    GO = "go"
    DIE = "die"
    DIE_AFTER = "die_after"
    LOSE_ANSWER = "lose_answer"
    """Send, and ask the explorer again when the response is here; the process never sees it."""


class AtCrossing(msgspec.Struct, tag=True, frozen=True):
    """A child has reached a crossing and asks what to do."""

    message: str
    site: str
    channel: Channel
    reads: bool
    """Whether the request changes nothing, wherever it arrives."""
    carried_out: bool = False
    """Set at the second question at this crossing: the request is sent, and the response is about to be lost."""


class VendorRequest(msgspec.Struct, tag=True, frozen=True):
    """A child's request to a vendor."""

    host: str
    method: str
    url: str
    headers: list[tuple[str, str]]
    body: bytes | None


class ChildReady(msgspec.Struct, tag=True, frozen=True):
    """A child has opened the engine and has these janitors."""

    janitors: list[str]


class CommandDone(msgspec.Struct, tag=True, frozen=True):
    """A child has executed a command; `worked` says whether there was anything to do."""

    worked: bool = True
    error: str | None = None


class Verdict(msgspec.Struct, tag=True, frozen=True):
    end: CrossingAction = CrossingAction.GO
    stop: bool = False
    """Stop itself (SIGSTOP) first; `end` applies once it is resumed."""
    asleep_s: float = 0.0
    """How far its own clock advances meanwhile."""
    transaction_id: int | None = None
    """The id of the transaction that ends at this crossing. Only ablations use it."""


class VendorResponse(msgspec.Struct, tag=True, frozen=True):
    """The vendor's response, or the error of the connection."""

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
    """Deliver due outbox entries of this relay."""

    relay: str


class Tick(msgspec.Struct, tag=True, frozen=True):
    janitor: str


class AnswerReview(msgspec.Struct, tag=True, frozen=True):
    """The operator's decision about one effect."""

    effect_id: UUID
    revision: int
    answer: str
    outcome: Any = None
    vendor_ref: str | None = None


class Redrive(msgspec.Struct, tag=True, frozen=True):
    """Let a parked message start over, after the operator's answer."""

    queue: str
    message_id: UUID


class Notice(msgspec.Struct, tag=True, frozen=True):
    """Check the database server's identity, as every process does every few seconds."""


class Release(msgspec.Struct, tag=True, frozen=True):
    """The operator releases the quarantine."""


class Leave(msgspec.Struct, tag=True, frozen=True):
    """End normally."""


FromChild = ChildReady | AtCrossing | VendorRequest | CommandDone
Command = Step | Reap | RunRelay | Tick | AnswerReview | Redrive | Notice | Release | Leave
ToChild = Verdict | VendorResponse | Command

_decode_from_child: Final = msgspec.msgpack.Decoder(FromChild)
_decode_to_child: Final = msgspec.msgpack.Decoder(ToChild)
_encode: Final = msgspec.msgpack.Encoder().encode


class ChildEnd:
    """The child's end; blocking, so that nothing else happens in the child meanwhile."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(SILENCE_MAX_S)
        self._connection = connection

    def send(self, message: FromChild) -> None:
        self._connection.sendall(_framed(message))

    def receive(self) -> ToChild:
        length = int.from_bytes(self._exactly(_LENGTH_BYTES), "big")
        message: ToChild = _decode_to_child.decode(self._exactly(length))
        return message

    def _exactly(self, count: int) -> bytes:
        received = bytearray()
        while len(received) < count:
            part = self._connection.recv(count - len(received))
            if not part:
                raise Unavailable("the explorer is gone")
            received += part
        return bytes(received)


class ParentEnd:
    """The explorer's end; asynchronous, since it serves several children."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection

    async def send(self, message: ToChild) -> None:
        await asyncio.get_running_loop().sock_sendall(self._connection, _framed(message))

    async def receive(self) -> FromChild | None:
        """The next message; None when the child has ended."""
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


def _framed(message: FromChild | ToChild) -> bytes:
    body = _encode(message)
    if len(body) > FRAME_MAX_BYTES:
        raise ValueError(f"a frame of {len(body):,} bytes is over the limit of {FRAME_MAX_BYTES:,}")
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body
