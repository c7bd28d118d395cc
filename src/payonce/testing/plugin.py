"""The pytest plugin: async tests run in an event loop each, and tests get databases of their own.

Fixtures, the outermost first:

    payonce_components  the (name, package) pairs whose migrations are applied; override it to test your own services
    servers             the session's PostgreSQL servers
    postgres            one of them; parametrise it indirectly with an Installation to run on another version
    scratch             a migrated database for this test
    stage               opens the engine on it: `async with stage() as s:`
    redis_server        the session's Redis server, empty at the start of each test; restarted if a test killed it

There are no async fixtures. Instead, a fixture of an async test may return an async context manager: it is entered in
the test's event loop, and the test gets the yielded value.
"""

import asyncio
import inspect
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pytest
import uvloop

from payonce.embedded.redis import RedisServer
from payonce.engine.database.durability import ACCEPT_DATA_LOSS
from payonce.engine.database.migrate import known_migrations
from payonce.testing.servers import MEMORY, ScratchDatabase, ScratchServer, Servers
from payonce.testing.stage import OpenStage, open_stage

ASYNC_LIMIT_S: Final = 90.0
"""Time limit of an async test; below pytest-timeout's, so that it ends the test and not the session."""
ASYNC_SHARE: Final = 0.75
"""Share of the time in a test's own `timeout` mark."""


def pytest_configure() -> None:
    if MEMORY is None:
        # The test servers are then not durable, which processes must be told explicitly.
        os.environ.setdefault(ACCEPT_DATA_LOSS, "true")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}

    async def bounded() -> None:
        async with asyncio.timeout(_limit_s(pyfuncitem)), AsyncExitStack() as stack:
            for name, value in arguments.items():
                if isinstance(value, AbstractAsyncContextManager):
                    arguments[name] = await stack.enter_async_context(value)
            await pyfuncitem.obj(**arguments)

    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        runner.run(bounded())
    finally:
        left_open = _close(runner)
    assert not left_open, f"the test left open: {', '.join(left_open)}"
    return True


def _limit_s(test: pytest.Function) -> float:
    mark = test.get_closest_marker("timeout")
    return ASYNC_LIMIT_S if mark is None else float(mark.args[0]) * ASYNC_SHARE


def _close(runner: asyncio.Runner) -> list[str]:
    """Closes the event loop; returns descriptions of what was still open in it.

    uvloop warns of that while it closes, and would hang if warnings were errors then.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        runner.close()
    return [str(each.message) for each in caught]


@pytest.fixture(scope="session")
def payonce_components() -> Sequence[tuple[str, str]]:
    return ()


@pytest.fixture(scope="session")
def servers(payonce_components: Sequence[tuple[str, str]]) -> Iterator[Servers]:
    running = Servers(known_migrations(payonce_components))
    yield running
    running.close()


@pytest.fixture
def postgres(servers: Servers, request: pytest.FixtureRequest) -> ScratchServer:
    installation: Any = getattr(request, "param", None)
    return servers.of(installation)


@pytest.fixture
def scratch(postgres: ScratchServer) -> Iterator[ScratchDatabase]:
    with postgres.lent() as database:
        yield database


@pytest.fixture
def stage(scratch: ScratchDatabase) -> OpenStage:
    return lambda: open_stage(scratch)


@pytest.fixture(scope="session")
def _redis_server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="payonce-redis-") as folder:
        server = RedisServer(Path(folder), "everysec")
        server.start()
        yield server
        server.close()


@pytest.fixture
def redis_server(_redis_server: RedisServer) -> RedisServer:
    _redis_server.ensure_empty()
    return _redis_server
