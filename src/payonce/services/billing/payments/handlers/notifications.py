"""Delivers notifications to subscriptions: the stored bytes, signed anew for each attempt; once right after the commit,
then by queue."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from payonce.engine.database.connections import Database
from payonce.engine.messages.model import clean_text
from payonce.engine.messages.transaction import Reader, Tx
from payonce.engine.messages.work import Work, handles
from payonce.engine.monitoring import metrics
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Held, Invalid, NotSent, Retry, Unknown, Unprocessable
from payonce.kit.redact import redact
from payonce.kit.webhooks import Secret, signed_headers
from payonce.services.billing.payments.metrics import count_delivery
from payonce.services.billing.payments.store.notifications import Notice
from payonce.services.billing.policies import SUBSCRIPTION_UPDATE
from payonce.services.billing.wire import NotificationDelivery

if TYPE_CHECKING:
    from payonce.kit.http import Application, HttpClient

PATH: Final = "/v1/webhooks/payment"
EVENT_ID: Final = "X-Webhook-Event-ID"
AT_ONCE_MAX: Final = 32
"""Concurrent immediate attempts of one process; further notifications are left to the queue."""
AT_ONCE_S: Final = 5.0
QUEUED_S: Final = 30.0
CLOSING_S: Final = 6.0
IN_ORDER_S: Final = 15.0
"""How long a notification waits for an earlier one of its transaction; waiting uses up no attempt."""
ANSWER_MAX_BYTES: Final = 64 * 1024
ERROR_MAX_CHARS: Final = 500

log = get_logger(__name__)


@dataclass(frozen=True)
class DueNotification:
    """A notification to be sent, and the database's time, which signs it."""

    event_id: str
    body: bytes
    now: datetime
    created_at: datetime
    delivered: bool
    waits: bool
    """An earlier one of the same transaction is undelivered: the order is kept."""


@dataclass(frozen=True)
class DeliveryAttempt:
    """The outcome of one delivery attempt."""

    way: str
    status: int | None
    body: str | None
    error: str | None
    elapsed_s: float

    @property
    def delivered(self) -> bool:
        return self.error is None


class NotificationSender:
    """Sends signed notifications to the subscription service.

    All `secrets` are active: the first one signs, and the Standard Webhooks header has a signature by each. With
    `aside` the immediate attempt runs in the background; without it the committing handler waits, so that every step is
    deterministic.
    """

    def __init__(
        self, http: "HttpClient", url: str, secrets: Sequence[Secret], database: Database, *, aside: bool = True
    ) -> None:
        if not secrets:
            raise Invalid("there is no secret to sign notifications with; set WEBHOOK_SIGNING_SECRET")
        self._http = http
        self.send_to(url)
        self._secrets = tuple(secrets)
        self._database = database
        self._read = Reader(database)
        self._aside = aside
        self._under_way: set[asyncio.Task[None]] = set()

    def send_to(self, url: str) -> None:
        """Sets the URL, which a process that sends to itself learns only when it listens."""
        self._url = f"{url.rstrip('/')}{PATH}"

    async def at_once(self, notice: Notice | None) -> None:
        """Makes a best-effort attempt after the commit; the queue delivers the notification if it fails."""
        if notice is None:
            return
        if not self._aside:
            await self._try_once(notice)
        elif len(self._under_way) < AT_ONCE_MAX:
            task = asyncio.create_task(self._try_once(notice))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _try_once(self, notice: Notice) -> None:
        try:
            due: DueNotification | None = DueNotification(
                notice.event_id, notice.body, notice.now, notice.now, delivered=False, waits=False
            )
            if not notice.first:
                due = await due_notification(self._read, notice.event_id)
            if due is None or due.delivered or due.waits:
                return
            attempt = await self.post(due, "immediate", AT_ONCE_S)
            await self.record(due, attempt)
        except Exception as error:
            log.warning("notification_not_sent_at_once", event_id=notice.event_id, error=redact(str(error)))

    async def post(self, due: DueNotification, way: str, limit_s: float) -> DeliveryAttempt:
        # The older header holds one signature, by the last secret in this list.
        signatures = signed_headers(self._secrets[::-1], due.event_id, due.now, due.body)
        headers = {"Content-Type": "application/json", EVENT_ID: due.event_id, **signatures}
        begun = time.monotonic()
        try:
            answer = await self._http.request("POST", self._url, body=due.body, headers=headers, timeout_s=limit_s)
        except (NotSent, Unknown) as failed:
            return _measured(
                DeliveryAttempt(way, None, None, redact(failed.reason)[:ERROR_MAX_CHARS], time.monotonic() - begun)
            )
        error = None if answer.is_success else f"subscriptions answered {answer.status}: {answer.excerpt()}"
        return _measured(DeliveryAttempt(way, answer.status, answer.excerpt(), error, answer.elapsed_s))

    async def record(self, due: DueNotification, attempt: DeliveryAttempt, within: Tx | None = None) -> None:
        """Records an attempt; the first successful one marks the notification as delivered."""
        await (within or self._database.work).execute(
            """
            with tried as (
                insert into payments.webhook_outbound_requests
                    (event_id, way, url, response_code, response_body, error, elapsed_ms)
                values ($1, $2, $3, $4, $5, $6, $7)
            )
            update payments.notifications set delivered_at = payonce.due_now()
            where event_id = $1 and delivered_at is null and $8
            """,
            due.event_id,
            attempt.way,
            redact(self._url),
            attempt.status,
            None if attempt.body is None else clean_text(attempt.body),
            None if attempt.error is None else clean_text(attempt.error),
            int(attempt.elapsed_s * 1_000),
            attempt.delivered,
        )
        if attempt.delivered:
            count_delivery((due.now - due.created_at).total_seconds() + attempt.elapsed_s)

    async def close(self) -> None:
        """Waits for running attempts to end, up to a limit."""
        if self._under_way:
            _, late = await asyncio.wait(set(self._under_way), timeout=CLOSING_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


@asynccontextmanager
async def open_notification_sender(
    url: str,
    secrets: Sequence[Secret],
    database: Database,
    *,
    transport: "Application | None" = None,
    aside: bool = True,
) -> AsyncIterator[NotificationSender]:
    # Imported late: commands that deliver nothing need no HTTP client, which is slow to load.
    from payonce.kit.http import HttpClient

    # The operator configured the URL, which may be in their own network.
    async with HttpClient(
        "subscriptions",
        None,
        timeout_s=QUEUED_S,
        max_body_bytes=ANSWER_MAX_BYTES,
        allow_private=True,
        transport=transport,
    ) as http:
        notifier = NotificationSender(http, url, secrets, database, aside=aside)
        try:
            yield notifier
        finally:
            await notifier.close()


@handles(SUBSCRIPTION_UPDATE)
async def process_webhook_processing(work: Work, notifier: NotificationSender) -> None:
    """Deliver a notification, unless the immediate attempt has. The receiver recognises duplicates by the id."""
    delivery_request: NotificationDelivery = work.payload
    due = await due_notification(work.read, delivery_request.event_id)
    if due is None:
        raise Unprocessable(f"there is no notification {delivery_request.event_id[:100]!r}")
    if due.delivered:
        return
    if due.waits:
        raise Held(f"{due.event_id} waits for an earlier notification of its transaction", IN_ORDER_S)
    attempt = await notifier.post(due, "queued", QUEUED_S)
    if attempt.error is None:
        async with work.commit() as tx:
            await notifier.record(due, attempt, tx)
        return
    await notifier.record(due, attempt)
    raise Retry(attempt.error)


async def due_notification(read_from: Reader, event_id: str) -> DueNotification | None:
    row = await read_from.fetchrow(
        """
        select n.event_id, n.body, n.delivered_at is not null as delivered, payonce.due_now() as now, n.created_at,
            exists (
                select from payments.notifications e
                where e.transaction_id = n.transaction_id and e.delivered_at is null
                  and (e.created_at, e.event_id) < (n.created_at, n.event_id)) as waits
        from payments.notifications n where n.event_id = $1
        """,
        event_id,
    )
    if row is None:
        return None
    return DueNotification(row["event_id"], row["body"], row["now"], row["created_at"], row["delivered"], row["waits"])


def _measured(attempt: DeliveryAttempt) -> DeliveryAttempt:
    outcome = "delivered" if attempt.delivered else "unanswered" if attempt.status is None else "refused"
    metrics.WEBHOOK_DELIVERY_SECONDS.labels(outcome).observe(attempt.elapsed_s)
    return attempt
