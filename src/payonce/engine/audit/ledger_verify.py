"""Verification of the ledger: recomputes every sealed posting, seal and link, and compares balances with their
lines."""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from payonce.engine.audit.chain import ChainWalk, Progress
from payonce.engine.audit.ledger_seals import DIGEST_BYTES, LEDGER_FORMAT, LedgerSeal, PostingDigest, posting_digests
from payonce.engine.audit.seals import MICROSECONDS, Head
from payonce.engine.ledger import Finding
from payonce.engine.ledger.audit import check_books
from payonce.engine.ledger.model import Reads

PAGE_SEALS: Final = 500
PAGE_POSTINGS: Final = 5_000
"""A page ends with the seal that reaches this many postings."""
BEFORE_ALL_IDS: Final = -(2**63)
DERIVED: Final = ("stray line", "wrong balance", "wrong guarded balance", "wrong snapshot")
"""Data derived from the lines is not sealed but recomputed. A line without a posting has no seal either."""


@dataclass(frozen=True)
class VerifiedLedger:
    head: Head
    postings: int
    unsealed: int
    """Postings after the last seal. They are sealed once older transactions have ended."""
    oldest_unsealed_at: datetime | None
    heads: int
    """Number of heads stored elsewhere that were compared with the chain."""
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.findings


async def verify_ledger(read: Reads, heads: Iterable[Head] = (), progress: Progress | None = None) -> VerifiedLedger:
    """Reads the whole chain and all sealed postings in pages, while both may grow. Without a head stored elsewhere it
    cannot detect a chain that the database's owner truncated or rebuilt from the start."""
    walk = _Walk(seal_name="ledger seal")
    anchored = walk.anchor(heads)
    total = await read.fetchval("select count(*) from payonce.ledger_seals")
    async for seals in _pages(read):
        for stored in seals:
            walk.check(stored)
        await _check_postings(read, walk)
        if progress is not None:
            progress(walk.seals, max(walk.seals, total))
    walk.check_end()
    derived = [finding for kind in DERIVED for finding in await check_books(read, kind)]
    unsealed = await read.fetchrow(
        "select count(*) as postings, min(posted_at) as oldest from payonce.postings where id > $1", walk.through
    )
    return VerifiedLedger(
        walk.head, walk.postings, unsealed["postings"], unsealed["oldest"], anchored, (*walk.all_findings(), *derived)
    )


@dataclass(frozen=True)
class _Stored:
    seal: LedgerSeal
    hash: bytes


@dataclass(frozen=True, slots=True)
class _Sealed:
    seal: int
    digest: bytes | None
    """None if the format of the seal cannot be read."""


@dataclass
class _Walk(ChainWalk):
    postings: int = 0
    through: int = BEFORE_ALL_IDS
    """The highest posting id named by a seal so far."""
    verified_through: int = BEFORE_ALL_IDS
    expected: dict[int, _Sealed] = field(default_factory=dict)
    """Postings named by the seals of this page and not yet found."""

    def check(self, stored: _Stored) -> None:
        seal = stored.seal
        self.check_link(seal.number, seal.previous, seal.format, LEDGER_FORMAT)
        readable = seal.format == LEDGER_FORMAT
        if readable and seal.hash() != stored.hash:
            self.find(
                "changed seal",
                f"the hash of ledger seal {seal.number} does not match its content: the seal or the list of its "
                "postings was changed",
            )
        last = self.through
        for place, posting in enumerate(seal.postings):
            if posting <= last:
                self.find(
                    "changed seal",
                    f"ledger seal {seal.number} names posting {posting} out of order: earlier seals end after it",
                )
                continue
            last = posting
            digest = seal.digests[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES]
            self.expected[posting] = _Sealed(seal.number, digest if readable else None)
        self.postings += len(seal.postings)
        self.through = last
        self.pass_seal(seal.number, stored.hash)

    def check_posting(self, posting: PostingDigest) -> None:
        sealed = self.expected.pop(posting.id, None)
        if sealed is None:
            self.find(
                "posting inserted late",
                f"posting {posting.id} ({posting.key}) has no seal although postings with higher ids are sealed: "
                "it was written after its transaction had ended",
            )
        elif sealed.digest is not None and sealed.digest != posting.digest:
            self.find(
                "changed posting",
                f"posting {posting.id} ({posting.key}), sealed by ledger seal {sealed.seal}, was changed after it "
                "was sealed: the posting, its lines or the names of its accounts",
            )

    def check_missing(self) -> None:
        for posting, sealed in self.expected.items():
            self.find("missing posting", f"posting {posting}, sealed by ledger seal {sealed.seal}, is gone")
        self.expected.clear()


async def _check_postings(read: Reads, walk: _Walk) -> None:
    """Compares the stored postings with those named by the seals, up to the last one named."""
    while page := await posting_digests(read, walk.verified_through, walk.through):
        for posting in page:
            walk.check_posting(posting)
        walk.verified_through = page[-1].id
    walk.verified_through = walk.through
    walk.check_missing()


async def _pages(read: Reads) -> AsyncIterator[Sequence[_Stored]]:
    last = 0
    while True:
        rows = await read.fetch(
            f"""
            select *, {MICROSECONDS.format("sealed_at")} as sealed_at_us from (
                select *, sum(cardinality(postings)) over (order by number) as running from (
                    select * from payonce.ledger_seals where number > $1 order by number limit {PAGE_SEALS}
                ) next_seals
            ) counted
            where running - cardinality(postings) < {PAGE_POSTINGS} order by number
            """,
            last,
        )
        if not rows:
            return
        yield [_stored(row) for row in rows]
        last = rows[-1]["number"]


def _stored(row: Any) -> _Stored:
    previous = None if row["previous"] is None else bytes(row["previous"])
    seal = LedgerSeal(
        row["number"], previous, row["format"], row["postings"], bytes(row["digests"]), row["sealed_at_us"]
    )
    return _Stored(seal, bytes(row["hash"]))
