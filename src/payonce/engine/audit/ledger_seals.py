"""Seals over the ledger: the leader hashes postings with all their lines into a chain, after they are committed.

Postings are sealed in the order of their ids. Ids are assigned before the commit, so a posting may become visible after
postings with higher ids. But payonce.post has a transaction number before it takes an id. Once every transaction up to
a mark has ended, each id assigned before the mark is either visible or will never be used.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import asyncpg

from payonce.engine.audit.seals import MICROSECONDS, NO_HEAD, Head, encoded
from payonce.engine.database.connections import Connection, Database
from payonce.engine.database.leases import fence
from payonce.engine.ledger.model import LINES_MAX, Reads
from payonce.engine.messages.model import Lease
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid, Stale

LEDGER_FORMAT: Final = 1
"""Version of the encoding. It grows when more is hashed; older seals are verified with their own format."""
BATCH_LINES: Final = 2_000
"""Per seal. Reading and hashing take tens of milliseconds, so the lease can be renewed in between."""
BATCHES_MAX: Final = 100
"""Per call. The ledger of an upgraded database is sealed over many ticks."""
LINES_OF_ANY_POSTING: Final = 65_536
"""More than the column of line numbers can hold, also for a posting written past payonce.post."""
DIGEST_BYTES: Final = 32

POSTING_FIELDS: Final = ("key", "reference_kind", "reference_id", "trace_id", "description", "posted_at")
LINE_FIELDS: Final = ("number", "path", "asset", "exponent", "minor", "line_posted_at")
"""In hashing order. A line's transaction is left out because payonce.rebase_ledger changes it after a restore. The
account is hashed by name, so a renamed account is detected too."""
POSTINGS: Final = f"""
    select p.id, p.key, p.reference_kind, p.reference_id, p.trace_id, p.description,
        {MICROSECONDS.format("p.posted_at")} as posted_at, l.number as place, l.number::text as number,
        a.path, a.asset, a.exponent::text as exponent, l.minor::text as minor,
        {MICROSECONDS.format("l.posted_at")} as line_posted_at
    from (
        select * from payonce.postings where id > $1 and id <= $2 order by id limit greatest($3::bigint / 2, 1)
    ) p
    left join lateral (select * from payonce.posting_lines where posting_id = p.id order by number) l on true
    left join payonce.accounts a on a.id = l.account_id
    order by p.id limit $3
"""
"""A posting has at least two lines. The order inside the join makes the planner go posting by posting. With a plain
join, verification took ten times as long in a database without statistics, such as a restored one."""
SEQUENCE: Final = "payonce.postings_id_seq"
PLACE: Final = f"""
    concat_ws(' ', extract(epoch from pg_postmaster_start_time()),
        (select oid from pg_database where datname = current_database()), '{SEQUENCE}'::regclass::oid)
"""
"""Identifies the running server and the sequence: a mark is void after a restart, a failover or a restore."""

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PostingDigest:
    id: int
    key: str
    digest: bytes


@dataclass(frozen=True)
class LedgerSeal:
    number: int
    previous: bytes | None
    format: int
    postings: Sequence[int]
    digests: bytes
    sealed_at: str
    """Microseconds since 1970."""

    def hash(self) -> bytes:
        """Covers all fields of the seal, the previous seal, and the postings in order."""
        fields = (
            "payonce ledger seal",
            self.format,
            self.number,
            (self.previous or b"").hex(),
            len(self.postings),
            self.sealed_at,
        )
        ids = b"".join(posting.to_bytes(8, "big", signed=True) for posting in self.postings)
        return hashlib.sha256(encoded(*map(str, fields)) + ids + self.digests).digest()


def posting_digest(lines: Sequence[Any]) -> bytes:
    """Digest of one posting from its rows of POSTINGS: one row per line, or a single row if it has no lines."""
    posting = lines[0]
    ordered = sorted((line for line in lines if line["place"] is not None), key=itemgetter("place"))
    fields = [
        "payonce posting",
        str(LEDGER_FORMAT),
        str(posting["id"]),
        *(posting[name] for name in POSTING_FIELDS),
        str(len(ordered)),
        *(line[name] for line in ordered for name in LINE_FIELDS),
    ]
    return hashlib.sha256(encoded(*fields)).digest()


async def posting_digests(read: Reads, after: int, through: int, lines_max: int = BATCH_LINES) -> list[PostingDigest]:
    """The next postings after one id and up to another, with about `lines_max` lines in total and at least one posting.
    Empty when there are none."""
    rows = await read.fetch(POSTINGS, after, through, lines_max)
    postings = [list(group) for _, group in groupby(rows, key=itemgetter("id"))]
    if len(rows) == lines_max:
        cut = postings.pop()[0]["id"]
        if not postings:
            postings = [await read.fetch(POSTINGS, cut - 1, cut, LINES_OF_ANY_POSTING)]
    return [PostingDigest(lines[0]["id"], lines[0]["key"], posting_digest(lines)) for lines in postings]


async def ledger_head(read: Reads) -> Head:
    """The current end of the ledger's chain; number 0 while nothing is sealed."""
    row = await read.fetchrow("select number, hash from payonce.ledger_seals order by number desc limit 1")
    return NO_HEAD if row is None else Head(row["number"], bytes(row["hash"]))


@dataclass(frozen=True)
class _Mark:
    """All ids up to `posting` were assigned to transactions older than `xact`."""

    place: str
    posting: int
    xact: str


@dataclass
class LedgerSealer:
    """Seals the ledger over successive calls. Between calls it remembers the mark that older transactions still hold
    back."""

    database: Database
    batch_lines: int = BATCH_LINES
    batches_max: int = BATCHES_MAX
    unsealed_ids: int = 0
    """Ids assigned after the last seal, as of the last call. Some may never become postings."""
    _mark: _Mark | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.batch_lines < 1 or self.batches_max < 1:
            raise Invalid(
                f"batch_lines is {self.batch_lines} and batches_max {self.batches_max}; both are at least 1, "
                f"and a posting has up to {LINES_MAX} lines"
            )

    async def seal(self, lease: Lease) -> int:
        """Seals all final postings, one fenced transaction per seal; returns the number of postings. Raises Stale when
        the lease is lost."""
        sealed = await self._seal_to_mark(lease)
        if self._mark is None:
            # On an idle server the new mark is final at once; otherwise it usually is by the next call.
            self._mark = await self._take_mark()
            sealed += await self._seal_to_mark(lease)
        self.unsealed_ids = await self._count_unsealed_ids()
        if sealed:
            log.info("ledger_sealed", postings=sealed, unsealed_ids=self.unsealed_ids)
        return sealed

    async def _take_mark(self) -> _Mark | None:
        """None when no id was assigned after the last seal. The id is read first, in a statement of its own, so this
        transaction's number is higher than that of every transaction with an id up to there."""
        async with self.database.engine.acquire() as connection:
            last_id = await _last_id(connection)
            if last_id <= await _last_sealed(connection):
                return None
            row = await connection.fetchrow(f"select pg_current_xact_id()::text as xact, {PLACE} as place")
        assert row is not None
        return _Mark(row["place"], last_id, row["xact"])

    async def _seal_to_mark(self, lease: Lease) -> int:
        sealed = 0
        for _ in range(self.batches_max):
            if self._mark is None:
                break
            count = await self._seal_batch(lease, self._mark)
            if count is None:
                break
            sealed += count
        return sealed

    async def _seal_batch(self, lease: Lease, mark: _Mark) -> int | None:
        """The number of postings sealed; None while a transaction older than the mark is running."""
        async with self.database.engine.acquire() as connection, connection.transaction():
            await fence(connection, lease)
            end = await _end_of_chain(connection, mark)
            if end["place"] != mark.place:
                self._mark = None
                return 0
            if not end["final"]:
                return None
            postings = await posting_digests(connection, end["posting"] or 0, mark.posting, self.batch_lines)
            if not postings:
                self._mark = None
                return 0
            try:
                await _write(connection, end, postings)
            except asyncpg.UniqueViolationError as error:
                raise Stale(
                    f"ledger seal {(end['number'] or 0) + 1} was made by another process; nothing was written"
                ) from error
        return len(postings)

    async def _count_unsealed_ids(self) -> int:
        async with self.database.engine.acquire() as connection:
            return max(0, await _last_id(connection) - await _last_sealed(connection))


async def _last_id(connection: Connection) -> int:
    last: int = await connection.fetchval(f"select last_value - (not is_called)::integer from {SEQUENCE}")
    return last


async def _last_sealed(connection: Connection) -> int:
    last: int | None = await connection.fetchval(
        "select postings[cardinality(postings)] from payonce.ledger_seals order by number desc limit 1"
    )
    return last or 0


async def _end_of_chain(connection: Connection, mark: _Mark) -> Any:
    return await connection.fetchrow(
        f"""
        select {PLACE} as place, pg_snapshot_xmin(pg_current_snapshot()) >= $1::text::xid8 as final,
            clock.at, {MICROSECONDS.format("clock.at")} as at_us, last.number, last.hash,
            last.postings[cardinality(last.postings)] as posting
        from (select payonce.due_now() as at) clock
        left join (select * from payonce.ledger_seals order by number desc limit 1) last on true
        """,
        mark.xact,
    )


async def _write(connection: Connection, end: Any, postings: Sequence[PostingDigest]) -> None:
    previous = None if end["hash"] is None else bytes(end["hash"])
    seal = LedgerSeal(
        (end["number"] or 0) + 1,
        previous,
        LEDGER_FORMAT,
        [posting.id for posting in postings],
        b"".join(posting.digest for posting in postings),
        end["at_us"],
    )
    await connection.execute(
        """
        insert into payonce.ledger_seals (number, previous, format, postings, digests, hash, sealed_at)
        values ($1, $2, $3, $4, $5, $6, $7)
        """,
        seal.number,
        seal.previous,
        seal.format,
        seal.postings,
        seal.digests,
        seal.hash(),
        end["at"],
    )
