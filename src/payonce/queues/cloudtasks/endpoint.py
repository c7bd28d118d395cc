"""The HTTP endpoints that the task service calls: one path for each pushed queue that this process serves.

| status | when |
|---|---|
| 200 | the run ended, or the message is settled, parked, or waits for a new task |
| 400 | the body is unreadable, forged, or of another queue |
| 401 | the task service's token is missing or wrong |
| 404 | no such message was ever put here |
| 405 | the method is not POST |
| 500 | the handler asked for a retry; the task service retries with the queue's backoff |
| 503 | not now: the message is leased or early, the queue is paused, this process is full or stopping |
"""

from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from starlette.types import Receive, Scope, Send

from payonce.engine.database.connections import is_transient
from payonce.engine.monitoring.metrics import PUSHED_DELIVERIES
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid
from payonce.queues.cloudtasks import deliveries
from payonce.queues.cloudtasks.deliveries import Delivery, DeliveryBuffer, Reply
from payonce.queues.cloudtasks.names import ProjectLocation, delivery_of
from payonce.queues.cloudtasks.oidc import SERVERLESS, Verifier
from payonce.queues.cloudtasks.pushed import PushedQueue

UNREADABLE: Final = Reply(400, "unreadable")
UNAUTHORIZED: Final = Reply(401, "unauthorized")
NOT_A_POST: Final = Reply(405, "not_a_post")
TASK_NAME: Final = "x-cloudtasks-taskname"
RETRY_COUNT: Final = "x-cloudtasks-taskretrycount"
COUNT_MAX_DIGITS: Final = 9

log = get_logger(__name__)


class PushEndpoint:
    """An ASGI application for one pushed queue. The guard in front of it limits the body's size."""

    def __init__(
        self,
        pushed: PushedQueue,
        buffer: DeliveryBuffer,
        verifier: Verifier,
        location: ProjectLocation,
        own_address: Callable[[], str | None],
    ) -> None:
        self._pushed = pushed
        self._target = pushed.target
        self._buffer = buffer
        self._verifier = verifier
        self._location = location
        self._own_address = own_address
        self.path = pushed.long_path
        """Labels the metrics."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self
        reply = await self._answer(scope, receive)
        PUSHED_DELIVERIES.labels(self._target.queue, reply.outcome).inc()
        headers = [(b"content-type", b"application/json")]
        if reply.retry_after_s is not None:
            headers.append((b"retry-after", str(reply.retry_after_s).encode()))
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"outcome":"%s"}' % reply.outcome.encode()})

    async def _answer(self, scope: Scope, receive: Receive) -> Reply:
        if scope["method"] != "POST":
            return NOT_A_POST
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if [name.lower() for name, _ in scope["headers"]].count(b"authorization") > 1:
            # The platform in front may have verified the other one.
            log.warning(
                "task_refused",
                queue=self._target.queue,
                reason="two Authorization headers",
                status=HTTPStatus.UNAUTHORIZED.value,
            )
            return UNAUTHORIZED
        refused = await self._refused(headers.get("authorization", ""), serverless=SERVERLESS in headers)
        if refused is not None:
            return refused
        body = (await receive()).get("body", b"")
        try:
            arrived = self._target.codec.decode(body, headers)
        except Invalid as error:
            # The error's text may quote the body, so it is neither logged nor returned.
            log.warning(
                "task_unreadable",
                queue=self._target.queue,
                error=type(error).__name__,
                task=headers.get(TASK_NAME, "")[:100],
            )
            return UNREADABLE
        name = headers.get(TASK_NAME, "")
        delivery = Delivery(
            arrived.id,
            delivery_of(arrived.id, name),
            _count(headers.get(RETRY_COUNT, "")),
            arrived.message,
            self._location.task(self._pushed.remote_name, name) if name else "",
        )
        self._buffer.offer(delivery)
        return await delivery.answered(self._pushed.answers_within_s)

    async def _refused(self, authorization: str, *, serverless: bool) -> Reply | None:
        reached = self._pushed.reached_at(self._own_address())
        if reached is None:
            return deliveries.CLOSING
        try:
            await self._verifier.check(authorization, reached[0], serverless=serverless)
        except Invalid as error:
            log.warning(
                "task_refused", queue=self._target.queue, reason=str(error), status=HTTPStatus.UNAUTHORIZED.value
            )
            return UNAUTHORIZED
        except Exception as error:
            if not is_transient(error):
                raise
            log.warning("task_not_verified", queue=self._target.queue, error=str(error))
            return deliveries.AWAY
        return None


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= COUNT_MAX_DIGITS else 0
