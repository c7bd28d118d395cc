"""The webhooks of the simulated gateway: pending deliveries, their retries and outcomes."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from payonce.kit.http import HttpClient
from payonce.kit.outcomes import NotSent, Unknown
from payonce.kit.webhooks import Secret, signed_headers
from payonce.kit.webhooks.signatures import ID, SIGNATURE, TIMESTAMP

AGAIN_AFTER_S: Final = (5, 60, 300, 1_800, 7_200, 36_000, 86_400)
"""Delays after attempts without a 2xx answer; then the gateway gives up."""
LATE_S: Final = 3_600.0
WEBHOOKS_MAX: Final = 1_000
"""Per round of delivery."""


@dataclass(frozen=True)
class WebhookFaults:
    """The shares of events that are delivered twice or late, drawn by seed and event."""

    seed: int = 0
    duplicate: float = 0.0
    late: float = 0.0
    late_s: float = LATE_S

    def draw(self, event_id: str, due_at: datetime) -> list[datetime]:
        """The due time of each copy."""
        if self._place(event_id, "late") < self.late:
            due_at += timedelta(seconds=self.late_s)
        return [due_at] * (2 if self._place(event_id, "duplicate") < self.duplicate else 1)

    def _place(self, event_id: str, what: str) -> float:
        text = f"{self.seed} {event_id} {what}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64


@dataclass
class QueuedWebhook:
    """One delivery of an event."""

    number: int
    event_id: str
    body: bytes
    due_at: datetime
    tries: int = 0
    arrived: bool = False

    @property
    def given_up(self) -> bool:
        return not self.arrived and self.tries > len(AGAIN_AFTER_S)


@dataclass
class Outbox:
    webhooks: list[QueuedWebhook] = field(default_factory=list)
    _open: dict[int, QueuedWebhook] = field(default_factory=dict)

    def put(self, event_id: str, kind: str, created: str, data: Mapping[str, Any], due: Sequence[datetime]) -> None:
        body = msgspec.json.encode({"type": kind, "timestamp": created, "data": data})
        for due_at in due:
            webhook = QueuedWebhook(len(self.webhooks), event_id, body, due_at)
            self.webhooks.append(webhook)
            self._open[webhook.number] = webhook

    def record_attempt(self, number: int, arrived: bool, at: datetime) -> None:
        webhook = self.webhooks[number]
        webhook.tries += 1
        webhook.arrived = arrived
        if arrived or webhook.given_up:
            self._open.pop(number, None)
        else:
            webhook.due_at = at + timedelta(seconds=AGAIN_AFTER_S[webhook.tries - 1])

    def due(self, now: datetime) -> list[QueuedWebhook]:
        found = [webhook for webhook in self._open.values() if webhook.due_at <= now]
        return sorted(found, key=lambda webhook: webhook.due_at)[:WEBHOOKS_MAX]

    @property
    def waiting(self) -> int:
        return len(self._open)


async def deliver(
    outbox: Outbox,
    http: HttpClient,
    secrets: Sequence[Secret],
    now: datetime,
    record: Callable[[QueuedWebhook, bool], None],
) -> int:
    """Posts the due webhooks to the address of `http`, signing each attempt; returns the number delivered."""
    arrived = 0
    for webhook in outbox.due(now):
        signed = signed_headers(secrets, webhook.event_id, now, webhook.body)
        headers = {name: signed[name] for name in (ID, TIMESTAMP, SIGNATURE)} | {"Content-Type": "application/json"}
        try:
            is_taken = (await http.request("POST", "", body=webhook.body, headers=headers)).is_success
        except (NotSent, Unknown):
            is_taken = False
        record(webhook, is_taken)
        arrived += is_taken
    return arrived
