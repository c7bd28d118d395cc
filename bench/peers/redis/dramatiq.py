"""Dramatiq: threads; claims a few messages at a time, acknowledges one by one, each by a script on the server."""

import asyncio
import threading
import time

import dramatiq
import msgspec
import redis
from dramatiq.brokers.redis import RedisBroker

from bench.journal import Journal
from bench.peers import command
from bench.peers.port import SLOW_S, Address, Job, Payload, Traits

THREADS = 8
# The default of twice the threads makes it sleep between fetches: half the rate, measured.
PREFETCH = 64
QUEUE = "default"
# Its middleware ends an actor after ten minutes; only the kill should end the slow job.
TIME_LIMIT_MS = int(2 * SLOW_S * 1000)


class _Encoder(dramatiq.Encoder):
    def encode(self, data: dict[str, object]) -> bytes:
        return msgspec.json.encode(data)

    def decode(self, data: bytes) -> dict[str, object]:
        return msgspec.json.decode(data, type=dict[str, object])


class Dramatiq:
    traits = Traits(
        worker=f"{THREADS} threads, prefetch {PREFETCH} (default {2 * THREADS}), default middleware, msgspec",
        bulk="no bulk call; send() one after the other",
        bulk_size=100,
        # A dead worker's messages are put back at random: one command in a thousand looks for them.
        lease_s=60.0,
        write_modes=(),
    )

    def __init__(self, at: Address) -> None:
        self._broker = RedisBroker(url=at.url)
        self._watch = redis.Redis.from_url(at.url)
        dramatiq.set_broker(self._broker)
        dramatiq.set_encoder(_Encoder())

    async def install(self) -> None:
        """Does nothing: it has no schema."""

    async def open(self) -> None:
        self._broker.declare_queue(QUEUE)

    async def put(self, job: Job, payload: Payload) -> None:
        self._send(job, payload)

    async def put_many(self, job: Job, payloads: list[Payload]) -> None:
        for payload in payloads:
            self._send(job, payload)

    def _send(self, job: Job, payload: Payload) -> None:
        self._broker.enqueue(dramatiq.Message(queue_name=QUEUE, actor_name=job, args=(payload,), kwargs={}, options={}))

    async def unfinished(self) -> int:
        # A body stays in this hash until its message is acknowledged.
        return int(self._watch.hlen(f"dramatiq:{QUEUE}.msgs"))

    async def work(self, journal: Journal) -> None:
        # Handlers run in threads, and updating a count takes two steps.
        turn = threading.Lock()

        @dramatiq.actor(actor_name="noop")
        def noop(payload: Payload) -> None:
            with turn:
                journal.note_handled()

        @dramatiq.actor(actor_name="timed")
        def timed(payload: Payload) -> None:
            with turn:
                journal.note_latency(payload["enqueued_ns"])

        @dramatiq.actor(actor_name="slow", time_limit=TIME_LIMIT_MS)
        def slow(payload: Payload) -> None:
            with turn:
                journal.note_slow_start()
            time.sleep(SLOW_S)

        # As its command line starts it in each process.
        worker = dramatiq.Worker(self._broker, worker_threads=THREADS)
        worker.queue_prefetch = PREFETCH
        worker.start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    command.main(Dramatiq)
