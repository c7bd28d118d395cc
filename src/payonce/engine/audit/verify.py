"""Verification of the audit log: recomputes every note, seal and link, and compares the heads stored elsewhere."""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from payonce.engine.audit.chain import FINDINGS_MAX, ChainWalk, Progress
from payonce.engine.audit.seals import FORMAT, MICROSECONDS, NOTE_COLUMNS, SERVER, Head, Seal, digest
from payonce.engine.ledger import Finding
from payonce.engine.ledger.model import Reads

PAGE_SEALS: Final = 500
PAGE_NOTES: Final = 5_000
"""A page ends with the seal that reaches this many notes."""


@dataclass(frozen=True)
class Verified:
    head: Head
    notes: int
    unsealed: int
    """Notes written after the last seal. They are sealed once older transactions have ended."""
    oldest_unsealed_at: datetime | None
    heads: int
    """Number of heads stored elsewhere that were compared with the chain."""
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.findings


async def verify_log(read: Reads, heads: Iterable[Head] = (), progress: Progress | None = None) -> Verified:
    """Reads the whole chain in pages, while it may grow. Without a head stored elsewhere it cannot detect a chain that
    the database's owner truncated or rebuilt from the start."""
    walk = _Walk()
    anchored = walk.anchor(heads)
    total = await read.fetchval("select count(*) from payonce.audit_seals")
    async for seals in _pages(read):
        covered = await _covered(read, seals[0].seal.number, seals[-1].seal.number)
        for stored in seals:
            walk.check(stored, covered.pop(stored.seal.number, ()))
        if progress is not None:
            progress(walk.seals, max(walk.seals, total))
    walk.check_end()
    await _find_strays(read, walk)
    unsealed, oldest = await _unsealed(read)
    return Verified(walk.head, walk.notes, unsealed, oldest, anchored, walk.all_findings())


@dataclass(frozen=True)
class _Stored:
    seal: Seal
    hash: bytes


@dataclass
class _Walk(ChainWalk):
    notes: int = 0

    def check(self, stored: _Stored, covered: Sequence[Any]) -> None:
        seal = stored.seal
        self.check_link(seal.number, seal.previous, seal.format, FORMAT)
        self._check_notes(seal, covered)
        if seal.format == FORMAT and seal.hash(bytes(row["digest"]) for row in covered) != stored.hash:
            self.find(
                "changed seal",
                f"the hash of seal {seal.number} does not match its content: the seal or the list of its notes "
                "was changed",
            )
        self.pass_seal(seal.number, stored.hash)

    def _check_notes(self, seal: Seal, covered: Sequence[Any]) -> None:
        if [row["place"] for row in covered] != list(range(1, seal.notes + 1)):
            self.find("missing note", f"seal {seal.number} covers {seal.notes} notes, but {len(covered)} are listed")
        for row in covered:
            self.notes += 1
            if row["id"] is None:
                self.find("missing note", f"note {row['note']}, sealed by {seal.number}, is gone")
            elif digest(row) != bytes(row["digest"]):
                self.find(
                    "changed note", f"note {row['note']}, sealed by {seal.number}, was changed after it was sealed"
                )


async def _pages(read: Reads) -> AsyncIterator[list[_Stored]]:
    last = 0
    while True:
        rows = await read.fetch(
            f"""
            select *, horizon::text as horizon_text, {MICROSECONDS.format("sealed_at")} as sealed_at_us from (
                select *, sum(notes) over (order by number) as running from (
                    select * from payonce.audit_seals where number > $1 order by number limit {PAGE_SEALS}
                ) next_seals
            ) counted
            where running - notes < {PAGE_NOTES} order by number
            """,
            last,
        )
        if not rows:
            return
        yield [_stored(row) for row in rows]
        last = rows[-1]["number"]


def _stored(row: Any) -> _Stored:
    previous = None if row["previous"] is None else bytes(row["previous"])
    seal = Seal(
        row["number"], previous, row["format"], row["notes"], row["server"], row["horizon_text"], row["sealed_at_us"]
    )
    return _Stored(seal, bytes(row["hash"]))


async def _covered(read: Reads, first: int, last: int) -> dict[int, list[Any]]:
    """The notes listed by these seals, joined with the notes that still exist."""
    rows = await read.fetch(
        f"""
        select s.seal, s.place, s.note, s.digest, {NOTE_COLUMNS}
        from payonce.audit_sealed s left join payonce.audit_log l on l.id = s.note
        where s.seal between $1 and $2 order by s.seal, s.place
        """,
        first,
        last,
    )
    covered: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        covered[row["seal"]].append(row)
    return covered


async def _find_strays(read: Reads, walk: _Walk) -> None:
    """Notes inserted below the horizon, and lists of seals that are gone."""
    late = await read.fetch(
        f"""
        select l.id, l.xact::text as xact, l.xact < last.horizon as below from payonce.audit_log l,
            (select server, horizon from payonce.audit_seals order by number desc limit 1) last
        where last.server = {SERVER} and last.horizon <= pg_snapshot_xmax(pg_current_snapshot())
          and (l.xact < last.horizon or l.xact >= pg_snapshot_xmax(pg_current_snapshot()))
          and not exists (select from payonce.audit_sealed s where s.note = l.id)
        order by l.id limit {FINDINGS_MAX}
        """
    )
    for row in late:
        why = "which had ended when the log was sealed" if row["below"] else "not yet reached by this server"
        walk.find("note inserted late", f"note {row['id']} has no seal and claims transaction {row['xact']}, {why}")
    lists = await read.fetch(
        f"""
        select s.seal, count(*) as notes from payonce.audit_sealed s
        where not exists (select from payonce.audit_seals a where a.number = s.seal)
        group by s.seal order by s.seal limit {FINDINGS_MAX}
        """
    )
    for row in lists:
        walk.find("missing seal", f"seal {row['seal']} is gone, but the list of its {row['notes']} notes still exists")


async def _unsealed(read: Reads) -> tuple[int, datetime | None]:
    row = await read.fetchrow(
        """
        select count(*) as notes, min(created_at) as oldest from payonce.audit_log l
        where not exists (select from payonce.audit_sealed s where s.note = l.id)
        """
    )
    return row["notes"], row["oldest"]
