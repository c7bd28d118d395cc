"""Short ways to write, seal and verify notes, for the tests of the audit log."""

from collections.abc import Iterator
from contextlib import contextmanager

from payonce.engine.audit import Head, Verified, head, note, seal_notes, verify_log
from payonce.engine.database.leases import acquire
from payonce.engine.messages.model import Lease
from payonce.engine.messages.transaction import Reader
from payonce.testing import Stage, eventually
from tests.conformance.wire import on_the_wire

ELSEWHERE_XACT = 5_000_000_000
"""Far above the transaction counters of test servers."""
SEALED_WITHIN_S = 30.0


async def noted(s: Stage, *texts: str) -> None:
    """Each in a transaction of its own."""
    for text in texts:
        async with s.database.transaction() as connection:
            await note(connection, "test", "reference", text, actor="tester")


async def leading(s: Stage, holder: str = "leader") -> Lease:
    lease = await acquire(s.database, "janitors", holder, 3_600.0)
    assert lease is not None
    return lease


async def sealed(s: Stage, lease: Lease, count: int, batch_notes: int = 1_000) -> None:
    """Seals until this many notes are sealed: a transaction elsewhere on the server may delay the horizon for a
    moment."""
    done = 0

    async def enough() -> bool:
        nonlocal done
        done += await seal_notes(s.database, lease, batch_notes=batch_notes)
        return done >= count

    await eventually(enough, SEALED_WITHIN_S, f"sealing {count} notes")
    assert done == count


async def all_final(s: Stage) -> bool:
    """Whether every note is below the horizon, so that one seal takes them all."""
    return bool(
        await s.owner.fetchval("select bool_and(xact < pg_snapshot_xmin(pg_current_snapshot())) from payonce.audit_log")
    )


async def verified(s: Stage, *heads: Head) -> Verified:
    return await verify_log(Reader(s.database), heads)


async def kinds(s: Stage, *heads: Head) -> set[str]:
    return {finding.kind for finding in (await verified(s, *heads)).findings}


async def head_of(s: Stage) -> Head:
    return await head(Reader(s.database))


async def covered(s: Stage) -> list[tuple[int, str]]:
    """Seal and text of every sealed note, in the order of the chain."""
    rows = await s.owner.fetch(
        """
        select s.seal, l.text from payonce.audit_sealed s join payonce.audit_log l on l.id = s.note
        order by s.seal, s.place
        """
    )
    return [(row["seal"], row["text"]) for row in rows]


@contextmanager
def on_an_older_server() -> Iterator[None]:
    """Seals and verifies as another server with a much higher transaction counter."""

    def see(statement: str) -> str:
        older = statement.replace("(select system_identifier::text from pg_control_system())", "'elsewhere'")
        snapshot = f"'{ELSEWHERE_XACT + 1000}:{ELSEWHERE_XACT + 1000}:'::pg_snapshot"
        return older.replace("pg_current_snapshot()", snapshot) if "audit_" in statement else statement

    with on_the_wire(see):
        yield
