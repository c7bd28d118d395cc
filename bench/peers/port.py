"""The port of a queue library, and the work that every library is given."""

import time
from typing import Literal, Protocol, TypedDict

import asyncpg
import msgspec

from bench.journal import Journal

Job = Literal["noop", "timed", "slow", "write", "write_atomic"]
JOBS: tuple[Job, ...] = ("noop", "timed", "slow", "write", "write_atomic")

# Longer than any limit on waiting for the pick-up of a killed worker's job.
SLOW_S = 300.0

BUSINESS_TABLE = "create table if not exists bench_business (reference bigint primary key, amount bigint not null)"
WRITE_BUSINESS_ROW = "insert into bench_business (reference, amount) values ($1, $2)"
# Pool size for business writes of a peer that cannot share its own connection.
BUSINESS_CONNECTIONS = 8


class Address(msgspec.Struct, frozen=True):
    """Addresses of the servers for one system."""

    # The backend's server.
    url: str
    # The PostgreSQL server for business rows, for a system whose queue is elsewhere.
    database_url: str = ""


class Payload(TypedDict):
    enqueued_ns: int
    reference: int
    source: str
    target: str
    amount: str
    currency: str
    memo: str


class WriteMode(msgspec.Struct, frozen=True):
    """One way to write a business row and acknowledge its job."""

    job: Job
    atomic: bool
    how: str


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """Choices for a library, so that readers of the report can judge their fairness."""

    worker: str
    bulk: str
    # The number of jobs per `put_many` at the library's best.
    bulk_size: int
    # How long a claim outlives its worker, if the library has such a setting.
    lease_s: float | None
    write_modes: tuple[WriteMode, ...]


class Peer(Protocol):
    """One queue library at its best fair settings, as enqueuer and as worker."""

    traits: Traits

    async def install(self) -> None:
        """Create the library's schema in an empty store, if it has one."""

    async def open(self) -> None:
        """Connect as an enqueuer."""

    async def put(self, job: Job, payload: Payload) -> None:
        """Enqueue one job; committed on return."""

    async def put_many(self, job: Job, payloads: list[Payload]) -> None:
        """Enqueue a batch in the best documented way; committed on return."""

    async def unfinished(self) -> int:
        """Jobs not yet acknowledged in the store."""

    async def work(self, journal: Journal) -> None:
        """Run as the worker until killed: handle all `JOBS` and record them in the journal."""


def payload(reference: int) -> Payload:
    """About 200 bytes of JSON; built inside the timed loops, the same for every system."""
    return {
        "enqueued_ns": time.monotonic_ns(),
        "reference": reference,
        "source": "account_0123456789",
        "target": "account_9876543210",
        "amount": "12345.67",
        "currency": "EUR",
        "memo": "x" * 40,
    }


async def business_pool(url: str) -> asyncpg.Pool:
    return await asyncpg.create_pool(url, min_size=0, max_size=BUSINESS_CONNECTIONS)
