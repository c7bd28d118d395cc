"""The relay of an installation without a broker: every event becomes a line in the process log."""

from collections.abc import Sequence

from payonce.engine.outbox.model import EVENTS, Answer, Delivered, Entry, RelayConfig
from payonce.kit.log import get_logger

log = get_logger(__name__)


class LogRelay:
    """Writes each event to the log at least once, with its id."""

    def __init__(self, name: str = EVENTS) -> None:
        self.name = name
        self.config = RelayConfig()

    async def deliver(self, entries: Sequence[Entry]) -> Sequence[Answer]:
        for entry in entries:
            message = entry.message
            log.info(
                "event_published",
                topic=message.queue,
                action=message.action,
                id=str(message.id),
                trace_id=message.trace,
                correlation_id=message.correlation_id,
                idempotency_key=message.idempotency_key,
                created_at=None if message.created_at is None else message.created_at.isoformat(),
                payload=message.payload,
            )
        return [Delivered()] * len(entries)
