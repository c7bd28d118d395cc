"""Celery: the solo pool, one task after the other; by default a task is acknowledged before it runs."""

import time

import celery
import redis

from bench.journal import Journal
from bench.peers import command
from bench.peers.port import SLOW_S, Address, Job, Payload, Traits

PREFETCH = 64
QUEUE = "celery"


class Celery:
    traits = Traits(
        worker=f"pool solo, prefetch {PREFETCH}, no results, no events; acknowledged before the run (default)",
        bulk="no bulk call; send_task() on one producer",
        bulk_size=100,
        # visibility_timeout, for tasks acknowledged late.
        lease_s=3600.0,
        write_modes=(),
    )

    def __init__(self, at: Address) -> None:
        self._app = celery.Celery("bench", broker=at.url)
        self._app.conf.update(
            task_ignore_result=True,
            worker_prefetch_multiplier=PREFETCH,
            worker_send_task_events=False,
            worker_enable_remote_control=False,
            worker_hijack_root_logger=False,
            broker_connection_retry_on_startup=True,
        )
        self._watch = redis.Redis.from_url(at.url)

    async def install(self) -> None:
        """Does nothing: it has no schema."""

    async def open(self) -> None:
        self._watch.ping()

    async def put(self, job: Job, payload: Payload) -> None:
        self._app.send_task(job, args=(payload,), ignore_result=True)

    async def put_many(self, job: Job, payloads: list[Payload]) -> None:
        with self._app.producer_pool.acquire(block=True) as producer:
            for payload in payloads:
                self._app.send_task(job, args=(payload,), ignore_result=True, producer=producer)

    async def unfinished(self) -> int:
        return int(self._watch.llen(QUEUE)) + int(self._watch.hlen("unacked"))

    async def work(self, journal: Journal) -> None:
        @self._app.task(name="noop")
        def noop(payload: Payload) -> None:
            journal.note_handled()

        @self._app.task(name="timed")
        def timed(payload: Payload) -> None:
            journal.note_latency(payload["enqueued_ns"])

        @self._app.task(name="slow")
        def slow(payload: Payload) -> None:
            journal.note_slow_start()
            time.sleep(SLOW_S)

        quietly = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING")
        self._app.worker_main(["worker", "--pool", "solo", "--concurrency", "1", *quietly])


if __name__ == "__main__":
    command.main(Celery)
