"""Admission of a claimed message: it goes to its handler, is left to another release, or is parked.

A message is left to another release if that release can take it: its envelope states a newer schema version, another
release declared its action, or its handler is in another process. It waits for at most RELEASED_MAX_S, and then a
person decides. An action that no release has declared and an invalid payload are parked at once.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from payonce.engine.messages.contract import Contract, is_known_elsewhere
from payonce.engine.messages.model import SCHEMA_VERSION, Message, schema_version
from payonce.engine.messages.policy import RELEASE_DELAY_S, RELEASED_MAX_S
from payonce.engine.messages.runs import Run
from payonce.engine.messages.transaction import Reader
from payonce.kit.outcomes import Held, Invalid, Unprocessable

Handling = TypeVar("Handling")


async def admit(
    contract: Contract | None, handlers: Mapping[str | None, Handling], run: Run, read: Reader
) -> tuple[Handling, Any]:
    """The handler, and the payload as declared by the contract (None without one). Raises Held for a message that
    another release may take, and Unprocessable for one that none takes."""
    message = run.claim.message
    if message.extra and (version := schema_version(message)) > SCHEMA_VERSION:
        raise _left(run, f"its schema_version is {version}, but this release reads up to {SCHEMA_VERSION}")
    if contract is not None and message.action not in contract.payloads:
        if not await is_known_elsewhere(read, message):
            raise Unprocessable(contract.unknown_action(message))
        raise _left(run, f"action {message.action!r} belongs to another release")
    handler = handlers.get(message.action) or handlers.get(None)
    if handler is None:
        raise _left(run, f"no handler here for action {message.action!r}")
    return handler, None if contract is None else _read(contract, message)


def _read(contract: Contract, message: Message) -> Any:
    try:
        return contract.read(message)
    except Invalid as refusal:
        raise Unprocessable(str(refusal)) from None


def _left(run: Run, why: str) -> Held | Unprocessable:
    put_at = run.claim.message.created_at or run.claim.first_attempt_at
    if (run.store_now - put_at).total_seconds() > RELEASED_MAX_S:
        return Unprocessable(
            f"{why}, and no worker took it for {RELEASED_MAX_S / 3_600:g} h; start the release that handles it, "
            "then redrive it"
        )
    return Held(why, RELEASE_DELAY_S)
