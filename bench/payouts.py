"""Payouts per second through all hops, from the webhook to the finished exchange, and the cost of each hop."""

import asyncio
import hashlib
import hmac
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

from bench.cpu import cpu_seconds, postgres_pids
from bench.failure import BenchFailed
from bench.hops import Latency, latencies, percentile
from bench.roles import LOOK_S, Lend, until_up
from payonce.engine.messages.policy import environment_name
from payonce.kit.http import HttpClient
from payonce.kit.ports import reserved_ports
from payonce.services.payouts.api.webhook import SIGNATURE_HEADER
from payonce.services.payouts.demo.simulators import DemoSimulators, SimulatorOptions, open_simulators
from payonce.services.payouts.domain.checksums import BITCOIN, segwit
from payonce.services.payouts.policies import FOLLOW, QUEUES
from payonce.testing.processes import Child, Processes
from payonce.vendors.changenow.books import AT_ONCE
from payonce.vendors.changenow.port import REQUESTS_PER_S

SERVER: Final = "cloudtasks"
ROLES: Final = {
    "payouts.orchestrator": "GCSPLIT1_URL",
    "payouts.estimator": "GCSPLIT2_URL",
    "payouts.swapper": "GCSPLIT3_URL",
    "payouts.hostpay": "HOSTPAY_WEBHOOK_URL",
}
HOPS: Final = (*(policy.queue for policy in QUEUES), FOLLOW.queue)
BLOCK_S: Final = 0.2
CALLERS: Final = 48
UNDER_WAY_MAX: Final = 500
"""Payouts that were ordered and are not finished yet."""
LIMIT_S: Final = 180.0
UNLIMITED_PER_S: Final = 10_000
WARM_UP: Final = 20


class Sizes(msgspec.Struct, frozen=True):
    payouts: int = 2_000
    limited: int = 60


QUICK: Final = Sizes(payouts=40, limited=10)


class Measured(msgspec.Struct, frozen=True):
    layout: str
    payouts: int
    seconds: float
    per_s: float
    sustained_per_s: float
    """Without the first and the last tenth."""
    intake_p50_ms: float
    intake_p99_ms: float
    cpu_ms: Mapping[str, float]
    """CPU time per payout, by process; `stand-ins` is the caller and all simulators."""
    hops: Mapping[str, Latency]
    vendor_requests: int
    vendor_peak_per_s: int
    vendor_turned_away: int


class Report(msgspec.Struct, frozen=True):
    rows: Sequence[Measured]
    limited: Measured
    rate_kept: bool
    """Whether the vendor, by its own log, never rejected a call while its limit was on."""


TOGETHER: Final[Mapping[str, Sequence[str]]] = {"roles": tuple(ROLES)}
IN_TWO: Final[Mapping[str, Sequence[str]]] = {
    "orchestrator+estimator": ("payouts.orchestrator", "payouts.estimator"),
    "swapper+hostpay": ("payouts.swapper", "payouts.hostpay"),
}
"""A Python process uses one core: on two cores, two processes use both."""
APART: Final[Mapping[str, Sequence[str]]] = {role: (role,) for role in ROLES}


async def run(lend: Lend, superuser_url: str, sizes: Sizes, tell: Callable[[str], None]) -> Report:
    """Runs the benchmark. `lend` provides an empty, migrated database for each measurement: each has its own chain, on
    which a wallet starts afresh. The vendor has no faults."""
    rows = []
    for name, layout in (("together", TOGETHER), ("in-two", IN_TWO), ("apart", APART)):
        tell(f"{sizes.payouts} payouts, roles {name}")
        async with lend() as url:
            rows.append(await _measure(url, superuser_url, name, layout, sizes.payouts, None))
    tell(f"{sizes.limited} payouts, the vendor's limit on")
    async with lend() as url:
        limited = await _measure(url, superuser_url, "limited", TOGETHER, sizes.limited, REQUESTS_PER_S)
    return Report(rows, limited, limited.vendor_turned_away == 0)


async def _measure(
    url: str, superuser_url: str, name: str, layout: Mapping[str, Sequence[str]], payouts: int, limit: float | None
) -> Measured:
    options = SimulatorOptions(pace=AT_ONCE, block_s=BLOCK_S, limit_per_s=limit)
    async with open_simulators(options) as world:
        with _processes(url, world, layout, limit) as (children, orchestrator):
            async with HttpClient("payonce", orchestrator, allow_private=True) as http:
                connection = await asyncpg.connect(url)
                carrying = asyncio.create_task(_carry(world))
                try:
                    load = _Load(http, world, connection, name)
                    await until_up(orchestrator, children)
                    await load.work(f"warm-{name}", WARM_UP)
                    pids = {each: [child.pid] for each, child in children.items()}
                    pids["postgresql"] = await postgres_pids(superuser_url)
                    before, own_before = cpu_seconds(pids), time.process_time()
                    begun_at = await connection.fetchval("select payonce.due_now()")
                    seconds = await load.work(f"pay-{name}", payouts)
                    after, own_after = cpu_seconds(pids), time.process_time()
                    spent = {each: after[each] - before[each] for each in pids} | {"stand-ins": own_after - own_before}
                    hops = await latencies(connection, begun_at, HOPS)
                    sustained = await load.sustained_per_s(f"pay-{name}")
                finally:
                    carrying.cancel()
                    await asyncio.gather(carrying, return_exceptions=True)
                    await connection.close()
        meter = world.changenow.meter
        return Measured(
            name,
            payouts,
            round(seconds, 2),
            round(payouts / seconds, 1),
            sustained,
            percentile(load.intake_ms, 50),
            percentile(load.intake_ms, 99),
            {each: round(s * 1_000 / payouts, 2) for each, s in spent.items()},
            hops,
            meter.requests,
            meter.peak_per_s,
            meter.turned_away,
        )


async def _carry(world: DemoSimulators) -> None:
    while True:
        await asyncio.sleep(BLOCK_S)
        world.chain.catch_up()
        await world.node.notify()


@contextmanager
def _processes(
    url: str, world: DemoSimulators, layout: Mapping[str, Sequence[str]], limit: float | None
) -> Iterator[tuple[dict[str, Child], str]]:
    with ExitStack() as stack:
        ports = dict(zip((*layout, SERVER), stack.enter_context(reserved_ports(len(layout) + 1)), strict=True))
        # A process with several roles serves /payouts/<role>, one with a single role the root.
        addresses = {
            ROLES[role]: f"http://127.0.0.1:{ports[each]}" + (f"/{role.replace('.', '/')}" if len(roles) > 1 else "")
            for each, roles in layout.items()
            for role in roles
        }
        environment = {
            **world.environment,
            **addresses,
            "DATABASE_URL": url,
            "PAYONCE_LOG": "json",
            "CLOUD_TASKS_ENDPOINT": f"127.0.0.1:{ports[SERVER]}",
            "CLOUD_TASKS_TOKEN": secrets.token_hex(16),
            **_policies(),
            **({} if limit else {"CHANGENOW_REQUESTS_PER_S": str(UNLIMITED_PER_S)}),
        }
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="payonce-bench-"))
        processes = stack.enter_context(Processes(Path(folder)))
        commands = {SERVER: (SERVER,)} | {each: ("run", *roles) for each, roles in layout.items()}
        children = {
            each: processes.start(
                sys.executable,
                "-m",
                "payonce",
                *command,
                "--port",
                str(ports[each]),
                name=each,
                environment=environment,
            )
            for each, command in commands.items()
        }
        yield children, f"http://127.0.0.1:{ports[next(iter(layout))]}"


def _policies() -> dict[str, str]:
    """Rates as high as the task service allows; only the vendor's budget, if any, limits."""
    found = {f"QUEUE_POLICY__{environment_name(FOLLOW.queue)}__STEPS_SECONDS": "1,1,2"}
    for policy in QUEUES:
        found[f"QUEUE_POLICY__{environment_name(policy.queue)}__RATE"] = "500"
        found[f"QUEUE_POLICY__{environment_name(policy.queue)}__CONCURRENCY"] = "1000"
    return found


class _Load:
    """Sends signed webhooks and waits until their payouts are finished."""

    def __init__(self, http: HttpClient, world: DemoSimulators, connection: Any, name: str) -> None:
        self._http = http
        self._key = world.signing_key
        self._connection = connection
        self._name = name
        self.intake_ms: list[float] = []

    async def work(self, prefix: str, count: int) -> float:
        """Seconds from the first webhook to the last finished payout. The number of concurrent payouts is limited: more
        would only wait, and occupy connections."""
        self.intake_ms = []
        room = asyncio.Semaphore(UNDER_WAY_MAX)
        waiting = list(range(count))
        started = time.monotonic()

        async def call() -> None:
            while waiting:
                number = waiting.pop()
                await room.acquire()
                await self._order(f"{prefix}-{number}")

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(CALLERS):
                    group.create_task(call())
                finished = 0
                while finished < count:
                    if time.monotonic() - started > LIMIT_S:
                        raise BenchFailed(f"{count - finished} of {count} payouts are not finished in {LIMIT_S:g} s")
                    await asyncio.sleep(LOOK_S)
                    before, finished = finished, await self._finished(prefix)
                    for _ in range(finished - before):
                        room.release()
        except ExceptionGroup as failed:
            # One error is enough for the diagnosis.
            raise failed.exceptions[0] from None
        return time.monotonic() - started

    async def sustained_per_s(self, prefix: str) -> float:
        """The rate over the middle eight tenths, by finishing time, without start-up and end. 0 if all of these
        finished at once."""
        times: list[float] = [
            row["at"]
            for row in await self._connection.fetch(
                """
                select extract(epoch from updated_at)::float8 as at from payouts.payouts
                where state = 'finished' and payment_id like $1 order by updated_at
                """,
                f"{prefix}-%",
            )
        ]
        first, last = len(times) // 10, len(times) - len(times) // 10 - 1
        seconds = times[last] - times[first]
        return round((last - first) / seconds, 1) if seconds else 0.0

    async def _finished(self, prefix: str) -> int:
        count: int = await self._connection.fetchval(
            "select count(*) from payouts.payouts where state = 'finished' and payment_id like $1", f"{prefix}-%"
        )
        return count

    async def _order(self, payment_id: str) -> None:
        body = msgspec.json.encode(
            {
                "payment_id": payment_id,
                "user_id": 7_000_000_001,
                "closed_channel_id": "-1001234567890",
                "wallet_address": _address(payment_id),
                "payout_currency": "btc",
                "payout_network": "btc",
                "subscription_price": "29.99",
                "timestamp": int(time.time()),
            }
        )
        headers = {
            SIGNATURE_HEADER: hmac.new(self._key, body, hashlib.sha256).hexdigest(),
            "Content-Type": "application/json",
        }
        sent_at = time.perf_counter()
        answer = await self._http.request("POST", "/", body=body, headers=headers)
        self.intake_ms.append((time.perf_counter() - sent_at) * 1_000)
        if answer.status != 200:
            raise BenchFailed(f"the webhook of {payment_id} was answered {answer.status}: {answer.excerpt()}")


def _address(client: str) -> str:
    return segwit(BITCOIN, 0, hashlib.sha256(client.encode()).digest())
