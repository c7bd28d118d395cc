"""The two programs of `python -m bench.peers.NAME`: `worker`, and `driver`, which enqueues and observes.

The driver reads one JSON command per line from standard input and answers each with one JSON line.
"""

import argparse
import asyncio
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import msgspec
import uvloop

from bench.journal import Journal
from bench.peers.port import Address, Job, Peer, Traits, payload
from payonce.kit.collector import freeze_loaded_objects

# Interval between jobs of the latency phase: long enough for a worker to become idle, and not a multiple of polling
# intervals.
LATENCY_GAP_S = (0.002, 0.010)
LATENCY_JOB_LIMIT_S = 10.0
POLL_S = 0.0005
# Queries load the store, in which the worker is still busy.
STORE_POLL_S = 0.003


class Command(msgspec.Struct, frozen=True):
    do: str
    job: Job = "noop"
    count: int = 0
    first_reference: int = 0
    limit_s: float = 0.0


class Reply(msgspec.Struct, frozen=True):
    error: str | None = None
    seconds: float = 0.0
    unfinished: int = 0
    at_ns: int = 0
    traits: Traits | None = None


def main(peer_at: Callable[[Address], Peer]) -> None:
    parser = argparse.ArgumentParser(description="One process of the queue benchmark; started by it.")
    parser.add_argument("role", choices=("worker", "driver"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--database-url", default="")
    parser.add_argument("--journal", required=True, type=Path)
    arguments = parser.parse_args()
    peer = peer_at(Address(arguments.url, arguments.database_url))
    journal = Journal(arguments.journal)
    if arguments.role == "worker":
        freeze_loaded_objects()
        uvloop.run(peer.work(journal))
        return
    # A printing library must not garble the replies: they use the real standard output.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    uvloop.run(_drive(peer, journal, answers))
    # Some peers leave threads that would keep a finished driver alive.
    os._exit(0)


async def _drive(peer: Peer, journal: Journal, answers: TextIO) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = msgspec.json.decode(line, type=Command)
        try:
            reply = await _obey(peer, journal, command)
        except Exception:
            reply = Reply(error=traceback.format_exc())
        answers.write(msgspec.json.encode(reply).decode() + "\n")


async def _obey(peer: Peer, journal: Journal, command: Command) -> Reply:
    match command.do:
        case "install":
            await peer.install()
            return Reply()
        case "open":
            await peer.open()
            return Reply(traits=peer.traits)
        case "put_singly":
            return Reply(seconds=await _put_singly(peer, command))
        case "put_in_bulk":
            return Reply(seconds=await _put_in_bulk(peer, command))
        case "time_idle":
            await _time_idle(peer, journal, command)
            return Reply()
        case "wait_until_empty":
            return await _wait_until_empty(peer, command)
    return Reply(error=f"unknown command {command.do!r}")


async def _put_singly(peer: Peer, command: Command) -> float:
    started = time.perf_counter()
    for reference in range(command.first_reference, command.first_reference + command.count):
        await peer.put(command.job, payload(reference))
    return time.perf_counter() - started


async def _put_in_bulk(peer: Peer, command: Command) -> float:
    end = command.first_reference + command.count
    started = time.perf_counter()
    for first in range(command.first_reference, end, peer.traits.bulk_size):
        references = range(first, min(first + peer.traits.bulk_size, end))
        await peer.put_many(command.job, [payload(reference) for reference in references])
    return time.perf_counter() - started


async def _time_idle(peer: Peer, journal: Journal, command: Command) -> None:
    """One job at a time, each after the previous one has started and the worker has become idle."""
    for number in range(command.count):
        before = len(journal.latencies_ns)
        await peer.put("timed", payload(number))
        deadline = time.monotonic() + LATENCY_JOB_LIMIT_S
        while len(journal.latencies_ns) == before:
            if time.monotonic() > deadline:
                raise TimeoutError(f"an idle worker did not start job {number} within {LATENCY_JOB_LIMIT_S:.0f} s")
            await asyncio.sleep(POLL_S)
        await asyncio.sleep(random.uniform(*LATENCY_GAP_S))


async def _wait_until_empty(peer: Peer, command: Command) -> Reply:
    deadline = time.monotonic() + command.limit_s
    while True:
        unfinished = await peer.unfinished()
        now_ns = time.monotonic_ns()
        if not unfinished or now_ns / 1e9 > deadline:
            return Reply(unfinished=unfinished, at_ns=now_ns)
        await asyncio.sleep(STORE_POLL_S)
