"""Assembles the pushed queues of one process: feed, endpoints, relay and maintenance."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.policy import Policy
from payonce.queues.cloudtasks.admin import CloudTasksAdmin
from payonce.queues.cloudtasks.client import Config, TaskService
from payonce.queues.cloudtasks.deliveries import DeliveryBuffer
from payonce.queues.cloudtasks.feed import CloudTasksFeed
from payonce.queues.cloudtasks.pushed import PushedQueue, by_queue
from payonce.queues.cloudtasks.queue import CloudTasksQueue
from payonce.queues.cloudtasks.refill import TaskMaintenance
from payonce.queues.cloudtasks.relay import CloudTasksRelay

if TYPE_CHECKING:
    from payonce.queues.cloudtasks.endpoint import PushEndpoint


class CloudTasks:
    """Pushed queues of all services; a process serves those that are `here`."""

    def __init__(
        self,
        database: Database,
        notifier: Notifier,
        service: TaskService,
        pushed: Sequence[PushedQueue],
        stack: AsyncExitStack,
    ) -> None:
        self.pushed = by_queue(pushed)
        self.service = service
        self.address: str | None = None
        """Where this process listens; None until it does."""
        self.feed = CloudTasksFeed(database, notifier, self._reaches)
        self.admin = CloudTasksAdmin(database, notifier, service, self.pushed)
        self.maintenance = TaskMaintenance(database, notifier, service, self.pushed, self._own_address)
        self.relay = CloudTasksRelay(service, self.pushed, self._own_address, self.maintenance.queue_missing)
        self._database = database
        self._notifier = notifier
        self._stack = stack
        self._buffers = {each.queue: DeliveryBuffer(each.queue) for each in self.pushed.values() if each.here}

    @property
    def works_here(self) -> bool:
        """Whether this process serves a pushing service, and so reaches the task service."""
        return bool(self._buffers)

    def queue(self, policy: Policy, worker: str) -> CloudTasksQueue:
        return CloudTasksQueue(self._database, self._notifier, policy, worker, self._buffers[policy.queue])

    def endpoints(self) -> "list[tuple[PushedQueue, PushEndpoint]]":
        """The endpoints of the queues that this process serves."""
        # Imported late: commands need neither cryptography nor an HTTP client.
        from payonce.queues.cloudtasks.endpoint import PushEndpoint
        from payonce.queues.cloudtasks.oidc import GOOGLE_KEYS_URL, GoogleKeys, LocalKeys, Verifier

        config, by_platform = self.service.config, self.service.config.verified_by_platform
        if config.local:
            verifier = Verifier(LocalKeys(self._database), config.account, by_platform=by_platform)
        else:
            from payonce.kit.http import HttpClient

            http = HttpClient("google keys", GOOGLE_KEYS_URL)
            self._stack.push_async_callback(http.close)
            verifier = Verifier(GoogleKeys(http), config.account, by_platform=by_platform)
        return [
            (each, PushEndpoint(each, self._buffers[each.queue], verifier, config.location, self._own_address))
            for each in self.pushed.values()
            if each.here
        ]

    def close_endpoints(self) -> None:
        """Accepts no further deliveries; waiting ones are returned to the task service."""
        for buffer in self._buffers.values():
            buffer.close()

    def _own_address(self) -> str | None:
        return self.address

    def _reaches(self, queue: str) -> bool:
        pushed = self.pushed.get(queue)
        return pushed is not None and pushed.reached_at(self.address) is not None


@asynccontextmanager
async def open_cloud_tasks(
    database: Database, notifier: Notifier, config: Config, pushed: Sequence[PushedQueue]
) -> AsyncIterator[CloudTasks]:
    service = TaskService(config)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(service.close)
        yield CloudTasks(database, notifier, service, pushed, stack)
