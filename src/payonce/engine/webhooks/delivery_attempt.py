"""One delivery attempt: signed afresh, sent once, and recorded with its result.

A worker that dies between sending and recording leaves no trace of the attempt, and the next run sends again: the same
event id and the same bytes, by which the receiver recognises it.
"""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from payonce.engine.audit import Severity, note
from payonce.engine.database.connections import Connection, Database
from payonce.engine.messages.contract import Contract
from payonce.engine.messages.model import clean_text
from payonce.engine.messages.policy import Policy, Steps
from payonce.engine.messages.transaction import Reader, Tx
from payonce.engine.messages.work import Work, handles
from payonce.engine.monitoring import metrics
from payonce.engine.webhooks.model import DeliveryState, EndpointState, origin_of
from payonce.engine.webhooks.registry import LOCATION, secrets_in_force
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Held, NotSent, Retry, Unknown, Unprocessable
from payonce.kit.redact import redact

if TYPE_CHECKING:
    from payonce.kit.crypto import Keyring
    from payonce.kit.http import HttpClient, Response
    from payonce.kit.webhooks import Secret

SCHEDULE_S: Final = (5, 5 * 60, 30 * 60, 2 * 3_600, 5 * 3_600, 10 * 3_600, 10 * 3_600)
"""The schedule that Standard Webhooks recommends after the first attempt, which is immediate."""
JITTER_S: Final = 5.0
RETRY_AFTER_MAX_S: Final = 12 * 3_600
"""A longer Retry-After is cut to this."""
DISABLE_AFTER_S: Final = 5 * 86_400
"""An endpoint with nothing but failures for this long is disabled."""
TIMEOUT_S: Final = 15.0
CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_MAX_BYTES: Final = 64 * 1024
NO_KEYS_LOOK_S: Final = 60.0
"""How often a delivery that this process cannot sign is retried by any process."""
ACTOR: Final = "payonce"

log = get_logger(__name__)


async def give_up(work: Work) -> None:
    """Ends the delivery as failed; it can be replayed. No money is involved that a person would have to look for."""
    async with work.commit(rejected="given up") as tx:
        await _end(tx, work.message.id, DeliveryState.FAILED, f"given up after {work.message.attempts + 1} attempts")


class DeliveryMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Deliver an event to an endpoint: the delivery that is on record under the message's id."""

    event: str
    type: str
    endpoint: str


DELIVERIES: Final = Policy(
    "webhook-deliveries",
    max_attempts=1 + len(SCHEDULE_S),
    backoff=Steps(*SCHEDULE_S, jitter_s=JITTER_S),
    lease_s=30.0,
    run_limit_s=60.0,
    lanes=True,
    on_give_up=give_up,
    contract=Contract({"deliver": DeliveryMessage}),
)


class Sender:
    """Sends deliveries. Without keys nothing can be signed: deliveries wait for a process that has keys."""

    def __init__(
        self, http: "HttpClient", database: Database, keys: "Keyring | None", policy: Policy = DELIVERIES
    ) -> None:
        """`policy` includes overrides from the environment: Retry-After may delay the policy's schedule, never shorten
        it."""
        self.http = http
        self.database = database
        self.keys = keys
        self.policy = policy


def webhook_client(*, allow_private: bool) -> "HttpClient":
    """An HTTP client for deliveries: no redirects, one DNS look-up per connection, bounded answers, and private
    addresses only if allowed."""
    # Imported here, because commands that deliver nothing need no HTTP client, which takes a while to load.
    from payonce.kit.http import HttpClient

    return HttpClient(
        "webhooks",
        None,
        timeout_s=TIMEOUT_S,
        connect_timeout_s=CONNECT_TIMEOUT_S,
        max_body_bytes=ANSWER_MAX_BYTES,
        allow_private=allow_private,
    )


@dataclass(frozen=True)
class AttemptResult:
    """The result of one attempt."""

    status: int | None
    latency_s: float
    error: str | None = None
    excerpt: str | None = None
    retry_after_s: int | None = None

    @property
    def outcome(self) -> str:
        if self.error is None:
            return "delivered"
        return "unanswered" if self.status is None else "refused"


@handles(DELIVERIES)
async def deliver(work: Work, sender: Sender) -> None:
    """Sends the event once. A repeated run is safe: receivers recognise the event by its id."""
    due = await _due(work.read, work.message.id)
    if due is None:
        raise Unprocessable(f"there is no delivery {work.message.id}; replay the event instead")
    if due["state"] != DeliveryState.PENDING:
        return
    if due["endpoint_state"] != EndpointState.ENABLED:
        reason = f"the endpoint is {due['endpoint_state']}: {due['endpoint_reason']}"
        async with work.commit(rejected=reason) as tx:
            await _end(tx, work.message.id, DeliveryState.SKIPPED, reason)
        return
    result = await _attempt(sender, work.read, due)
    metrics.WEBHOOK_DELIVERY_SECONDS.labels(result.outcome).observe(result.latency_s)
    if result.error is None:
        async with work.commit() as tx:
            await _record(tx.connection, work, due, result)
            await _end(tx, work.message.id, DeliveryState.DELIVERED, None)
        return
    if result.status == 410:
        async with work.commit(rejected="the receiver is gone") as tx:
            await _record(tx.connection, work, due, result)
            await _end(tx, work.message.id, DeliveryState.FAILED, result.error)
            await _disable(tx.connection, due["endpoint_id"], "gone", "it answered 410 Gone", fails_for_s=0)
        return
    async with sender.database.transaction() as connection:
        await _record(connection, work, due, result)
        reason = f"nothing but failures for {DISABLE_AFTER_S // 86_400} days, the last one: {result.error}"
        await _disable(connection, due["endpoint_id"], "failing", reason, fails_for_s=DISABLE_AFTER_S)
    raise Retry(result.error, _after_s(sender.policy, work, result))


def _after_s(policy: Policy, work: Work, result: AttemptResult) -> float | None:
    """The receiver's Retry-After, within a bound and not before the policy's delay; None without one."""
    if result.retry_after_s is None:
        return None
    planned_s = policy.backoff.delay_s(work.message.attempts + 1, 0.0)
    return max(planned_s, float(min(result.retry_after_s, RETRY_AFTER_MAX_S)))


async def _attempt(sender: Sender, read: Reader, due: Any) -> AttemptResult:
    from payonce.kit.http import BodyTooLarge, NotPublic
    from payonce.kit.webhooks import signed_headers

    body: bytes = due["body"]
    signatures = signed_headers(await _secrets(sender, read, due["endpoint_id"]), due["event_id"], due["now"], body)
    started = time.monotonic()
    try:
        answer = await sender.http.request(
            "POST", due["url"], body=body, headers={"Content-Type": "application/json", **signatures}
        )
    except BodyTooLarge as long:
        return _result_of(long.status, time.monotonic() - started, f"an answer over {ANSWER_MAX_BYTES} bytes", None)
    except NotPublic as private:
        # A tenant who chooses the host name must not learn anything about our network.
        log.warning("webhook_not_public", endpoint=str(due["endpoint_id"]), reason=private.reason)
        return AttemptResult(None, time.monotonic() - started, "not sent: the host is not at a public address")
    except (NotSent, Unknown) as failed:
        return AttemptResult(None, time.monotonic() - started, redact(failed.reason))
    return _result_of(answer.status, answer.elapsed_s, answer.excerpt(), _retry_after_s(answer))


async def _secrets(sender: Sender, read: Reader, endpoint_id: UUID) -> "list[Secret]":
    """The secrets in force. Raises Held if this process cannot sign, which leaves the delivery to one that can and uses
    no attempt."""
    from payonce.kit.crypto import Unopenable

    if sender.keys is None:
        raise Held("this process has no PAYONCE_KEYS to sign webhooks with", NO_KEYS_LOOK_S)
    try:
        return await secrets_in_force(read, sender.keys, endpoint_id)
    except Unopenable as problem:
        raise Held(f"the secrets of endpoint {endpoint_id} cannot be read: {problem}", NO_KEYS_LOOK_S) from None


def _result_of(status: int, latency_s: float, excerpt: str, retry_after_s: int | None) -> AttemptResult:
    """2xx is a success, everything else a failure. Redirects are not followed, since they may lead to forbidden
    addresses."""
    if 200 <= status < 300:
        return AttemptResult(status, latency_s, None, excerpt)
    remark = ", and redirects are not followed" if 300 <= status < 400 else ""
    return AttemptResult(status, latency_s, f"answered {status}{remark}", excerpt, retry_after_s)


def _retry_after_s(answer: "Response") -> int | None:
    return answer.retry_after_s if answer.status in (429, 503) else None


async def _due(read: Reader, delivery_id: UUID) -> Any:
    return await read.fetchrow(
        """
        select d.state, d.event_id, d.endpoint_id, v.body, e.url, e.state as endpoint_state,
            e.reason as endpoint_reason, payonce.due_now() as now
        from payonce.webhook_deliveries d
        join payonce.webhook_events v on v.id = d.event_id
        join payonce.webhook_endpoints e on e.id = d.endpoint_id
        where d.id = $1
        """,
        delivery_id,
    )


async def _record(connection: Connection, work: Work, due: Any, result: AttemptResult) -> None:
    await connection.execute(
        """
        insert into payonce.webhook_attempts (delivery_id, number, at, status, latency_ms, error, excerpt)
        values ($1, $2, $3, $4, $5, $6, $7)
        """,
        work.message.id,
        work.message.attempts + 1,
        due["now"],
        result.status,
        round(result.latency_s * 1_000),
        result.error,
        None if result.excerpt is None else clean_text(result.excerpt),
    )
    await connection.execute(
        "update payonce.webhook_deliveries set attempts = attempts + 1, last_status = $2 where id = $1",
        work.message.id,
        result.status,
    )
    # Written only on a change, so that deliveries to a busy endpoint do not rewrite its row.
    await connection.execute(
        """
        update payonce.webhook_endpoints set failing_since = case when $2 then null else payonce.due_now() end
        where id = $1 and (failing_since is null) <> $2
        """,
        due["endpoint_id"],
        result.error is None,
    )


async def _end(tx: Tx, delivery_id: UUID, state: DeliveryState, reason: str | None) -> None:
    await tx.execute(
        """
        update payonce.webhook_deliveries set state = $2, reason = $3, ended_at = payonce.due_now()
        where id = $1 and state = 'pending'
        """,
        delivery_id,
        state,
        reason,
    )


async def _disable(connection: Connection, endpoint_id: UUID, why: str, reason: str, *, fails_for_s: float) -> None:
    url = await connection.fetchval(
        """
        update payonce.webhook_endpoints
        set state = 'disabled', reason = $2, changed_at = payonce.due_now(), failing_since = null
        where id = $1 and state = 'enabled' and failing_since <= payonce.due_now() - make_interval(secs => $3)
        returning url
        """,
        endpoint_id,
        reason,
        float(fails_for_s),
    )
    if url is None:
        return
    metrics.WEBHOOK_ENDPOINTS_DISABLED.labels(why).inc()
    text = f"{origin_of(url)} disabled: {reason}"
    log.warning("webhook_endpoint_disabled", endpoint=str(endpoint_id), origin=origin_of(url), reason=reason)
    await note(connection, LOCATION, f"endpoint {endpoint_id}", text, actor=ACTOR, severity=Severity.WARNING)
