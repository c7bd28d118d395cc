"""The payments of the built-in scenarios; each function contains its SQL."""

from collections.abc import Mapping
from typing import Final

import msgspec

from payonce.engine.ledger import Posting, Reference, moved
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.money import Amount, Asset
from payonce.kit.outcomes import Stale

EURO: Final = Asset("EUR", 2)

INVARIANTS: Final = {
    "every payment that is paid has a number, and no other has": """
        select id, state, number from crash.payments
        where (state in ('paid', 'crediting', 'credited', 'returning', 'returned')) <> (number is not null)
    """,
    "every payment is told of": "select id from crash.payments where state = 'paid' and not told",
    "every message is counted once": """
        select t.name, t.count from crash.totals t where t.count <> (
            select count(*) from payonce.job_logs l where l.queue = t.name and l.status = 'success')
    """,
}


class Payment(msgspec.Struct, frozen=True):
    id: str
    minor: int
    state: str
    number: str | None
    told: bool

    @property
    def amount(self) -> Amount:
        return Amount(self.minor, EURO)


async def add(tx: Tx, payments: Mapping[str, int]) -> None:
    await tx.execute(
        "insert into crash.payments (id, minor) select * from unnest($1::text[], $2::bigint[])",
        list(payments),
        list(payments.values()),
    )


async def payment(read: Reader, payment_id: str | None) -> Payment:
    row = await read.fetchrow("select id, minor, state, number, told from crash.payments where id = $1", payment_id)
    return Payment(**dict(row))


async def move(tx: Tx, payment_id: str, to: str, *expect: str, number: str | None = None) -> None:
    """Compare-and-set: raises Stale if the payment has changed since it was read."""
    moved_to = await tx.fetchval(
        """
        update crash.payments set state = $2, number = coalesce($4, number) where id = $1 and state = any($3)
        returning state
        """,
        payment_id,
        to,
        list(expect),
        number,
    )
    if moved_to is None:
        raise Stale(f"payment {payment_id} is not {' or '.join(expect)} any more")


async def tell(tx: Tx, payment_id: str) -> None:
    await tx.execute("update crash.payments set told = true where id = $1", payment_id)


async def count(tx: Tx, name: str) -> None:
    """Adds one. Only the message's commit prevents adding it twice."""
    await tx.execute(
        """
        insert into crash.totals as t (name, count) values ($1, 1)
        on conflict (name) do update set count = t.count + 1
        """,
        name,
    )


def posting(what: str, paid: Payment, source: str, target: str) -> Posting:
    return Posting(f"{what}:{paid.id}", Reference("payment", paid.id), moved(paid.amount, source, target))


async def states(read: Reads) -> dict[str, Payment]:
    rows = await read.fetch("select id, minor, state, number, told from crash.payments order by id")
    return {row["id"]: Payment(**dict(row)) for row in rows}


async def held(read: Reads, path: str) -> int:
    """The ledger's balance of an account, in minor units."""
    total = await read.fetchval("select coalesce(sum(balance), 0) from payonce.balances where path = $1", path)
    return int(total)
