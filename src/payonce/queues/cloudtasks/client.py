"""The client of the task service: Google's, or a compatible server. Connects on first use.

Google's packages are imported only then: most commands need PostgreSQL alone, and the extra `gcp` is optional.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from payonce.kit.outcomes import Unavailable
from payonce.queues.cloudtasks.names import INSTALLATION, ProjectLocation

if TYPE_CHECKING:
    from google.cloud.tasks_v2 import CloudTasksAsyncClient

BATCH_MAX: Final = 100
"""Google's limit on tasks per call."""
BATCH_MAX_BYTES: Final = 2 * 1024 * 1024
"""Total body size per call; gRPC servers accept 4 MiB by default."""
CALL_LIMIT_S: Final = 15.0
OPERATION_LIMIT_S: Final = 10.0
OPERATION_POLL_S: Final = 0.5
NO_PACKAGE: Final = "queues on Cloud Tasks need Google's packages; install payonce with its extra gcp: payonce[gcp]"

OK: Final = "OK"
ALREADY_EXISTS: Final = "ALREADY_EXISTS"
NOT_FOUND: Final = "NOT_FOUND"
UNIMPLEMENTED: Final = "UNIMPLEMENTED"
OPERATION_UNREADABLE: Final = (UNIMPLEMENTED, NOT_FOUND, "PERMISSION_DENIED")
"""Status codes of a batch's operation after which its result can never be read. Google documents no permission for
reading operations, and no Cloud Tasks role grants one by name."""


@dataclass(frozen=True)
class Config:
    """The task service's address, and the account whose tokens it signs."""

    location: ProjectLocation
    account: str
    endpoint: str | None = None
    """host:port of a server without TLS; None for Google's."""
    token: Callable[[], str] | None = None
    """Returns the token for such a server. Called when the client connects, which most commands never do."""
    verified_by_platform: bool = False
    """Whether Cloud Run verifies the tokens of tasks and removes their signatures before it forwards them."""

    @property
    def local(self) -> bool:
        return self.endpoint is not None


@dataclass(frozen=True)
class TaskRequest:
    """A task to create."""

    name: str
    url: str
    audience: str
    body: bytes
    deadline_s: float
    not_before: datetime | None = None


@dataclass(frozen=True)
class CallStatus:
    """The result of a call: the name of a gRPC status, and the service's message."""

    code: str
    text: str = ""


@dataclass(frozen=True)
class QueueNumbers:
    """The rate and retry settings of a queue at the task service."""

    rate: float
    concurrency: int
    max_attempts: int
    max_retry_s: float
    min_backoff_s: float
    max_backoff_s: float
    max_doublings: int


@dataclass(frozen=True)
class RemoteQueue:
    numbers: QueueNumbers
    paused: bool


class TaskService:
    def __init__(self, config: Config) -> None:
        self.config = config
        self._client: CloudTasksAsyncClient | None = None
        self._batches = True
        """False once the service has reported that it has no batch calls, or that their operations cannot be read."""

    async def close(self) -> None:
        if self._client is not None:
            await self._client.transport.close()
            self._client = None

    async def create(self, queue: str, tasks: Sequence[TaskRequest]) -> list[CallStatus]:
        """Creates up to BATCH_MAX tasks of one queue; returns a status for each."""
        if len(tasks) > 1 and self._batches:
            statuses = await self._create_batch(queue, tasks)
            if statuses is not None:
                return statuses
        return list(await asyncio.gather(*(self._create_one(queue, task) for task in tasks)))

    async def find(self, name: str) -> str | None:
        """The task's target URL; None when there is no such task."""
        task = await self._known(self._connected().get_task(name=name, timeout=CALL_LIMIT_S, retry=None))
        return None if task is None else str(task.http_request.url)

    async def delete(self, name: str) -> None:
        """Deletes a task; does nothing if it is already gone."""
        await self._known(self._connected().delete_task(name=name, timeout=CALL_LIMIT_S, retry=None))

    async def queue(self, queue: str) -> RemoteQueue | None:
        name = self.config.location.queue(queue)
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
        return RemoteQueue(numbers, found.state.name == "PAUSED")

    async def create_queue(self, queue: str, numbers: QueueNumbers) -> None:
        """Creates the queue unless it exists."""
        wanted = _queue(self.config.location.queue(queue), numbers)
        await self._known(
            self._connected().create_queue(
                parent=self.config.location.parent, queue=wanted, timeout=CALL_LIMIT_S, retry=None
            )
        )

    async def update_queue(self, queue: str, numbers: QueueNumbers) -> None:
        wanted, mask = _queue(self.config.location.queue(queue), numbers), {"paths": ["rate_limits", "retry_config"]}
        await self._known(
            self._connected().update_queue(
                request={"queue": wanted, "update_mask": mask}, timeout=CALL_LIMIT_S, retry=None
            )
        )

    async def set_paused(self, queue: str, paused: bool) -> None:
        client, name = self._connected(), self.config.location.queue(queue)
        act = client.pause_queue if paused else client.resume_queue
        if await self._known(act(name=name, timeout=CALL_LIMIT_S, retry=None)) is None:
            raise Unavailable(
                f"the task service has no queue {queue}; create it with: payonce queues sync --to cloudtasks"
            )

    async def installation(self) -> str | None:
        """The installation that the server belongs to; None for Google's, which is not queried."""
        if not self.config.local:
            return None
        from google.cloud import tasks_v2
        from grpc.aio import AioRpcError

        # The client's own method returns queues alone; the metadata is on the call.
        request = tasks_v2.ListQueuesRequest(parent=self.config.location.parent, page_size=1)
        call: Any = self._connected().transport.list_queues(request, timeout=CALL_LIMIT_S)
        try:
            await call
        except AioRpcError as error:
            raise self._unavailable(CallStatus(error.code().name, error.details() or "")) from error
        return next((str(value) for key, value in await call.trailing_metadata() if key == INSTALLATION), None)

    async def _known(self, call: Awaitable[Any]) -> Any:
        """The response; None if the resource is missing, or exists already."""
        from google.api_core.exceptions import GoogleAPICallError

        try:
            return await call
        except GoogleAPICallError as error:
            status = status_of(error)
            if status.code in (NOT_FOUND, ALREADY_EXISTS):
                return None
            raise self._unavailable(status) from error

    def _unavailable(self, status: CallStatus) -> Unavailable:
        return Unavailable(
            f"the task service at {self.config.endpoint or 'Google'} answered {status.code}: {status.text}"
        )

    def _connected(self) -> "CloudTasksAsyncClient":
        if self._client is None:
            token = None if self.config.token is None else self.config.token()
            self._client = _connect(self.config.endpoint, token)
        return self._client

    async def _create_batch(self, queue: str, tasks: Sequence[TaskRequest]) -> list[CallStatus] | None:
        """Statuses of a batch; None if the service has no batch calls or does not reveal their results."""
        from google.api_core.exceptions import GoogleAPICallError
        from google.cloud import tasks_v2

        parent = self.config.location.queue(queue)
        request = tasks_v2.BatchCreateTasksRequest.pb()(parent=parent)
        for task in tasks:
            each = request.requests.add()
            each.parent = parent
            self._fill(each.task, task)
        wrapped = tasks_v2.BatchCreateTasksRequest.wrap(request)
        try:
            operation = await self._connected().batch_create_tasks(request=wrapped, timeout=CALL_LIMIT_S, retry=None)
        except GoogleAPICallError as error:
            return self._without_batches(status_of(error), (UNIMPLEMENTED,), len(tasks))
        try:
            return _batch_statuses(await _ended(operation), len(tasks))
        except GoogleAPICallError as error:
            # Tasks that the batch has created are recognised by name when they are created one by one.
            return self._without_batches(status_of(error), OPERATION_UNREADABLE, len(tasks))

    def _without_batches(self, status: CallStatus, for_good: Sequence[str], count: int) -> list[CallStatus] | None:
        if status.code not in for_good:
            return [status] * count
        self._batches = False
        return None

    async def _create_one(self, queue: str, task: TaskRequest) -> CallStatus:
        from google.api_core.exceptions import GoogleAPICallError
        from google.cloud import tasks_v2

        request = tasks_v2.CreateTaskRequest.pb()(parent=self.config.location.queue(queue))
        self._fill(request.task, task)
        wrapped = tasks_v2.CreateTaskRequest.wrap(request)
        try:
            await self._connected().create_task(request=wrapped, timeout=CALL_LIMIT_S, retry=None)
        except GoogleAPICallError as error:
            return status_of(error)
        return CallStatus(OK)

    def _fill(self, target: Any, task: TaskRequest) -> None:
        """Fills the plain protocol buffer: the wrapped type costs ten times as much."""
        target.name = task.name
        target.dispatch_deadline.FromTimedelta(timedelta(seconds=task.deadline_s))
        if task.not_before is not None:
            target.schedule_time.FromDatetime(task.not_before.astimezone(UTC).replace(tzinfo=None))
        request = target.http_request
        request.url = task.url
        request.http_method = _POST
        request.headers["Content-Type"] = "application/json"
        request.body = task.body
        request.oidc_token.service_account_email = self.config.account
        request.oidc_token.audience = task.audience


_POST: Final = 1
"""google.cloud.tasks.v2.HttpMethod."""


def status_of(error: BaseException) -> CallStatus:
    """The status that the service returned, or UNAVAILABLE if it returned none."""
    code = getattr(error, "grpc_status_code", None)
    return CallStatus("UNAVAILABLE" if code is None else str(code.name), str(getattr(error, "message", error))[:500])


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
            raise Unavailable(f"there are no credentials for Google Cloud: {error}") from error
    channel = grpc.aio.insecure_channel(endpoint, interceptors=[] if token is None else [_bearer_authorization(token)])
    transport = CloudTasksGrpcAsyncIOTransport(channel=channel, credentials=AnonymousCredentials())
    return CloudTasksAsyncClient(transport=transport)


def _bearer_authorization(token: str) -> Any:
    """Adds the token to every call; gRPC call credentials would require TLS."""
    from grpc.aio import Metadata, UnaryUnaryClientInterceptor

    class BearerAuthorization(UnaryUnaryClientInterceptor):  # type: ignore[misc]
        async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
            metadata = (*(client_call_details.metadata or ()), ("authorization", f"Bearer {token}"))
            return await continuation(client_call_details._replace(metadata=Metadata(*metadata)), request)

    return BearerAuthorization()


async def _ended(operation: Any) -> Any:
    """The operation as it ended, or as it was after OPERATION_LIMIT_S."""
    try:
        async with asyncio.timeout(OPERATION_LIMIT_S):
            # Google sends no notification when a batch is done: it must be polled.
            while not await operation.done():  # noqa: ASYNC110
                await asyncio.sleep(OPERATION_POLL_S)
    except TimeoutError:
        pass
    return operation.operation


def _batch_statuses(operation: Any, count: int) -> list[CallStatus]:
    """One status for each request of a batch."""
    from google.cloud import tasks_v2

    if not operation.done:
        return [CallStatus("DEADLINE_EXCEEDED", "the batch is still being created")] * count
    metadata = tasks_v2.BatchCreateTasksMetadata.pb()()
    operation.metadata.Unpack(metadata)
    failed = metadata.failed_requests
    if operation.HasField("error") and not failed:
        return [_status(operation.error)] * count
    return [_status(failed[index]) if index in failed else CallStatus(OK) for index in range(count)]


def _status(status: Any) -> CallStatus:
    import grpc

    names = {code.value[0]: code.name for code in grpc.StatusCode}
    return CallStatus(names.get(status.code, "UNKNOWN"), status.message[:500])


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
