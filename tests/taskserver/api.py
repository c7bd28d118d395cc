"""The API as a caller sees it, here or at Google: set PAYONCE_CLOUD_TASKS_PROJECT to ask Google the same questions.

There, credentials are the environment's, the location is that of PAYONCE_CLOUD_TASKS_LOCATION or us-central1, and
every test makes queues of its own, since Google locks the names of deleted ones.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
from google.api_core.exceptions import GoogleAPICallError
from google.cloud import tasks_v2

from payonce.testing import OpenStage, Stage
from tests.taskserver.testbed import open_testbed

PROJECT = os.environ.get("PAYONCE_CLOUD_TASKS_PROJECT")
PLACE = os.environ.get("PAYONCE_CLOUD_TASKS_LOCATION", "us-central1")
NOWHERE = "https://worker.invalid/"
"""Nobody answers there: these tests ask the API alone."""


@dataclass(frozen=True)
class Api:
    client: Any
    location: str
    stage: Stage | None
    """None at Google, where clocks are not ours to move."""
    made: list[str] = field(default_factory=list)

    def name(self) -> str:
        """Of a queue that nobody has made yet."""
        self.made.append(f"{self.location}/queues/payonce-{uuid4().hex[:20]}")
        return self.made[-1]

    async def queue(self, *, paused: bool = True, **settings: Any) -> str:
        """Paused, so that tasks stay where they are."""
        name = self.name()
        await self.client.create_queue(parent=self.location, queue={"name": name, **settings})
        if paused:
            await self.client.pause_queue(name=name)
        return name

    async def put(self, queue: str, task_id: str = "", **task: Any) -> Any:
        named = {"name": f"{queue}/tasks/{task_id}"} if task_id else {}
        request = {"parent": queue, "task": {"http_request": {"url": NOWHERE}, **named, **task}}
        return await self.client.create_task(request=request)

    async def ids(self, queue: str) -> list[str]:
        return [task.name.rpartition("/")[2] async for task in await self.client.list_tasks(parent=queue)]

    async def moved(self, seconds: float) -> None:
        if self.stage is None:
            pytest.skip("Google's clock is not ours to move")
        await self.stage.clock.advance(seconds)


@asynccontextmanager
async def open_api(stage: OpenStage) -> AsyncIterator[Api]:
    if PROJECT is None:
        async with open_testbed(stage, dispatching=False) as testbed:
            yield Api(testbed.client, f"projects/payonce-test/locations/{PLACE}", testbed.s)
        return
    client = tasks_v2.CloudTasksAsyncClient()
    api = Api(client, f"projects/{PROJECT}/locations/{PLACE}", None)
    try:
        yield api
    finally:
        for name in api.made:
            try:
                await client.delete_queue(name=name)
            except GoogleAPICallError:
                # The test has deleted it, or never made it.
                continue


def only_here(reason: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(PROJECT is not None, reason=f"not asked of Google: {reason}")
