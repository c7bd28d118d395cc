"""A thousand connections that pipeline and never read: leases are renewed, probes are answered in time, memory is
bounded."""

import asyncio
import logging
import math
import os
import resource
import socket
import sys
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from payonce.testing import ScratchDatabase
from tests.processes.testbed import POLICY, ROOT, ProcessTestbed, open_testbed

pytestmark = pytest.mark.timeout(300)

CONNECTIONS = 1_000
LEASE_S = 5.0
LONG_S = 60.0
CALM_S = 3.0
PROBE_EVERY_S = 0.05
FRESH_EVERY_S = 0.5
FRESH_LIMIT_S = 10.0
"""What docs/http.md advises for probes that connect anew."""
ANSWERED_WITHIN_S = {20.0: 1.0, LONG_S: 0.25}
"""99 of 100 probes, by the length of the flood. The long one holds docs/http.md to its word; the short one runs beside
other tests."""
CALM_WITHIN_S = 0.05
"""99 of 100 probes without a flood. A machine that takes longer is busy with other things."""
CPU_SHARE_LEAST = 0.85
"""Of a core, for a process on each that only computes. A probe that sleeps most of the time is served quickly on a busy
machine, too."""
SPIN = """
import time
began, used = time.monotonic(), time.process_time()
while time.monotonic() < began + 2:
    pass
print((time.process_time() - used) / (time.monotonic() - began))
"""
GROWTH_MAX_BYTES = CONNECTIONS * 600 * 1024
"""For each connection one unread answer and one piece of what arrived, 256 KiB each, and its objects."""
log = logging.getLogger(__name__)
PROBE = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


@pytest.fixture
def testbed(scratch: ScratchDatabase, tmp_path: Path) -> AbstractAsyncContextManager[ProcessTestbed]:
    return open_testbed(scratch, tmp_path)


@pytest.mark.parametrize("flood_s", [20.0, pytest.param(LONG_S, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "sources", [["127.0.0.1"], [f"127.0.0.{last}" for last in range(2, 12)]], ids=["one address", "ten addresses"]
)
async def test_connections_that_never_read_neither_end_leases_nor_delay_probes(
    testbed: ProcessTestbed, sources: list[str], flood_s: float
) -> None:
    _, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    policy = replace(POLICY, lease_s=LEASE_S, run_limit_s=2 * flood_s)
    flooded = await testbed.worker(policy, http=True, slots=50)
    port = testbed.journal.notes("listening")[0].row
    calm_s, _ = await asyncio.to_thread(probe_for, port, flooded.pid, CALM_S)
    calm_p99_s = percentile(calm_s, 0.99)
    if flood_s >= LONG_S:
        await fail_if_busy(calm_p99_s)
    before = rss_bytes(flooded.pid)
    # Each run lasts as long as the flood: without a renewal in every lease, another worker would begin it again.
    await testbed.put(range(20), policy, takes_s=flood_s)
    for row in range(20):
        await testbed.noted("began", row)
    await testbed.worker(policy)
    # In a thread of its own: what this loop has to do must not be measured.
    probing = asyncio.create_task(asyncio.to_thread(probe_for, port, flooded.pid, flood_s))
    flood = testbed.processes.start(
        sys.executable, "-m", "tests.http.flood", str(port), str(CONNECTIONS), *sources, name="flood", cwd=ROOT
    )
    await flood.says("flooding", 30.0)
    connecting = asyncio.create_task(asyncio.to_thread(connect_for, port, flood_s / 2))
    took_s, peak = await probing
    fresh_s, refused = await connecting
    flood.kill()
    log.info(
        "%d probes: p50 %.0f ms, p99 %.0f ms, longest %.0f ms (calm: p99 %.0f ms); memory +%.0f MB; %d taken over",
        len(took_s),
        *(1_000 * percentile(took_s, share) for share in (0.5, 0.99)),
        1_000 * max(took_s),
        1_000 * calm_p99_s,
        (peak - before) / 1_000_000,
        await testbed.taken_over(),
    )
    log.info(
        "%d probes on new connections: p50 %.0f ms, p99 %.0f ms, longest %.0f ms; %d more were not answered",
        len(fresh_s),
        *(1_000 * percentile(fresh_s, share) for share in (0.5, 0.99, 1.0)),
        refused,
    )
    await testbed.drained()
    assert await testbed.taken_over() == 0
    await testbed.each_applied_once()
    assert peak - before < GROWTH_MAX_BYTES
    p99_s = percentile(took_s, 0.99)
    if flood_s >= LONG_S and p99_s >= ANSWERED_WITHIN_S[flood_s]:
        await fail_if_busy(calm_p99_s)
    assert p99_s < ANSWERED_WITHIN_S[flood_s], f"slowest: {sorted(took_s)[-5:]} of {len(took_s)}"


async def fail_if_busy(calm_p99_s: float) -> None:
    if calm_p99_s > CALM_WITHIN_S:
        pytest.fail(
            f"this machine was too busy to tell: without a flood, 99 of 100 probes took up to {1_000 * calm_p99_s:.0f} "
            f"ms, more than {1_000 * CALM_WITHIN_S:.0f}; run this test with nothing beside it"
        )
    spinning = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", SPIN, stdout=asyncio.subprocess.PIPE)
        for _ in range(os.cpu_count() or 1)
    ]
    share = min([float((await process.communicate())[0]) for process in spinning])
    if share < CPU_SHARE_LEAST:
        pytest.fail(
            f"this machine was too busy to tell: a process that only computes got {share:.0%} of a core, less than "
            f"{CPU_SHARE_LEAST:.0%}; run this test with nothing beside it"
        )


def percentile(took_s: list[float], share: float) -> float:
    """Not a number where nothing was measured."""
    return sorted(took_s)[min(int(len(took_s) * share), len(took_s) - 1)] if took_s else math.nan


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


def connect_for(port: int, seconds: float) -> tuple[list[float], int]:
    """On a new connection each time, as a health check of a container does; answers how many were not answered, too."""
    took_s, refused, until = list[float](), 0, time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=FRESH_LIMIT_S) as line:
                line.sendall(PROBE)
                answered = line.recv(65_536).startswith(b"HTTP/1.1 200 ")
        except OSError:
            answered = False
        if answered:
            took_s.append(time.monotonic() - began)
        else:
            refused += 1
        time.sleep(FRESH_EVERY_S)
    return took_s, refused


def rss_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()
