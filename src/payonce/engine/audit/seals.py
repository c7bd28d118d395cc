"""Seals: the leader hashes notes whose order is final into a chain.

A note is final when every transaction that began before its own has ended. Ids are assigned before the commit, so a
horizon of ids would skip late commits; below `pg_snapshot_xmin` no transaction is left.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import asyncpg

from payonce.engine.database.commits import settled_transaction
from payonce.engine.database.connections import Connection, Database
from payonce.engine.database.leases import fence
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.model import Lease
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid, Stale

FORMAT: Final = 1
"""Version of the encoding. It grows when a column of the log or of a seal is added; older seals are verified with their
own format."""
BATCH_NOTES: Final = 1_000
"""Per seal. Hashing takes milliseconds, so the lease can be renewed in between."""
BATCHES_MAX: Final = 100
"""Per call. A flood is sealed over several ticks."""
UNSEALED_COUNT_MAX: Final = 10_000
NO_HASH: Final = bytes(32)
"""Stands for the previous hash in a chain without seals."""

NOTE_FIELDS: Final = ("id", "xact", "severity", "location", "reference", "text", "actor", "created_at")
"""All columns of payonce.audit_log in hashing order."""
MICROSECONDS: Final = "trunc(extract(epoch from {}) * 1000000)::text"
"""A time in a form that does not depend on the session's time zone or date style."""
NOTE_COLUMNS: Final = (
    "l.id::text as id, l.xact::text as xact, l.severity, l.location, l.reference, l.text, l.actor, "
    f"{MICROSECONDS.format('l.created_at')} as created_at"
)
_NULL: Final = bytes([255] * 8)
SERVER: Final = "(select system_identifier::text from pg_control_system())"
"""The identifier a database cluster gets at initdb. Copies of its files keep it, together with their transaction
counter."""

log = get_logger(__name__)


@dataclass(frozen=True)
class Head:
    """The end of the chain at some moment. Stored elsewhere, it proves that nothing before it was changed."""

    number: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.number}:{self.hash.hex()}"


NO_HEAD: Final = Head(0, NO_HASH)


@dataclass(frozen=True)
class Seal:
    number: int
    previous: bytes | None
    format: int
    notes: int
    server: str
    horizon: str
    sealed_at: str
    """Microseconds since 1970."""

    def hash(self, digests: Iterable[bytes]) -> bytes:
        """Covers all fields of the seal, the previous seal, and the notes in order."""
        fields = (
            "payonce seal",
            self.format,
            self.number,
            (self.previous or b"").hex(),
            self.notes,
            self.server,
            self.horizon,
            self.sealed_at,
        )
        return hashlib.sha256(encoded(*map(str, fields), *(digest.hex() for digest in digests))).digest()


def digest(note: Any) -> bytes:
    """Digest of one row with NOTE_COLUMNS."""
    return hashlib.sha256(encoded("payonce note", str(FORMAT), *(note[name] for name in NOTE_FIELDS))).digest()


def encoded(*fields: str | None) -> bytes:
    """Encodes each field after its length, so that no two lists of fields have the same encoding. Null has a length
    that no field can have."""
    parts = [None if field is None else field.encode() for field in fields]
    return b"".join(_NULL if part is None else len(part).to_bytes(8, "big") + part for part in parts)


async def seal_notes(database: Database, lease: Lease, *, batch_notes: int = BATCH_NOTES) -> int:
    """Seals all final notes, one fenced transaction per seal; returns the number of notes. Raises Stale when the lease
    is lost."""
    if batch_notes < 1:
        raise Invalid(f"batch_notes is {batch_notes}; a seal covers at least 1 note")
    sealed = 0
    for _ in range(BATCHES_MAX):
        notes = await _seal_batch(database, lease, batch_notes)
        sealed += notes
        if notes < batch_notes:
            break
    return sealed


async def head(read: Reads) -> Head:
    """The current end of the chain; number 0 while nothing is sealed."""
    row = await read.fetchrow("select number, hash from payonce.audit_seals order by number desc limit 1")
    return NO_HEAD if row is None else Head(row["number"], bytes(row["hash"]))


@dataclass(frozen=True)
class SealState:
    """How far the log is sealed, without proof; verify_log() proves it."""

    head: Head
    sealed_at: datetime | None
    unsealed: int
    """Notes after the last seal, counted up to UNSEALED_COUNT_MAX."""
    oldest_unsealed_at: datetime | None


async def seal_state(read: Reads) -> SealState:
    row = await read.fetchrow(
        f"""
        select last.number, last.hash, last.sealed_at, rest.notes, rest.oldest
        from (select count(*) as notes, min(created_at) as oldest from (
            select l.created_at from payonce.audit_log l
            where l.xact >= coalesce((select horizon from payonce.audit_seals order by number desc limit 1), '0'::xid8)
              and not exists (select from payonce.audit_sealed s where s.note = l.id)
            order by l.xact, l.id limit {UNSEALED_COUNT_MAX}) counted) rest
        left join (select * from payonce.audit_seals order by number desc limit 1) last on true
        """
    )
    last = NO_HEAD if row["number"] is None else Head(row["number"], bytes(row["hash"]))
    return SealState(last, row["sealed_at"], row["notes"], row["oldest"])


@dataclass(frozen=True)
class _Place:
    """Where the next seal goes, and up to where this server's transactions have ended."""

    head: Head
    server: str
    horizon: str
    here: str
    xmin: str
    xmax: str
    at: datetime
    at_us: str

    @property
    def moved(self) -> bool:
        """True if a server with another transaction counter made the last seal, or if there is none yet."""
        return self.server != self.here or int(self.horizon) > int(self.xmax)


async def _seal_batch(database: Database, lease: Lease, batch_notes: int) -> int:
    async with database.engine.acquire() as connection, settled_transaction(database, connection):
        await fence(connection, lease)
        place = await _place(connection)
        notes = await _final_notes(connection, place, batch_notes)
        if not notes and not place.moved:
            return 0
        server, horizon = _covered(place, notes, complete=len(notes) < batch_notes)
        seal = Seal(
            place.head.number + 1,
            place.head.hash if place.head.number else None,
            FORMAT,
            len(notes),
            server,
            horizon,
            place.at_us,
        )
        digests = [digest(note) for note in notes]
        try:
            await _write(connection, seal, place.at, [int(note["id"]) for note in notes], digests)
        except asyncpg.UniqueViolationError as error:
            raise Stale(f"seal {seal.number} was made by another process; nothing was written") from error
    log.info("audit_sealed", seal=seal.number, notes=len(notes))
    return len(notes)


def _covered(place: _Place, notes: Sequence[Any], *, complete: bool) -> tuple[str, str]:
    """The server and the horizon that a seal over these notes may claim."""
    if complete:
        return place.here, place.xmin
    # A full batch may end inside a transaction. After a move, it may end before the notes of this server begin.
    return (place.server, place.horizon) if place.moved else (place.here, notes[-1]["xact"])


async def _place(connection: Connection) -> _Place:
    row = await connection.fetchrow(
        f"""
        select last.number, last.hash, last.server, last.horizon::text as horizon, {SERVER} as here,
            pg_snapshot_xmin(pg_current_snapshot())::text as xmin,
            pg_snapshot_xmax(pg_current_snapshot())::text as xmax,
            clock.at, {MICROSECONDS.format("clock.at")} as at_us
        from (select payonce.due_now() as at) clock
        left join (select * from payonce.audit_seals order by number desc limit 1) last on true
        """
    )
    assert row is not None
    last = NO_HEAD if row["number"] is None else Head(row["number"], bytes(row["hash"]))
    return _Place(
        last, row["server"] or "", row["horizon"] or "0", row["here"], row["xmin"], row["xmax"], row["at"], row["at_us"]
    )


async def _final_notes(connection: Connection, place: _Place, limit: int) -> list[Any]:
    """Notes without a seal, in the order of their transactions. Notes above all transactions that this server ever
    began were written by another server, and are as final as those below them all."""
    final = "l.xact >= $1::text::xid8 and l.xact < pg_snapshot_xmin(pg_current_snapshot())"
    if place.moved:
        final = f"(({final}) or l.xact >= pg_snapshot_xmax(pg_current_snapshot()))"
    rows: list[Any] = await connection.fetch(
        f"""
        select {NOTE_COLUMNS} from payonce.audit_log l
        where {final} and not exists (select from payonce.audit_sealed s where s.note = l.id)
        order by l.xact, l.id limit $2
        """,
        "0" if place.moved else place.horizon,
        limit,
    )
    return rows


async def _write(
    connection: Connection, seal: Seal, at: datetime, note_ids: Sequence[int], digests: Sequence[bytes]
) -> None:
    await connection.execute(
        """
        insert into payonce.audit_seals (number, previous, format, notes, server, horizon, hash, sealed_at)
        values ($1, $2, $3, $4, $5, $6::text::xid8, $7, $8)
        """,
        seal.number,
        seal.previous,
        seal.format,
        seal.notes,
        seal.server,
        seal.horizon,
        seal.hash(digests),
        at,
    )
    await connection.execute(
        """
        insert into payonce.audit_sealed (seal, place, note, digest)
        select $1, covered.place, covered.note, covered.digest
        from unnest($2::bigint[], $3::bytea[]) with ordinality as covered (note, digest, place)
        """,
        seal.number,
        note_ids,
        digests,
    )
