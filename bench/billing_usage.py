"""Usage events per second over HTTP, by a client with a token per account, and the CPU time of each process."""

import asyncio
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg
import msgspec

from bench.cpu import cpu_seconds, postgres_pids
from bench.failure import BenchFailed
from bench.roles import until_up
from payonce.kit.ports import reserved_ports
from payonce.services.billing.api.tokens import Claims, Tokens
from payonce.testing.processes import Child, Processes

ROLE: Final = "billing.subscriptions"
PATH: Final = "/v1/usage/use"
FEATURE: Final = "api_calls"
PLAN: Final = "enterprise-v1"
"""Without a limit: counting is measured, not refusing."""
CONNECTIONS: Final = 32
WARM_UP: Final = 200
LIMIT_S: Final = 180.0


class UsageSizes(msgspec.Struct, frozen=True):
    events: int = 5_000
    accounts: int = 500
    rounds: int = 3


QUICK_USAGE: Final = UsageSizes(events=300, accounts=20, rounds=1)


class UsageMeasured(msgspec.Struct, frozen=True):
    """Medians over the rounds. `spread`: events of many accounts in turn; `shared`: all of one account, on one
    counter."""

    layout: str
    events: int
    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: Mapping[str, float]
    """CPU time per event, by process; `caller` is the client."""


class _Round(msgspec.Struct, frozen=True):
    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: Mapping[str, float]


async def measure_usage(
    url: str, superuser_url: str, sizes: UsageSizes, tell: Callable[[str], None]
) -> Sequence[UsageMeasured]:
    """Runs the benchmark on an empty, migrated database. The layouts alternate, so that a slow minute affects all; at
    the end every event must have been counted exactly once."""
    key = secrets.token_hex(32)
    connection = await asyncpg.connect(url)
    try:
        await _add_accounts(connection, sizes.accounts)
        with _process(url, key) as (child, port):
            await until_up(f"http://127.0.0.1:{port}", {ROLE: child})
            load = _Load(port, _tokens(key, sizes.accounts))
            layouts = {"spread": sizes.accounts, "shared": 1}
            found: dict[str, list[_Round]] = {layout: [] for layout in layouts}
            for turn in range(sizes.rounds):
                for layout, accounts in layouts.items():
                    tell(f"{sizes.events} usage events, {layout}, round {turn + 1} of {sizes.rounds}")
                    await load.send(f"warm-{layout}-{turn}", min(WARM_UP, sizes.events), accounts)
                    pids = {ROLE: [child.pid], "postgresql": await postgres_pids(superuser_url)}
                    found[layout].append(await _timed(load, f"{layout}-{turn}", sizes.events, accounts, pids))
        await _check_counted(connection, load.sent)
    finally:
        await connection.close()
    return [_median(layout, sizes.events, rounds) for layout, rounds in found.items()]


async def _timed(load: "_Load", prefix: str, events: int, accounts: int, pids: Mapping[str, Sequence[int]]) -> _Round:
    before, own_before, started = cpu_seconds(pids), time.process_time(), time.monotonic()
    waits_ms = await load.send(prefix, events, accounts)
    seconds = time.monotonic() - started
    after, own_after = cpu_seconds(pids), time.process_time()
    spent = {name: after[name] - before[name] for name in pids} | {"caller": own_after - own_before}
    cuts = statistics.quantiles(waits_ms, n=100)
    return _Round(events / seconds, cuts[49], cuts[98], {name: s * 1_000 / events for name, s in spent.items()})


class _Load:
    """A minimal HTTP client on kept connections: it shares the CPUs with what it measures."""

    def __init__(self, port: int, tokens: Sequence[str]) -> None:
        self._port = port
        self._heads = [
            f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
            for token in tokens
        ]
        self.sent = 0

    async def send(self, prefix: str, events: int, accounts: int) -> list[float]:
        """Response times in milliseconds."""
        waiting, waits_ms = list(range(events)), list[float]()

        async def call() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            try:
                while waiting:
                    number = waiting.pop()
                    body = f'{{"feature_name":"{FEATURE}","delta":1,"event_id":"{prefix}-{number}"}}'
                    sent_at = time.perf_counter()
                    writer.write(f"{self._heads[number % accounts]}{len(body)}\r\n\r\n{body}".encode())
                    await _answer(reader)
                    waits_ms.append((time.perf_counter() - sent_at) * 1_000)
            finally:
                writer.close()

        async with asyncio.timeout(LIMIT_S):
            await asyncio.gather(*(call() for _ in range(min(CONNECTIONS, events))))
        self.sent += events
        return waits_ms


async def _answer(reader: asyncio.StreamReader) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(head.partition(b"content-length: ")[2].partition(b"\r")[0])
    body = await reader.readexactly(length)
    if not head.startswith(b"http/1.1 200 "):
        raise BenchFailed(f"an event was answered {head[9:12].decode()}: {body.decode(errors='replace')}")


@contextmanager
def _process(url: str, key: str) -> Iterator[tuple[Child, int]]:
    with (
        reserved_ports(1) as [port],
        tempfile.TemporaryDirectory(prefix="payonce-bench-") as folder,
        Processes(Path(folder)) as processes,
    ):
        environment = {
            "DATABASE_URL": url,
            "PAYONCE_DATA_DIR": folder,
            "PAYONCE_LOG": "json",
            "JWT_SECRET_KEY": key,
            "WEBHOOK_SIGNING_SECRET": secrets.token_hex(32),
        }
        yield (
            processes.start(
                sys.executable, "-m", "payonce", "run", ROLE, "--port", str(port), name=ROLE, environment=environment
            ),
            port,
        )


def _tokens(key: str, accounts: int) -> list[str]:
    tokens = Tokens([key.encode()])
    return [tokens.issue(Claims(f"bench-{number}", "customer", 0)) for number in range(accounts)]


async def _add_accounts(connection: Any, accounts: int) -> None:
    await connection.execute(
        """
        insert into subscriptions.accounts (id, email, password_hash)
        select 'bench-' || n, 'bench-' || n || '@example.com', '' from generate_series(0, $1::int - 1) n
        """,
        accounts,
    )
    await connection.execute(
        """
        insert into subscriptions.subscriptions (id, account_id, plan_id, state, time_zone, anchor_at, period_start,
            period_end, due_at, due_for)
        select id, id, $1, 'active', 'UTC', payonce.due_now(), payonce.due_now(), month.later, month.later, 'renew'
        from subscriptions.accounts, (select payonce.due_now() + interval '1 month' as later) month
        where id like 'bench-%'
        """,
        PLAN,
    )


async def _check_counted(connection: Any, sent: int) -> None:
    counted = await connection.fetchval(
        "select coalesce(sum(used), 0)::bigint from subscriptions.usage_counters where subscription_id like 'bench-%'"
    )
    if counted != sent:
        raise BenchFailed(f"{sent} events were answered, but {counted} were counted")


def _median(layout: str, events: int, rounds: Sequence[_Round]) -> UsageMeasured:
    def of(figure: Callable[[_Round], float], digits: int) -> float:
        return round(statistics.median(figure(each) for each in rounds), digits)

    cpu_ms = {name: of(lambda each: each.cpu_ms[name], 3) for name in rounds[0].cpu_ms}  # noqa: B023 - called at once
    return UsageMeasured(
        layout,
        events,
        of(lambda each: each.per_s, 1),
        of(lambda each: each.p50_ms, 2),
        of(lambda each: each.p99_ms, 2),
        cpu_ms,
    )
