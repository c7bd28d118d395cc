"""Short ways to write to the ledger and read it, for the tests of the ledger."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from payonce.engine.ledger import Account, Posting, PostingId, Reference, audit_ledger, balance, moved, post
from payonce.engine.messages.transaction import Reader
from payonce.kit.money import Amount, well_known
from payonce.testing import ScratchDatabase, Stage

ETH = well_known("ETH")
USDT = well_known("USDT")
ORDER = Reference("payout", "17")
WALLET, CLIENTS, FEES = "payouts/host_wallet", "payouts/clients", "payouts/fees"


def eth(minor: int) -> Amount:
    return Amount(minor, ETH)


def usdt(minor: int) -> Amount:
    return Amount(minor, USDT)


def transfer(key: str, minor: int, source: str = CLIENTS, target: str = WALLET) -> Posting:
    return Posting(key, ORDER, moved(eth(minor), source, target))


async def posted(s: Stage, posting: Posting) -> PostingId:
    async with s.database.transaction() as connection:
        return await post(connection, posting)


async def held(s: Stage, path: str) -> int:
    return (await balance(Reader(s.database), Account(path, ETH))).minor


async def lines(s: Stage) -> list[tuple[int, str, str, int]]:
    rows = await s.owner.fetch(
        """
        select l.posting_id, a.path, a.asset, l.minor from payonce.posting_lines l
        join payonce.accounts a on a.id = l.account_id order by l.posting_id, l.number
        """
    )
    return [(row["posting_id"], row["path"], row["asset"], int(row["minor"])) for row in rows]


async def counts(s: Stage) -> tuple[int, int, int]:
    row = await s.owner.fetchrow(
        """
        select (select count(*) from payonce.postings), (select count(*) from payonce.posting_lines),
            (select count(*) from payonce.accounts)
        """
    )
    assert row is not None
    return row[0], row[1], row[2]


async def findings(s: Stage) -> dict[str, str]:
    return {finding.kind: finding.text for finding in await audit_ledger(Reader(s.database))}


@asynccontextmanager
async def unprotected(scratch: ScratchDatabase) -> AsyncIterator[asyncpg.Connection]:
    """A superuser whose statements fire no triggers, to damage the ledger despite all safeguards."""
    connection = await asyncpg.connect(scratch.superuser_url)
    try:
        await connection.execute("set session_replication_role = replica")
        yield connection
    finally:
        await connection.close()


async def plant(owner: asyncpg.Connection, function: str, sound: str, broken: str) -> None:
    """Replaces a part of a database function."""
    source = await owner.fetchval(
        "select pg_get_functiondef(oid) from pg_proc where pronamespace = 'payonce'::regnamespace and proname = $1",
        function,
    )
    assert source.count(sound) == 1, f"payonce.{function} no longer says {sound}"
    await owner.execute(source.replace(sound, broken))
