"""PgBouncer for the tests of this folder, from the distribution's package."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from payonce.testing import ScratchDatabase, ScratchServer
from tests.poolers.pgbouncer import PgBouncer, find_pgbouncer, open_pgbouncer
from tests.processes.testbed import ProcessTestbed, open_testbed

NO_PGBOUNCER = "no pgbouncer on PATH or in /usr/sbin; `apt-get install pgbouncer` brings it"

OpenPgBouncer = Callable[..., AbstractAsyncContextManager[PgBouncer]]


@pytest.fixture
def pgbouncer(postgres: ScratchServer) -> OpenPgBouncer:
    """Opens one in front of the test's server; keywords are lines of its configuration."""
    program = find_pgbouncer()
    if program is None:
        pytest.skip(NO_PGBOUNCER)
    return partial(open_pgbouncer, program, postgres.server)


@pytest.fixture
def testbed(scratch: ScratchDatabase, tmp_path: Path) -> AbstractAsyncContextManager[ProcessTestbed]:
    return open_testbed(scratch, tmp_path)
