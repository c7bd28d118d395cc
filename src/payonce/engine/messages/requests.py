"""Idempotent HTTP requests: an answer is stored under its idempotency key in the transaction that made it true."""

import hashlib
from dataclasses import dataclass
from typing import Final

from payonce.engine.database.connections import Database
from payonce.engine.messages.transaction import Tx
from payonce.kit.outcomes import PayonceError

KEPT_S: Final = 2 * 86_400.0
"""Clients are promised one day; the second allows for clock differences and for janitors that did not run."""
ANSWER_MAX_BYTES: Final = 1024 * 1024
FORGET_ANSWERS: Final = 5_000
FORGET_BATCHES_MAX: Final = 40


@dataclass(frozen=True)
class Kept:
    """An answer, identical the first time and every time after."""

    status: int
    body: bytes
    media_type: str = "application/json"
    location: str | None = None


class Busy(PayonceError):
    """A request with the same key is in progress."""


class Reused(PayonceError):
    """The key was used for another request."""


def fingerprint_of(method: str, path: str, query: bytes, body: bytes) -> bytes:
    """Identifies a request by everything that the caller determined, to the byte."""
    parts = (method.encode(), path.encode("utf-8", "surrogatepass"), query, body)
    lengths = b" ".join(str(len(part)).encode() for part in parts)
    return hashlib.sha256(lengths + b"\n" + b"".join(parts)).digest()


async def take(tx: Tx, caller: str, key: str, fingerprint: bytes) -> Kept | None:
    """The answer stored under the key; None when this transaction is to make it. The key is held until the transaction
    ends, in whatever way. Concurrent requests get Busy without waiting."""
    if not await tx.fetchval("select pg_try_advisory_xact_lock($1)", _lock_number(caller, key)):
        raise Busy("a request with this Idempotency-Key is in progress; repeat it to get its answer")
    # A separate statement, so that it sees what the previous holder of the lock committed.
    row = await tx.fetchrow(
        """
        select fingerprint, status, body, media_type, location, expires_at <= payonce.due_now() as over
        from payonce.http_answers where caller = $1 and key = $2
        """,
        caller,
        key,
    )
    if row is None:
        return None
    if row["over"]:
        await tx.execute("delete from payonce.http_answers where caller = $1 and key = $2", caller, key)
        return None
    if row["fingerprint"] != fingerprint:
        raise Reused("this Idempotency-Key was used for another request; a new request needs a new key")
    return Kept(row["status"], row["body"], row["media_type"], row["location"])


async def keep(tx: Tx, caller: str, key: str, fingerprint: bytes, answer: Kept, trace_id: str | None) -> None:
    assert len(answer.body) <= ANSWER_MAX_BYTES
    assert answer.status < 500, "answers to our own errors are not stored"
    await tx.execute(
        """
        insert into payonce.http_answers (caller, key, fingerprint, status, media_type, location, body, trace_id,
                                          expires_at)
        values ($1, $2, $3, $4, $5, $6, $7, $8, payonce.due_now() + make_interval(secs => $9::float8))
        """,
        caller,
        key,
        fingerprint,
        answer.status,
        answer.media_type,
        answer.location,
        answer.body,
        trace_id,
        KEPT_S,
    )


async def forget_answers(database: Database) -> int:
    """Deletes expired answers. Returns their number."""
    forgotten = 0
    for _ in range(FORGET_BATCHES_MAX):
        count = await _forget_batch(database)
        forgotten += count
        if count < FORGET_ANSWERS:
            break
    return forgotten


async def _forget_batch(database: Database) -> int:
    count: int = await database.engine.fetchval(
        """
        with over as (
            select caller, key from payonce.http_answers
            where expires_at <= payonce.due_now() order by expires_at limit $1
        ), forgotten as (
            delete from payonce.http_answers a using over where a.caller = over.caller and a.key = over.key
            returning true
        )
        select count(*) from forgotten
        """,
        FORGET_ANSWERS,
    )
    return count


def _lock_number(caller: str, key: str) -> int:
    """Two keys with the same number would at worst exclude each other for a moment: the row decides, not the lock."""
    named = f"http {len(caller)} {caller} {key}".encode()
    return int.from_bytes(hashlib.sha256(named).digest()[:8], "big", signed=True)
