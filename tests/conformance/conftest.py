"""The backends of the conformance tests: the newest PostgreSQL found here, Redis, and the oldest PostgreSQL for
statements that a server version could affect; with --full for all of them."""

from contextlib import AbstractAsyncContextManager

import pytest

from payonce.embedded import Installation, find_installations
from payonce.testing import ScratchDatabase
from tests.conformance.backend import Backend
from tests.conformance.postgres_backend import open_postgres_backend
from tests.conformance.redis_backend import FLAVOURS, Flavour, open_redis_backend

ON_THE_OLDEST = {"test_claiming_and_settling", "test_crashes", "test_idempotency", "test_limits"}
"""Statements that are more than plain SQL: settling fused with claiming, sweeps, keys, allowances."""


def newest_and_oldest() -> list[Installation]:
    """Whatever works on the oldest and the newest version is assumed to work in between."""
    by_major = {found.major: found for found in reversed(find_installations())}
    return [by_major[major] for major in sorted({max(by_major), min(by_major)}, reverse=True)] if by_major else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" not in metafunc.fixturenames:
        return
    majors = newest_and_oldest()
    plain = metafunc.module.__name__.rpartition(".")[2] not in ON_THE_OLDEST
    cases = [
        pytest.param(found, None, id=f"PostgreSQL {found.major}", marks=[pytest.mark.full] if plain and older else [])
        for older, found in enumerate(majors)
    ]
    cases += [pytest.param(majors[0], flavour, id=f"Redis {flavour}") for flavour in FLAVOURS if majors]
    metafunc.parametrize(("postgres", "flavour"), cases, indirect=["postgres"])


@pytest.fixture
def backend(
    scratch: ScratchDatabase, flavour: Flavour | None, request: pytest.FixtureRequest
) -> AbstractAsyncContextManager[Backend]:
    if flavour is None:
        return open_postgres_backend(scratch)
    return open_redis_backend(scratch, request.getfixturevalue("redis_server"), flavour)
