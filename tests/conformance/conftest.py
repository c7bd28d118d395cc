"""The backends that the conformance tests run against: every supported major version of PostgreSQL found here."""

from contextlib import AbstractAsyncContextManager

import pytest

from payonce.embedded import Installation, find_installations
from payonce.testing import ScratchDatabase
from tests.conformance.postgres_backend import PostgresBackend, open_postgres_backend


def newest_and_oldest() -> list[Installation]:
    """What works on both ends is taken to work between them."""
    by_major = {found.major: found for found in reversed(find_installations())}
    return [by_major[major] for major in sorted({max(by_major), min(by_major)}, reverse=True)] if by_major else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize(
            "postgres", newest_and_oldest(), indirect=True, ids=lambda found: f"PostgreSQL {found.major}"
        )


@pytest.fixture
def backend(scratch: ScratchDatabase) -> AbstractAsyncContextManager[PostgresBackend]:
    return open_postgres_backend(scratch)
