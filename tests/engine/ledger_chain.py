"""Short ways to seal and verify the ledger, for the tests of its chain."""

from payonce.engine.audit import Head, LedgerSealer, VerifiedLedger, ledger_head, verify_ledger
from payonce.engine.ledger import Account, guard
from payonce.engine.messages.model import Lease
from payonce.engine.messages.transaction import Reader
from payonce.testing import Stage, eventually
from tests.engine.audit_notes import leading
from tests.engine.ledger_books import CLIENTS, ETH, posted, transfer, unprotected

BUDGET = "budgets/marketing"
SEALED_WITHIN_S = 30.0


async def ledger_sealed(s: Stage, lease: Lease, count: int, batch_lines: int = 2_000) -> None:
    """Seals until this many postings are sealed: a transaction elsewhere on the server may delay the horizon for a
    moment."""
    sealer, done = LedgerSealer(s.database, batch_lines), 0

    async def enough() -> bool:
        nonlocal done
        done += await sealer.seal(lease)
        return done >= count

    await eventually(enough, SEALED_WITHIN_S, f"sealing {count} postings")
    assert done == count


async def sealed_ledger(s: Stage) -> list[Head]:
    """Three seals, over a and b, c, d, of which d moves money into a guarded account; and e, which is not sealed.
    Returns every head."""
    async with s.database.transaction() as connection:
        await guard(connection, Account(BUDGET, ETH))
    lease, heads = await leading(s), []
    for keys in (("a", "b"), ("c",), ("d",)):
        for key in keys:
            await posted(s, transfer(key, 10, CLIENTS, BUDGET) if key == "d" else transfer(key, 10))
        await ledger_sealed(s, lease, len(keys))
        heads.append(await ledger_head(Reader(s.database)))
    await posted(s, transfer("e", 10))
    assert [head.number for head in heads] == [1, 2, 3]
    return heads


async def verified_ledger(s: Stage, *heads: Head) -> VerifiedLedger:
    return await verify_ledger(Reader(s.database), heads)


async def kinds_found(s: Stage, *heads: Head) -> set[str]:
    return {finding.kind for finding in (await verified_ledger(s, *heads)).findings}


async def named(s: Stage) -> list[list[int]]:
    """The postings that each seal names."""
    rows = await s.owner.fetch("select postings from payonce.ledger_seals order by number")
    return [row["postings"] for row in rows]


async def tamper(s: Stage, damage: str) -> None:
    """With the rights of the database's owner: without triggers."""
    async with unprotected(s.scratch) as superuser:
        await superuser.execute(damage)
