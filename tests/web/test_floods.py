"""A thousand connections that pipeline and never read: leases are renewed, probes are answered, memory is bounded."""

import asyncio
import logging
import resource
import socket
import sys
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from payonce.testing import ScratchDatabase
from tests.processes.desk import POLICY, ROOT, Desk, open_desk

pytestmark = pytest.mark.timeout(300)

CONNECTIONS = 1_000
LEASE_S = 5.0
LONG_S = 60.0
CALM_S = 3.0
PROBE_EVERY_S = 0.05
ANSWERED_WITHIN_S = 0.25
GROWTH_MAX_BYTES = CONNECTIONS * 600 * 1024
"""For each connection one unread answer and one piece of what arrived, 256 KiB each, and its objects."""
log = logging.getLogger(__name__)
PROBE = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


@pytest.fixture
def desk(scratch: ScratchDatabase, tmp_path: Path) -> AbstractAsyncContextManager[Desk]:
    return open_desk(scratch, tmp_path)


@pytest.mark.parametrize("flood_s", [20.0, pytest.param(LONG_S, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "sources", [["127.0.0.1"], [f"127.0.0.{last}" for last in range(2, 12)]], ids=["one address", "ten addresses"]
)
async def test_connections_that_never_read_neither_end_leases_nor_delay_probes(
    desk: Desk, sources: list[str], flood_s: float
) -> None:
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    policy = replace(POLICY, lease_s=LEASE_S, run_limit_s=2 * flood_s)
    flooded = await desk.worker(policy, http=True, slots=50)
    port = desk.journal.notes("listening")[0].row
    calm_s, _ = await asyncio.to_thread(probe_for, port, flooded.pid, CALM_S)
    before = rss_bytes(flooded.pid)
    # Each run lasts as long as the flood: without a renewal in every lease, another worker would begin it again.
    await desk.put(range(20), policy, takes_s=flood_s)
    for row in range(20):
        await desk.noted("began", row)
    await desk.worker(policy)
    # In a thread of its own: what this loop has to do must not be measured.
    probing = asyncio.create_task(asyncio.to_thread(probe_for, port, flooded.pid, flood_s))
    flood = desk.processes.start(
        sys.executable, "-m", "tests.web.flood", str(port), str(CONNECTIONS), *sources, name="flood", cwd=ROOT
    )
    await flood.says("flooding", 30.0)
    took_s, peak = await probing
    flood.kill()
    log.info(
        "%d probes: p50 %.0f ms, p99 %.0f ms, longest %.0f ms (calm: p99 %.0f ms); memory +%.0f MB; %d taken over",
        len(took_s), *(1_000 * percentile(took_s, share) for share in (0.5, 0.99)), 1_000 * max(took_s),
        1_000 * percentile(calm_s, 0.99), (peak - before) / 1_000_000, await desk.taken_over(),
    )  # fmt: skip
    await desk.drained()
    assert await desk.taken_over() == 0
    await desk.each_applied_once()
    assert peak - before < GROWTH_MAX_BYTES
    if flood_s >= LONG_S:
        # A machine that is busy with other things is slow without a flood, too.
        allowed_s = max(ANSWERED_WITHIN_S, 10 * percentile(calm_s, 0.99))
        slowest = sorted(took_s)[-5:]
        assert percentile(took_s, 0.99) < allowed_s, f"{allowed_s:.2f} s; slowest: {slowest} of {len(took_s)}"


def percentile(took_s: list[float], share: float) -> float:
    return sorted(took_s)[int(len(took_s) * share)]


def probe_for(port: int, pid: int, seconds: float) -> tuple[list[float], int]:
    """On one connection that is kept, as a load balancer does."""
    took_s, peak, until = list[float](), 0, time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", port), timeout=30.0) as line:
        while time.monotonic() < until:
            began = time.monotonic()
            line.sendall(PROBE)
            answer = b""
            while not answer.endswith(b"}"):
                part = line.recv(65_536)
                assert part, "a connection that reads its answers was closed"
                answer += part
            assert answer.startswith(b"HTTP/1.1 200 "), answer[:200]
            took_s.append(time.monotonic() - began)
            peak = max(peak, rss_bytes(pid))
            time.sleep(PROBE_EVERY_S)
    return took_s, peak


def rss_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()
