"""Contracts: the actions of a queue and the payload of each. A message that does not fit is parked with the reason.

A queue without a contract accepts every object, and its handlers check it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from payonce.engine.messages.model import Message, clean_text
from payonce.kit.outcomes import Invalid

Payload = type[msgspec.Struct]
ACTION_SHOWN: Final = 60


class NoPayload(msgspec.Struct, frozen=True):
    """The message says everything with its action and its correlation id; fields are ignored."""


def read_payload(kind: Payload, payload: Mapping[str, Any]) -> Any:
    """The payload as its type. Raises Invalid, which names the field but never its value. Unknown fields are ignored: a
    newer release may add some."""
    try:
        return msgspec.convert(payload, kind)
    except msgspec.ValidationError as error:
        raise Invalid(f"the payload is not a {kind.__name__}: {error}") from None


def struct_of(kind: type, queue: str) -> Payload:
    if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
        raise Invalid(f"{queue}: the payload {kind!r} must be a msgspec.Struct")
    return kind


def plain_payload(payload: object) -> dict[str, Any]:
    """A struct or a mapping as the JSON object that is stored. Raises Invalid for anything else."""
    plain: object = msgspec.to_builtins(payload, str_keys=True) if isinstance(payload, msgspec.Struct) else payload
    if not isinstance(plain, Mapping):
        raise Invalid(f"a payload is a struct or a mapping, and this is {type(payload).__name__}")
    return dict(plain)


@dataclass(frozen=True)
class Contract:
    """Payload types by action; the first that fits applies. A message without an action has the empty action."""

    payloads: Mapping[str, Payload | tuple[Payload, ...]]
    read_as: Callable[[Any, Mapping[str, Any]], Any] = read_payload
    """Raises Invalid for a payload that does not fit the type."""

    def __post_init__(self) -> None:
        if not self.payloads or not all(self.types_of(action) for action in self.payloads):
            raise Invalid("a contract names at least one action, and at least one payload type for each")

    @property
    def actions(self) -> list[str]:
        return sorted(self.payloads)

    def types_of(self, action: str) -> tuple[Payload, ...]:
        found = self.payloads[action]
        return found if isinstance(found, tuple) else (found,)

    def read(self, message: Message) -> Any:
        """The payload of a message with an action of the contract. Raises Invalid with the mismatch for each possible
        type."""
        refusals = []
        for kind in self.types_of(message.action):
            try:
                return self.read_as(kind, message.payload)
            except Invalid as refusal:
                refusals.append(str(refusal))
        raise Invalid(f"the message does not fit {_where(message)}: {'; and '.join(refusals)}; {_WAY_OUT}")

    def unknown_action(self, message: Message) -> str:
        """The reason for parking a message with an undeclared action."""
        known = ", ".join(map(_named, self.actions))
        return f"{message.queue} does not accept {_named(message.action)}; it accepts: {known}; {_WAY_OUT}"


class ValueReader(Protocol):
    async def fetchval(self, sql: str, /, *arguments: Any) -> Any: ...


async def is_known_elsewhere(read: ValueReader, message: Message) -> bool:
    """Whether any release, newer or older, has declared the action for the queue."""
    if clean_text(message.action) != message.action:
        # The store cannot hold such a name.
        return False
    known: bool | None = await read.fetchval(
        "select $2 = any(actions) from payonce.queues where name = $1", message.queue, message.action
    )
    return bool(known)


_WAY_OUT: Final = "send it again as docs/messages.md describes, and purge this one"


def _where(message: Message) -> str:
    return f"action {message.action!r} of {message.queue}" if message.action else message.queue


def _named(action: str) -> str:
    if not action:
        return "messages without an action"
    return f"action {action[:ACTION_SHOWN]!r}"
