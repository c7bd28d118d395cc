"""Pushed queues for one process: what it puts, serves, carries and keeps in step, opened together."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.policy import Policy
from payonce.queues.cloudtasks.admin import CloudTasksAdmin
from payonce.queues.cloudtasks.client import Config, TaskService
from payonce.queues.cloudtasks.deliveries import Box
from payonce.queues.cloudtasks.feed import CloudTasksFeed
from payonce.queues.cloudtasks.pushed import Pushed, by_queue
from payonce.queues.cloudtasks.queue import CloudTasksQueue
from payonce.queues.cloudtasks.refill import Keeper
from payonce.queues.cloudtasks.relay import CloudTasksRelay

if TYPE_CHECKING:
    from payonce.queues.cloudtasks.endpoint import Door


class CloudTasks:
    """`pushed` are all queues that any service pushes; a process serves those that are `here`."""

    def __init__(
        self,
        database: Database,
        notifier: Notifier,
        service: TaskService,
        pushed: Sequence[Pushed],
        stack: AsyncExitStack,
    ) -> None:
        self.pushed = by_queue(pushed)
        self.service = service
        self.address: str | None = None
        """Where this process listens, once it does."""
        self.feed = CloudTasksFeed(database, notifier, self._reaches)
        self.admin = CloudTasksAdmin(database, notifier, service, self.pushed)
        self.keeper = Keeper(database, notifier, service, self.pushed, self._own_address)
        self.relay = CloudTasksRelay(service, self.pushed, self._own_address, self.keeper.queue_missing)
        self._database = database
        self._notifier = notifier
        self._stack = stack
        self._boxes = {each.queue: Box(each.queue) for each in self.pushed.values() if each.here}

    @property
    def works_here(self) -> bool:
        """Whether this process serves a service that pushes, and so has the task service at hand."""
        return bool(self._boxes)

    def queue(self, policy: Policy, worker: str) -> CloudTasksQueue:
        return CloudTasksQueue(self._database, self._notifier, policy, worker, self._boxes[policy.queue])

    def doors(self) -> "list[tuple[Pushed, Door]]":
        """What this process answers to, when it listens."""
        # Not at the top: commands need neither ciphers nor an HTTP client.
        from payonce.queues.cloudtasks.endpoint import Door
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
            (each, Door(each, self._boxes[each.queue], verifier, config.place, self._own_address))
            for each in self.pushed.values()
            if each.here
        ]

    def close_doors(self) -> None:
        """Nothing more is taken; what waits is the task service's again."""
        for box in self._boxes.values():
            box.close()

    def _own_address(self) -> str | None:
        return self.address

    def _reaches(self, queue: str) -> bool:
        pushed = self.pushed.get(queue)
        return pushed is not None and pushed.reached_at(self.address) is not None


@asynccontextmanager
async def open_cloud_tasks(
    database: Database, notifier: Notifier, config: Config, pushed: Sequence[Pushed]
) -> AsyncIterator[CloudTasks]:
    service = TaskService(config)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(service.close)
        yield CloudTasks(database, notifier, service, pushed, stack)
