"""Sets of postings written in one call, for the tests of such sets."""

from collections.abc import Sequence
from typing import Any

from payonce.engine.database.connections import Connection
from payonce.engine.ledger import Posting, PostingId
from payonce.engine.ledger.postings import post_all
from payonce.testing import Stage, eventually

POST_ALL = "select payonce.post_all($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"


async def write_set(connection: Connection, *postings: Posting) -> list[PostingId]:
    return await post_all(connection, postings)


async def set_posted(s: Stage, *postings: Posting) -> list[PostingId]:
    async with s.database.transaction() as connection:
        return await write_set(connection, *postings)


def arguments(**other: Any) -> list[Any]:
    """Of the function itself: two sound postings over two accounts, where nothing else is said."""
    sound = {
        "keys": ["a", "b"],
        "kinds": ["payout", "payout"],
        "references": ["1", "2"],
        "traces": [None, None],
        "words": ["", ""],
        "paths": ["x", "y"],
        "assets": ["ETH", "ETH"],
        "exponents": [18, 18],
        "postings": [1, 1, 2, 2],
        "accounts": [1, 2, 1, 2],
        "minors": [5, -5, 7, -7],
    }
    assert set(other) <= set(sound)
    return list({**sound, **other}.values())


async def waiting(s: Stage, sessions: int) -> None:
    """Until this many sessions wait for a lock in this database."""

    async def found() -> bool:
        count: int = await s.owner.fetchval(
            """
            select count(distinct pid) from pg_locks join pg_stat_activity using (pid)
            where not granted and datname = current_database()
            """
        )
        return count == sessions

    await eventually(found)


async def everything_written(s: Stage, name: str) -> Sequence[Any]:
    """Postings, lines and guarded balances with a name prefix, without the prefix and ids, in the order of ids."""
    rows = await s.owner.fetch(
        """
        select substr(p.key, length($1) + 1), p.reference_kind, p.reference_id, p.trace_id, p.description,
            l.number, substr(a.path, length($1) + 1), a.asset, a.exponent, l.minor, l.posted_at = p.posted_at,
            l.xact is null
        from payonce.postings p left join payonce.posting_lines l on l.posting_id = p.id
        left join payonce.accounts a on a.id = l.account_id
        where starts_with(p.key, $1) order by p.id, l.number
        """,
        name,
    )
    guarded = await s.owner.fetch(
        """
        select substr(a.path, length($1) + 1), a.asset, a.exponent, g.balance
        from payonce.guarded_balances g join payonce.accounts a on a.id = g.account_id
        where starts_with(a.path, $1) order by 1, 2, 3
        """,
        name,
    )
    return [*map(tuple, rows), *map(tuple, guarded)]
