"""Verifying the audit log: every note, every seal and every link again, and the heads that were kept elsewhere."""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from payonce.engine.audit.seals import FORMAT, MICROSECONDS, NO_HASH, NO_HEAD, NOTE_COLUMNS, SERVER, Head, Seal, digest
from payonce.engine.ledger import Finding
from payonce.engine.ledger.model import Reads

PAGE_SEALS: Final = 500
PAGE_NOTES: Final = 5_000
"""A page ends with the seal that reaches this many."""
FINDINGS_MAX: Final = 100
"""Of each kind: who finds a hundred has seen enough to act."""

WAY_OUT: Final = (
    "treat the database as tampered with: keep a copy as it is, compare with a backup and with heads kept elsewhere, "
    "and find out who could write as its owner"
)

Progress = Callable[[int, int], None]
"""Told the seals verified so far, and how many there are."""


@dataclass(frozen=True)
class Verified:
    head: Head
    notes: int
    unsealed: int
    """Written after the last seal; they are sealed once older transactions have ended."""
    oldest_unsealed_at: datetime | None
    heads: int
    """How many heads from elsewhere were held against the chain."""
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.findings


async def verify_log(read: Reads, heads: Iterable[Head] = (), progress: Progress | None = None) -> Verified:
    """Reads the whole chain in pages, while it may grow. Without a head from elsewhere it cannot tell a chain that was
    cut at its end, or made anew from its beginning by the database's owner."""
    anchored = set(heads)
    walk = _Walk({head.number: head.hash for head in anchored if head.number})
    for head in anchored:
        if walk.anchored.get(head.number, head.hash) != head.hash:
            walk.find("contradicting head", f"two of the heads given are of seal {head.number}, with different hashes")
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
    return Verified(walk.head, walk.notes, unsealed, oldest, len(anchored), walk.all_findings())


@dataclass(frozen=True)
class _Stored:
    seal: Seal
    hash: bytes


@dataclass
class _Walk:
    """Where the verification stands, and what it found."""

    anchored: dict[int, bytes]
    head: Head = NO_HEAD
    seals: int = 0
    notes: int = 0
    findings: list[Finding] = field(default_factory=list)
    _counts: Counter[str] = field(default_factory=Counter)

    def find(self, kind: str, text: str) -> None:
        self._counts[kind] += 1
        if self._counts[kind] <= FINDINGS_MAX:
            self.findings.append(Finding(kind, text, WAY_OUT))

    def all_findings(self) -> tuple[Finding, ...]:
        more = {kind: count - FINDINGS_MAX for kind, count in self._counts.items() if count > FINDINGS_MAX}
        return (
            *self.findings,
            *(Finding(kind, f"and {count:,} more of these", WAY_OUT) for kind, count in more.items()),
        )

    def check(self, stored: _Stored, covered: Sequence[Any]) -> None:
        seal = stored.seal
        self._check_link(seal)
        self._check_notes(seal, covered)
        if seal.format == FORMAT and seal.hash(bytes(row["digest"]) for row in covered) != stored.hash:
            self.find("changed seal", f"seal {seal.number} does not have the hash of what it covers: the seal or the "
                      "list of its notes was changed")  # fmt: skip
        if self.anchored.get(seal.number, stored.hash) != stored.hash:
            self.find("rewritten history", f"seal {seal.number} was {self.anchored[seal.number].hex()} when its head "
                      f"was kept elsewhere, and is {stored.hash.hex()} now")  # fmt: skip
        self.head = Head(seal.number, stored.hash)
        self.seals += 1

    def check_end(self) -> None:
        for number in sorted(number for number in self.anchored if number > self.head.number):
            self.find("cut chain", f"seal {number} was on record when its head was kept elsewhere, and the chain ends "
                      f"with seal {self.head.number} now")  # fmt: skip

    def _check_link(self, seal: Seal) -> None:
        if seal.number != self.head.number + 1:
            missing = f"seals {self.head.number + 1} to {seal.number - 1} are gone"
            self.find("missing seal", missing)
        elif (seal.previous or NO_HASH) != self.head.hash:
            self.find("broken link", f"seal {seal.number} was made after another seal {self.head.number} than the one "
                      "on record")  # fmt: skip
        if seal.format != FORMAT:
            self.find(
                "unreadable seal", f"seal {seal.number} has format {seal.format}, and this payonce reads {FORMAT}"
            )

    def _check_notes(self, seal: Seal, covered: Sequence[Any]) -> None:
        if [row["place"] for row in covered] != list(range(1, seal.notes + 1)):
            self.find("missing note", f"seal {seal.number} covers {seal.notes} notes, and {len(covered)} are listed")
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
    seal = Seal(row["number"], previous, row["format"], row["notes"], row["server"], row["horizon_text"],
                row["sealed_at_us"])  # fmt: skip
    return _Stored(seal, bytes(row["hash"]))


async def _covered(read: Reads, first: int, last: int) -> dict[int, list[Any]]:
    """The listed notes of some seals, with the notes themselves as far as they are there."""
    rows = await read.fetch(
        f"""
        select s.seal, s.place, s.note, s.digest, {NOTE_COLUMNS}
        from payonce.audit_sealed s left join payonce.audit_log l on l.id = s.note
        where s.seal between $1 and $2 order by s.seal, s.place
        """,
        first, last,
    )  # fmt: skip
    covered: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        covered[row["seal"]].append(row)
    return covered


async def _find_strays(read: Reads, walk: _Walk) -> None:
    """What no seal accounts for: notes that slipped in below the horizon, and lists of seals that are gone."""
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
        why = "which was over when the log was sealed" if row["below"] else "which this server has not counted to yet"
        walk.find("note inserted late", f"note {row['id']} has no seal and claims transaction {row['xact']}, {why}")
    lists = await read.fetch(
        f"""
        select s.seal, count(*) as notes from payonce.audit_sealed s
        where not exists (select from payonce.audit_seals a where a.number = s.seal)
        group by s.seal order by s.seal limit {FINDINGS_MAX}
        """
    )
    for row in lists:
        walk.find(
            "missing seal", f"seal {row['seal']} is gone, and the list of its {row['notes']} notes is still there"
        )


async def _unsealed(read: Reads) -> tuple[int, datetime | None]:
    row = await read.fetchrow(
        """
        select count(*) as notes, min(created_at) as oldest from payonce.audit_log l
        where not exists (select from payonce.audit_sealed s where s.note = l.id)
        """
    )
    return row["notes"], row["oldest"]
