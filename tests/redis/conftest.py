"""A testbed for each test of worker processes, and a server that a test may kill without losing what it had written."""

import tempfile
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from payonce.embedded.redis import RedisServer
from payonce.testing import ScratchDatabase
from tests.redis.testbed import RedisTestbed, open_redis_testbed


@pytest.fixture(scope="module")
def _durable_server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="payonce-redis-") as folder:
        server = RedisServer(Path(folder), "always")
        yield server
        server.close()


@pytest.fixture
def durable_server(_durable_server: RedisServer) -> RedisServer:
    """Every write is on disk before it is answered."""
    _durable_server.ensure_empty()
    return _durable_server


@pytest.fixture
def forgetful_testbed(
    scratch: ScratchDatabase, redis_server: RedisServer, tmp_path: Path
) -> AbstractAsyncContextManager[RedisTestbed]:
    """On a server that writes once a second, as most are set up: a kill loses the last second."""
    return open_redis_testbed(scratch, redis_server, tmp_path)


@pytest.fixture
def testbed(
    scratch: ScratchDatabase, durable_server: RedisServer, tmp_path: Path
) -> AbstractAsyncContextManager[RedisTestbed]:
    return open_redis_testbed(scratch, durable_server, tmp_path)
