"""The task service as the backend uses it: Google's, or a server that speaks its language. Connected on first use.

Google's packages are imported then and not before: most commands need PostgreSQL alone, and not every installation
has the extra `gcp`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from payonce.kit.outcomes import Unavailable
from payonce.queues.cloudtasks.names import INSTALLATION, Place

if TYPE_CHECKING:
    from google.cloud.tasks_v2 import CloudTasksAsyncClient

BATCH_MAX: Final = 100
"""Google's limit of tasks in one call."""
BATCH_MAX_BYTES: Final = 2 * 1024 * 1024
"""Of bodies in one call: a gRPC server takes 4 MiB unless told otherwise."""
CALL_LIMIT_S: Final = 15.0
OPERATION_LIMIT_S: Final = 10.0
OPERATION_LOOK_S: Final = 0.5
NO_PACKAGE: Final = "queues on Cloud Tasks need Google's packages; install payonce with its extra gcp: payonce[gcp]"

OK: Final = "OK"
ALREADY_EXISTS: Final = "ALREADY_EXISTS"
NOT_FOUND: Final = "NOT_FOUND"
UNIMPLEMENTED: Final = "UNIMPLEMENTED"
NEVER_TOLD: Final = (UNIMPLEMENTED, NOT_FOUND, "PERMISSION_DENIED")
"""Said of the operation that a batch is, these mean that nobody will tell us how it ended. Google documents no
permission for looking at one, and no role of Cloud Tasks has it by name."""


@dataclass(frozen=True)
class Config:
    """Where the task service is, and for whom it signs."""

    place: Place
    account: str
    endpoint: str | None = None
    """host:port of a server without TLS; None: Google's."""
    token: Callable[[], str] | None = None
    """Tells what such a server lets callers in by. Asked when it is connected to: most commands never do."""
    verified_by_platform: bool = False
    """Whether Cloud Run checks the tokens of tasks before they come here, and takes their signature away."""

    @property
    def local(self) -> bool:
        return self.endpoint is not None


@dataclass(frozen=True)
class Errand:
    """A task to be made."""

    name: str
    url: str
    audience: str
    body: bytes
    deadline_s: float
    not_before: datetime | None = None


@dataclass(frozen=True)
class Said:
    """How a call ended: a status of gRPC by its name, and the service's words."""

    code: str
    text: str = ""


@dataclass(frozen=True)
class QueueNumbers:
    """A queue as the task service has it, or is to."""

    rate: float
    concurrency: int
    max_attempts: int
    max_retry_s: float
    min_backoff_s: float
    max_backoff_s: float
    max_doublings: int


@dataclass(frozen=True)
class QueueThere:
    numbers: QueueNumbers
    paused: bool


class TaskService:
    def __init__(self, config: Config) -> None:
        self.config = config
        self._client: CloudTasksAsyncClient | None = None
        self._batches = True
        """False once the service has said that it knows no batch calls, or lets nobody look at their operations."""

    async def close(self) -> None:
        if self._client is not None:
            await self._client.transport.close()
            self._client = None

    async def create(self, queue: str, errands: Sequence[Errand]) -> list[Said]:
        """Up to BATCH_MAX tasks of one queue; how each ended."""
        if len(errands) > 1 and self._batches:
            said = await self._create_together(queue, errands)
            if said is not None:
                return said
        return list(await asyncio.gather(*(self._create_one(queue, errand) for errand in errands)))

    async def find(self, name: str) -> str | None:
        """The address that the task goes to; None when there is no such task."""
        task = await self._known(self._connected().get_task(name=name, timeout=CALL_LIMIT_S, retry=None))
        return None if task is None else str(task.http_request.url)

    async def delete(self, name: str) -> None:
        """A task that is gone already is as good as deleted."""
        await self._known(self._connected().delete_task(name=name, timeout=CALL_LIMIT_S, retry=None))

    async def queue(self, queue: str) -> QueueThere | None:
        name = self.config.place.queue(queue)
        found = await self._known(self._connected().get_queue(name=name, timeout=CALL_LIMIT_S, retry=None))
        if found is None:
            return None
        rates, retries = found.rate_limits, found.retry_config
        numbers = QueueNumbers(
            rates.max_dispatches_per_second,
            rates.max_concurrent_dispatches,
            retries.max_attempts,
            _seconds(retries.max_retry_duration),
            _seconds(retries.min_backoff),
            _seconds(retries.max_backoff),
            retries.max_doublings,
        )
        return QueueThere(numbers, found.state.name == "PAUSED")

    async def create_queue(self, queue: str, numbers: QueueNumbers) -> None:
        """One that somebody else has made meanwhile is not made again."""
        wanted = _queue(self.config.place.queue(queue), numbers)
        await self._known(
            self._connected().create_queue(
                parent=self.config.place.parent, queue=wanted, timeout=CALL_LIMIT_S, retry=None
            )
        )

    async def update_queue(self, queue: str, numbers: QueueNumbers) -> None:
        wanted, mask = _queue(self.config.place.queue(queue), numbers), {"paths": ["rate_limits", "retry_config"]}
        await self._known(
            self._connected().update_queue(
                request={"queue": wanted, "update_mask": mask}, timeout=CALL_LIMIT_S, retry=None
            )
        )

    async def set_paused(self, queue: str, paused: bool) -> None:
        client, name = self._connected(), self.config.place.queue(queue)
        act = client.pause_queue if paused else client.resume_queue
        if await self._known(act(name=name, timeout=CALL_LIMIT_S, retry=None)) is None:
            raise Unavailable(f"the task service has no queue {queue}")

    async def installation(self) -> str | None:
        """Whose server it is, if it is a payonce's. Google's is nobody's, and is not asked."""
        if not self.config.local:
            return None
        from google.cloud import tasks_v2
        from grpc.aio import AioRpcError

        # The client's own method hands out queues alone; what came along with them is the call's.
        request = tasks_v2.ListQueuesRequest(parent=self.config.place.parent, page_size=1)
        call: Any = self._connected().transport.list_queues(request, timeout=CALL_LIMIT_S)
        try:
            await call
        except AioRpcError as error:
            raise self._unavailable(Said(error.code().name, error.details() or "")) from error
        return next((str(value) for key, value in await call.trailing_metadata() if key == INSTALLATION), None)

    async def _known(self, call: Awaitable[Any]) -> Any:
        """The answer; None for what is not there, and for what is there already."""
        from google.api_core.exceptions import GoogleAPICallError

        try:
            return await call
        except GoogleAPICallError as error:
            said = said_of(error)
            if said.code in (NOT_FOUND, ALREADY_EXISTS):
                return None
            raise self._unavailable(said) from error

    def _unavailable(self, said: Said) -> Unavailable:
        return Unavailable(f"the task service at {self.config.endpoint or 'Google'} said {said.code}: {said.text}")

    def _connected(self) -> "CloudTasksAsyncClient":
        if self._client is None:
            token = None if self.config.token is None else self.config.token()
            self._client = _connect(self.config.endpoint, token)
        return self._client

    async def _create_together(self, queue: str, errands: Sequence[Errand]) -> list[Said] | None:
        """None when the service has no such call, or does not tell how the batch ended."""
        from google.api_core.exceptions import GoogleAPICallError
        from google.cloud import tasks_v2

        parent = self.config.place.queue(queue)
        request = tasks_v2.BatchCreateTasksRequest.pb()(parent=parent)
        for errand in errands:
            each = request.requests.add()
            each.parent = parent
            self._describe(each.task, errand)
        wrapped = tasks_v2.BatchCreateTasksRequest.wrap(request)
        try:
            operation = await self._connected().batch_create_tasks(request=wrapped, timeout=CALL_LIMIT_S, retry=None)
        except GoogleAPICallError as error:
            return self._without_batches(said_of(error), (UNIMPLEMENTED,), len(errands))
        try:
            return _parted(await _ended(operation), len(errands))
        except GoogleAPICallError as error:
            # What the batch has made meanwhile is known by its name when it is made again one by one.
            return self._without_batches(said_of(error), NEVER_TOLD, len(errands))

    def _without_batches(self, said: Said, for_good: Sequence[str], count: int) -> list[Said] | None:
        if said.code not in for_good:
            return [said] * count
        self._batches = False
        return None

    async def _create_one(self, queue: str, errand: Errand) -> Said:
        from google.api_core.exceptions import GoogleAPICallError
        from google.cloud import tasks_v2

        request = tasks_v2.CreateTaskRequest.pb()(parent=self.config.place.queue(queue))
        self._describe(request.task, errand)
        wrapped = tasks_v2.CreateTaskRequest.wrap(request)
        try:
            await self._connected().create_task(request=wrapped, timeout=CALL_LIMIT_S, retry=None)
        except GoogleAPICallError as error:
            return said_of(error)
        return Said(OK)

    def _describe(self, task: Any, errand: Errand) -> None:
        """Into the plain protocol buffer: the wrapped kind costs ten times as much."""
        task.name = errand.name
        task.dispatch_deadline.FromTimedelta(timedelta(seconds=errand.deadline_s))
        if errand.not_before is not None:
            task.schedule_time.FromDatetime(errand.not_before.astimezone(UTC).replace(tzinfo=None))
        request = task.http_request
        request.url = errand.url
        request.http_method = _POST
        request.headers["Content-Type"] = "application/json"
        request.body = errand.body
        request.oidc_token.service_account_email = self.config.account
        request.oidc_token.audience = errand.audience


_POST: Final = 1
"""google.cloud.tasks.v2.HttpMethod."""


def said_of(error: BaseException) -> Said:
    """What the service said, or that it said nothing."""
    code = getattr(error, "grpc_status_code", None)
    return Said("UNAVAILABLE" if code is None else str(code.name), str(getattr(error, "message", error))[:500])


def _connect(endpoint: str | None, token: str | None) -> "CloudTasksAsyncClient":
    try:
        import grpc
        from google.auth.credentials import AnonymousCredentials
        from google.auth.exceptions import DefaultCredentialsError
        from google.cloud.tasks_v2 import CloudTasksAsyncClient
        from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcAsyncIOTransport
    except ImportError as error:
        raise Unavailable(NO_PACKAGE) from error
    if endpoint is None:
        try:
            return CloudTasksAsyncClient()
        except DefaultCredentialsError as error:
            raise Unavailable(f"there is no login for Google Cloud: {error}") from error
    channel = grpc.aio.insecure_channel(endpoint, interceptors=[] if token is None else [_bearing(token)])
    transport = CloudTasksGrpcAsyncIOTransport(channel=channel, credentials=AnonymousCredentials())
    return CloudTasksAsyncClient(transport=transport)


def _bearing(token: str) -> Any:
    """Adds the token to every call. Credentials of a call would need TLS."""
    from grpc.aio import Metadata, UnaryUnaryClientInterceptor

    class Bearing(UnaryUnaryClientInterceptor):  # type: ignore[misc]
        async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
            metadata = (*(client_call_details.metadata or ()), ("authorization", f"Bearer {token}"))
            return await continuation(client_call_details._replace(metadata=Metadata(*metadata)), request)

    return Bearing()


async def _ended(operation: Any) -> Any:
    """The operation as it ended, or as it was when the patience for it did."""
    try:
        async with asyncio.timeout(OPERATION_LIMIT_S):
            # Google tells nobody when a batch is made: it is asked.
            while not await operation.done():  # noqa: ASYNC110
                await asyncio.sleep(OPERATION_LOOK_S)
    except TimeoutError:
        pass
    return operation.operation


def _parted(operation: Any, count: int) -> list[Said]:
    """One for each request of a batch."""
    from google.cloud import tasks_v2

    if not operation.done:
        return [Said("DEADLINE_EXCEEDED", "the batch is still being created")] * count
    metadata = tasks_v2.BatchCreateTasksMetadata.pb()()
    operation.metadata.Unpack(metadata)
    failed = metadata.failed_requests
    if operation.HasField("error") and not failed:
        return [_said(operation.error)] * count
    return [_said(failed[index]) if index in failed else Said(OK) for index in range(count)]


def _said(status: Any) -> Said:
    import grpc

    names = {code.value[0]: code.name for code in grpc.StatusCode}
    return Said(names.get(status.code, "UNKNOWN"), status.message[:500])


def _queue(name: str, numbers: QueueNumbers) -> Any:
    from google.cloud import tasks_v2

    return tasks_v2.Queue(
        name=name,
        rate_limits=tasks_v2.RateLimits(
            max_dispatches_per_second=numbers.rate, max_concurrent_dispatches=numbers.concurrency
        ),
        retry_config=tasks_v2.RetryConfig(
            max_attempts=numbers.max_attempts,
            max_retry_duration=timedelta(seconds=numbers.max_retry_s),
            min_backoff=timedelta(seconds=numbers.min_backoff_s),
            max_backoff=timedelta(seconds=numbers.max_backoff_s),
            max_doublings=numbers.max_doublings,
        ),
    )


def _seconds(duration: timedelta | None) -> float:
    return 0.0 if duration is None else duration.total_seconds()
