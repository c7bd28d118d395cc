"""Renewals per second, from their due time to the paid invoice, through both services and the gateway, and the CPU time
of each process."""

import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg
import msgspec

from bench.billing_usage import QUICK_USAGE, UsageMeasured, UsageSizes, measure_usage
from bench.cpu import cpu_seconds, postgres_pids
from bench.failure import BenchFailed
from bench.hops import Latency, latencies
from bench.roles import LOOK_S, Lend, until_up
from payonce.engine.database.connections import Database
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.transaction import begin
from payonce.kit.ports import reserved_ports
from payonce.queues.postgres import PostgresFeed
from payonce.services.billing.demo.simulators import SimulatedGateway, open_simulated_gateway
from payonce.services.billing.policies import BILLING_CLOCK, CHARGE_INITIATION, PAYMENT_INITIATION, SUBSCRIPTION_UPDATE
from payonce.services.billing.subscriptions.schedules import RENEW
from payonce.testing.processes import Child, Processes

SUBSCRIPTIONS, PAYMENTS = "billing.subscriptions", "billing.payments"
HOPS: Final = tuple(policy.queue for policy in (PAYMENT_INITIATION, CHARGE_INITIATION, SUBSCRIPTION_UPDATE))
CARD: Final = "4242424242424242"
PRICE_MINOR: Final = 2_900
WARM_UP: Final = 50
KEY_BYTES: Final = 32
LIMIT_S: Final = 300.0
SLOTS: Final = 32


class Sizes(msgspec.Struct, frozen=True):
    renewals: int = 3_000
    usage: UsageSizes = UsageSizes()


QUICK: Final = Sizes(renewals=60, usage=QUICK_USAGE)


class Measured(msgspec.Struct, frozen=True):
    layout: str
    renewals: int
    seconds: float
    per_s: float
    cpu_ms: Mapping[str, float]
    """CPU time per renewal, by process; `stand-in` is the gateway and the measuring process."""
    hops: Mapping[str, Latency]
    at_once: int
    """Notifications delivered by the immediate attempt; the queue delivered the others."""


class Report(msgspec.Struct, frozen=True):
    renewals: Sequence[Measured]
    usage: Sequence[UsageMeasured]


TOGETHER: Final[Mapping[str, Sequence[str]]] = {"roles": (SUBSCRIPTIONS, PAYMENTS)}
APART: Final[Mapping[str, Sequence[str]]] = {SUBSCRIPTIONS: (SUBSCRIPTIONS,), PAYMENTS: (PAYMENTS,)}


async def run(lend: Lend, superuser_url: str, sizes: Sizes, tell: Callable[[str], None]) -> Report:
    """Runs the benchmark. `lend` provides an empty, migrated database for each measurement. The gateway has no faults
    and limits."""
    rows = []
    for name, layout in (("together", TOGETHER), ("apart", APART)):
        tell(f"{sizes.renewals} renewals, roles {name}")
        async with lend() as url:
            rows.append(await _measure(url, superuser_url, name, layout, sizes.renewals))
    async with lend() as url:
        usage = await measure_usage(url, superuser_url, sizes.usage, tell)
    return Report(rows, usage)


async def _measure(
    url: str, superuser_url: str, name: str, layout: Mapping[str, Sequence[str]], renewals: int
) -> Measured:
    async with open_simulated_gateway() as gateway:
        with _processes(url, gateway, layout) as (children, subscriptions):
            connection = await asyncpg.connect(url)
            try:
                await until_up(subscriptions, children)
                load = _Load(url, connection, gateway)
                await load.renew("warm", WARM_UP)
                pids = {each: [child.pid] for each, child in children.items()}
                pids["postgresql"] = await postgres_pids(
                    superuser_url, await connection.fetchval("select current_database()")
                )
                before, own_before = cpu_seconds(pids), time.process_time()
                begun_at = await connection.fetchval("select payonce.due_now()")
                seconds = await load.renew("paid", renewals)
                after, own_after = cpu_seconds(pids), time.process_time()
                spent = {each: after[each] - before[each] for each in pids} | {"stand-in": own_after - own_before}
                hops = await latencies(connection, begun_at, HOPS)
                at_once = await connection.fetchval(AT_ONCE, begun_at)
                await load.check(WARM_UP + renewals)
            finally:
                await connection.close()
    return Measured(
        name,
        renewals,
        round(seconds, 2),
        round(renewals / seconds, 1),
        {each: round(s * 1_000 / renewals, 2) for each, s in spent.items()},
        hops,
        at_once,
    )


@contextmanager
def _processes(
    url: str, gateway: SimulatedGateway, layout: Mapping[str, Sequence[str]]
) -> Iterator[tuple[dict[str, Child], str]]:
    with ExitStack() as stack:
        ports = dict(zip(layout, stack.enter_context(reserved_ports(len(layout))), strict=True))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="payonce-bench-"))
        processes = stack.enter_context(Processes(Path(folder)))
        subscriptions = f"http://127.0.0.1:{ports[next(iter(layout))]}"
        environment = {
            **gateway.environment,
            "DATABASE_URL": url,
            "PAYONCE_LOG": "json",
            "PAYONCE_SLOTS": str(SLOTS),
            "JWT_SECRET_KEY": secrets.token_hex(KEY_BYTES),
            "WEBHOOK_SIGNING_SECRET": secrets.token_hex(KEY_BYTES),
            "SUBSCRIPTION_SERVICE_URL": subscriptions,
        }
        yield (
            {
                each: processes.start(
                    sys.executable,
                    "-m",
                    "payonce",
                    "run",
                    *roles,
                    "--port",
                    str(ports[each]),
                    name=each,
                    environment=environment,
                )
                for each, roles in layout.items()
            },
            subscriptions,
        )


class _Load:
    """Creates subscriptions that fall due at once, and waits until the last one is paid."""

    def __init__(self, url: str, connection: Any, gateway: SimulatedGateway) -> None:
        self._url = url
        self._connection = connection
        self._gateway = gateway

    async def renew(self, prefix: str, count: int) -> float:
        """Seconds from the query that finds them due to the last paid invoice."""
        ids = [f"{prefix}-{number}" for number in range(count)]
        tokens = [self._gateway.simulator.tokenise(CARD) for _ in ids]
        for statement in ACCOUNTS, SUBSCRIBED:
            await self._connection.execute(statement, ids)
        await self._connection.execute(CARDS, ids, tokens)
        started = time.monotonic()
        await self._look()
        while (left := count - await self._connection.fetchval(PAID, f"{prefix}-%")) > 0:
            if time.monotonic() - started > LIMIT_S:
                raise BenchFailed(f"{left} of {count} renewals are not paid after {LIMIT_S:g} s")
            await asyncio.sleep(LOOK_S)
        return time.monotonic() - started

    async def _look(self) -> None:
        """Starts the work of the minutely schedule."""
        async with (
            Database.open(self._url, work_pool_size=1) as database,
            begin(database, PostgresFeed(database, Notifier(database))) as tx,
        ):
            await tx.send(BILLING_CLOCK, {}, action=RENEW)

    async def check(self, count: int) -> None:
        """Fails unless every customer was charged once."""
        books = self._gateway.simulator.books
        times = books.captures_per_invoice()
        captured = books.captured_total("AED").minor
        if len(times) != count or set(times.values()) != {1} or captured != count * PRICE_MINOR:
            raise BenchFailed(
                f"the gateway captured {captured} for {len(times)} invoices, and not each of {count} once"
            )


ACCOUNTS: Final = """
    insert into subscriptions.accounts (id, email, password_hash)
    select id, id || '@example.com', 'none' from unnest($1::text[]) a(id)
"""
CARDS: Final = """
    insert into payments.payment_methods (id, account_id, token, brand, last4, exp_month, exp_year, is_default)
    select 'card-of-' || id, id, token, 'visa', '4242', 12, 2099, true from unnest($1::text[], $2::text[]) a(id, token)
"""
SUBSCRIBED: Final = """
    insert into subscriptions.subscriptions
        (id, account_id, plan_id, state, time_zone, anchor_at, period_start, period_end, due_at, due_for)
    select id, id, 'basic-v1', 'active', 'UTC', at - interval '1 month', at - interval '1 month', at, at, 'renew'
    from unnest($1::text[]) a(id), (select date_trunc('second', payonce.due_now()) as at) now
"""
PAID: Final = """
    select count(*) from subscriptions.invoices where state = 'paid' and subscription_id like $1
"""
AT_ONCE: Final = """
    select count(*) from payments.webhook_outbound_requests
    where way = 'immediate' and error is null and created_at >= $1
"""
