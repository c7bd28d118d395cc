"""RQ: the simple worker, which runs jobs sequentially in its own process instead of forking for each."""

import sys
import time

import redis
from rq import Queue
from rq.registry import StartedJobRegistry
from rq.worker import SimpleWorker

from bench.journal import Journal
from bench.peers import command
from bench.peers.port import SLOW_S, Address, Job, Payload, Traits

BULK = 500
QUEUE = "bench"
# Longer than the slow job, which only the kill should end.
JOB_TIMEOUT_S = int(2 * SLOW_S)

# Jobs are found by module and function name.
_journal: Journal


def noop(payload: Payload) -> None:
    _journal.note_handled()


def timed(payload: Payload) -> None:
    _journal.note_latency(payload["enqueued_ns"])


def slow(payload: Payload) -> None:
    _journal.note_slow_start()
    time.sleep(SLOW_S)


class Rq:
    traits = Traits(
        worker="SimpleWorker (no fork per job), result_ttl 0, logging errors only",
        bulk=f"enqueue_many() of {BULK}",
        bulk_size=BULK,
        lease_s=None,
        write_modes=(),
    )

    def __init__(self, at: Address) -> None:
        self._connection = redis.Redis.from_url(at.url)
        self._queue = Queue(QUEUE, connection=self._connection)

    async def install(self) -> None:
        """Does nothing: it has no schema."""

    async def open(self) -> None:
        self._connection.ping()

    async def put(self, job: Job, payload: Payload) -> None:
        self._queue.enqueue(_path(job), payload, result_ttl=0, job_timeout=JOB_TIMEOUT_S)

    async def put_many(self, job: Job, payloads: list[Payload]) -> None:
        self._queue.enqueue_many(
            [Queue.prepare_data(_path(job), (payload,), result_ttl=0, timeout=JOB_TIMEOUT_S) for payload in payloads]
        )

    async def unfinished(self) -> int:
        started = StartedJobRegistry(queue=self._queue)
        intermediate = self._connection.llen(self._queue.intermediate_queue_key)
        return int(self._queue.count) + int(intermediate) + int(started.get_job_count(cleanup=False))

    async def work(self, journal: Journal) -> None:
        global _journal
        _journal = journal
        # This file runs as the main program; under its own name it would be imported again, without a journal.
        sys.modules[_MODULE] = sys.modules[__name__]
        SimpleWorker([self._queue], connection=self._connection).work(logging_level="ERROR")


_MODULE = "bench.peers.redis.rq"


def _path(job: Job) -> str:
    return f"{_MODULE}.{job}"


if __name__ == "__main__":
    command.main(Rq)
