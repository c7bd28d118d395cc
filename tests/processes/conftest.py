"""A testbed for each test, and for those that stop their server one of its own."""

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from payonce.embedded import start, stop
from payonce.engine.database.migrate import known_migrations
from payonce.testing import ScratchDatabase, ScratchServer, Servers
from payonce.testing.servers import QUICK_SETTINGS
from tests.processes.proxy import Proxy
from tests.processes.testbed import ProcessTestbed, open_testbed


@dataclass
class OwnServer:
    """A server that a test may stop and kill. Its methods block: call them in a thread."""

    scratch: ScratchServer
    pid: int

    def stop(self) -> None:
        stop(self.scratch.server)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def start(self) -> None:
        running = start(self.scratch.server.data_dir, settings=QUICK_SETTINGS, tie_to_parent=True)
        assert running.service_url == self.scratch.server.service_url
        self.pid = running.pid


@pytest.fixture(scope="module")
def own_server() -> Iterator[OwnServer]:
    servers = Servers(known_migrations(()))
    scratch = servers.of()
    yield OwnServer(scratch, scratch.server.pid)
    servers.close()


@pytest.fixture
def testbed(scratch: ScratchDatabase, tmp_path: Path) -> AbstractAsyncContextManager[ProcessTestbed]:
    return open_testbed(scratch, tmp_path)


@pytest.fixture
def testbed_at_own_server(
    own_server: OwnServer, tmp_path: Path
) -> Iterator[AbstractAsyncContextManager[ProcessTestbed]]:
    with own_server.scratch.lent() as scratch:
        yield open_testbed(scratch, tmp_path)


@pytest.fixture
def proxy(scratch: ScratchDatabase) -> AbstractAsyncContextManager[Proxy]:
    return Proxy.open(scratch.service_url)
