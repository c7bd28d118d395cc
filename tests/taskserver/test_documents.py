"""The code block of the page on the Cloud Tasks server runs as it stands."""

import asyncio
from typing import Any

from payonce.taskserver.server import open_server
from payonce.testing import OpenStage, eventually
from payonce.testing.server import serving
from tests.docs.test_documents import python_blocks
from tests.taskserver.testbed import Worker

TOKEN = "a token of the server"


async def test_the_order_of_the_page_arrives(stage: OpenStage) -> None:
    [program] = python_blocks("cloud-tasks-server.md")
    names: dict[str, Any] = {"__name__": "cloud_tasks_server"}
    exec(compile(program, "cloud-tasks-server.md", "exec"), names)  # noqa: S102 - it is our own document
    worker = Worker()
    async with stage() as s, serving(worker) as worker.url, open_server(s.database, s.notifier, token=TOKEN) as server:
        name = await asyncio.to_thread(names["order"], server.address, TOKEN, worker.url)
        await eventually(lambda: worker.arrived, what="the order arrives")
    [arrival] = worker.arrived
    assert (name.rpartition("/")[2], arrival.body) == (arrival.task, b'{"id": 7}')
