"""Endpoints, deliveries and attempts: their states, and validation of their fields."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from payonce.engine.messages.model import NAME_MAX_LENGTH, clean_text
from payonce.kit.outcomes import Invalid

ENDPOINTS_MAX: Final = 50
"""Per tenant, which bounds the deliveries of one event."""
EVENTS_MAX: Final = 100
"""Subscriptions of one endpoint, as in the table's constraint."""
DESCRIPTION_MAX_CHARS: Final = 500
TYPE_MAX_CHARS: Final = 100
DEFAULT_TENANT: Final = "default"
EVERYTHING: Final = "*"

_TYPE: Final = re.compile(r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*")


class EndpointState(StrEnum):
    ENABLED = "enabled"
    DISABLED = "disabled"
    """By a person, by a 410, or because it failed for too long. Events published meanwhile are recorded as skipped."""
    REMOVED = "removed"


ENDPOINT_TRANSITIONS: Final[dict[EndpointState, frozenset[EndpointState]]] = {
    EndpointState.ENABLED: frozenset({EndpointState.DISABLED, EndpointState.REMOVED}),
    EndpointState.DISABLED: frozenset({EndpointState.ENABLED, EndpointState.REMOVED}),
    EndpointState.REMOVED: frozenset(),
}


class DeliveryState(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    """The receiver answered 2xx."""
    FAILED = "failed"
    """Given up by the policy, or the receiver answered that it is gone."""
    SKIPPED = "skipped"
    """Not sent: the endpoint was not enabled at its turn, or a replay replaced it."""


DELIVERY_TRANSITIONS: Final[dict[DeliveryState, frozenset[DeliveryState]]] = {
    DeliveryState.PENDING: frozenset({DeliveryState.DELIVERED, DeliveryState.FAILED, DeliveryState.SKIPPED}),
    DeliveryState.DELIVERED: frozenset(),
    DeliveryState.FAILED: frozenset(),
    DeliveryState.SKIPPED: frozenset(),
}
"""An ended delivery does not change; a replay is a new delivery of the same event."""


@dataclass(frozen=True)
class Endpoint:
    id: UUID
    tenant: str
    url: str
    events: Sequence[str]
    description: str
    state: EndpointState
    reason: str | None
    changed_at: datetime
    failing_since: datetime | None
    created_by: str
    created_at: datetime

    @property
    def origin(self) -> str:
        """The origin without the path: many receivers put their secret into the path."""
        return origin_of(self.url)

    def __repr__(self) -> str:
        return f"Endpoint({self.id}, {self.origin})"


@dataclass(frozen=True)
class Delivery:
    id: UUID
    event_id: str
    type: str
    endpoint_id: UUID
    tenant: str
    url: str
    state: DeliveryState
    reason: str | None
    attempts: int
    last_status: int | None
    replay_of: UUID | None
    created_at: datetime
    ended_at: datetime | None
    trace_id: str | None

    @property
    def origin(self) -> str:
        return origin_of(self.url)

    def __repr__(self) -> str:
        return f"Delivery({self.id}, {self.event_id} to {self.origin}, {self.state})"


@dataclass(frozen=True)
class Attempt:
    number: int
    at: datetime
    status: int | None
    latency_ms: int
    error: str | None
    excerpt: str | None


def origin_of(url: str) -> str:
    # Imported here, because most commands use no HTTP client, which takes a while to load.
    from payonce.kit.http import parse_url

    return parse_url(url).origin


def checked_type(text: str) -> str:
    if len(text) > TYPE_MAX_CHARS or not _TYPE.fullmatch(text):
        raise Invalid(
            f"event type {text[:40]!r} must be words of letters, digits and _ with dots between, such as invoice.paid"
        )
    return text


def checked_filter(events: Sequence[str]) -> list[str]:
    """The event types that an endpoint subscribes to."""
    if not 1 <= len(events) <= EVENTS_MAX:
        raise Invalid(f"{len(events)} event types; an endpoint has 1 to {EVENTS_MAX}, or {EVERYTHING!r} for all")
    for text in events:
        if text != EVERYTHING:
            checked_type(text.removesuffix(".*"))
    return list(dict.fromkeys(events))


def checked_tenant(text: str) -> str:
    if not text.strip() or len(text) > NAME_MAX_LENGTH or clean_text(text) != text:
        raise Invalid(f"tenant {text[:40]!r} must have 1 to {NAME_MAX_LENGTH} characters of valid text")
    return text


def checked_url(url: str, *, allow_private: bool) -> str:
    """Refuses URLs that could never be used. A host name is checked again at each attempt, by its address at
    that time."""
    from payonce.kit.http import parse_url

    target = parse_url(url)
    if allow_private:
        return url
    if target.scheme != "https":
        raise Invalid(
            f"{target.origin} is not https: events could be read in transit; use https, or set "
            "PAYONCE_WEBHOOK_PRIVATE=true where receivers are on your own network"
        )
    target.must_be_public()
    return url


def checked_description(text: str) -> str:
    if len(text) > DESCRIPTION_MAX_CHARS or clean_text(text) != text:
        raise Invalid(f"the description must have at most {DESCRIPTION_MAX_CHARS} characters of valid text")
    return text


def as_endpoint(row: Any) -> Endpoint:
    return Endpoint(
        row["id"],
        row["tenant"],
        row["url"],
        tuple(row["events"]),
        row["description"],
        EndpointState(row["state"]),
        row["reason"],
        row["changed_at"],
        row["failing_since"],
        row["created_by"],
        row["created_at"],
    )
