"""The paths on which a process is struck: the same for the seed's order and for our scripts."""

from typing import Final

from tests.redis.fault_explorer import Path, QueueClient, Tally


async def tick(client: QueueClient, tally: Tally) -> None:
    await tally.tick(client)


async def tick_twice(client: QueueClient, tally: Tally) -> None:
    await tally.tick(client)
    await tally.tick(client)


async def pump(client: QueueClient, tally: Tally) -> None:
    await client.pump()


async def sweep(client: QueueClient, tally: Tally) -> None:
    await client.sweep()


DONE: Final = Path("success", tick)
BUSY: Final = Path("busy lock", tick, put=("a", "a"), raw=True, held_by_another=True)
RETRY: Final = Path("retry", tick, failures={"a": 1})
PARK: Final = Path("park", tick, failures={"a": 2}, before=tick, delays_pass_before=True, pumped_before=True)
PUMP: Final = Path("pump", pump, failures={"a": 1}, before=tick, delays_pass_before=True)
SWEEP: Final = Path("sweep", sweep, abandoned_before=1)
TWINS: Final = Path("identical raw bodies", tick_twice, put=("a", "a"), raw=True, failures={"a": 2})

SEED_PATHS: Final = (DONE, BUSY, RETRY, PARK, PUMP, SWEEP, TWINS)
