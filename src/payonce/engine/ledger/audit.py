"""Invariants of the ledger. Each is one query that returns nothing when the ledger is sound."""

from dataclasses import dataclass
from typing import Final

from payonce.engine.ledger.model import Reads

FINDINGS_MAX: Final = 100
"""Per kind; a hundred findings are enough to act on."""


WAY_OUT: Final = (
    "rows were written without payonce.post and payonce.post_all: stop whatever posts to these accounts, find "
    "out who can write as the owner, compare with a backup, and correct with a posting, never by editing rows"
)


@dataclass(frozen=True, slots=True)
class Finding:
    kind: str
    text: str
    way_out: str = ""
    """The remedy."""


async def audit_ledger(read: Reads) -> list[Finding]:
    """Empty when the ledger is sound. Each check is one statement, so postings may continue meanwhile."""
    return [finding for kind in CHECKS for finding in await check_books(read, kind)]


async def check_books(read: Reads, kind: str) -> list[Finding]:
    """Runs one of CHECKS."""
    rows = await read.fetch(f"{CHECKS[kind]} limit {FINDINGS_MAX}")
    return [Finding(kind, row["finding"], WAY_OUT) for row in rows]


CHECKS: Final = {
    "unbalanced posting": """
        select format('posting %s (%s) does not add up to zero: %s minor units of %s too much',
            l.posting_id, min(p.key), sum(l.minor), a.asset) as finding
        from payonce.posting_lines l
        join payonce.accounts a on a.id = l.account_id
        left join payonce.postings p on p.id = l.posting_id
        group by l.posting_id, a.asset, a.exponent having sum(l.minor) <> 0
    """,
    "incomplete posting": """
        select format('posting %s (%s) has %s lines and needs at least two', p.id, p.key, count(l.number)) as finding
        from payonce.postings p left join payonce.posting_lines l on l.posting_id = p.id
        group by p.id having count(l.number) < 2
    """,
    "stray line": """
        select format('line %s of posting %s belongs to no posting or no account on record', l.number, l.posting_id)
            as finding
        from payonce.posting_lines l
        where not exists (select from payonce.postings p where p.id = l.posting_id)
           or not exists (select from payonce.accounts a where a.id = l.account_id)
    """,
    "unbalanced asset": """
        select format('all lines in %s with %s decimals add up to %s minor units instead of zero',
            a.asset, a.exponent, sum(l.minor)) as finding
        from payonce.posting_lines l join payonce.accounts a on a.id = l.account_id
        group by a.asset, a.exponent having sum(l.minor) <> 0
    """,
    "wrong balance": """
        select format('account %s shows %s minor units of %s, and its lines add up to %s',
            b.path, b.balance, b.asset, coalesce(l.total, 0)) as finding
        from payonce.balances b
        left join (select account_id, sum(minor) as total from payonce.posting_lines group by account_id) l
            on l.account_id = b.account_id
        where b.balance <> coalesce(l.total, 0)
    """,
    "wrong guarded balance": """
        select format('guarded account %s is kept at %s minor units of %s, and its lines add up to %s',
            a.path, coalesce(g.balance::text, 'no balance'), a.asset, coalesce(l.total, 0)) as finding
        from payonce.accounts a
        full join payonce.guarded_balances g on g.account_id = a.id
        left join (select account_id, sum(minor) as total from payonce.posting_lines group by account_id) l
            on l.account_id = a.id
        where (a.guarded or g.account_id is not null)
          and (a.guarded is not true or g.balance is distinct from coalesce(l.total, 0))
    """,
    "guarded balance outside its limits": """
        select format('guarded account %s is at %s minor units of %s, outside its limits', a.path, g.balance, a.asset)
            as finding
        from payonce.guarded_balances g join payonce.accounts a on a.id = g.account_id
        where g.balance < g.minimum or g.balance > g.maximum
    """,
    "wrong snapshot": """
        with intervals as (
            select s.account_id, s.horizon, s.balance, coalesce(lag(s.horizon) over earlier, '0') as begins
            from payonce.balance_snapshots s
            window earlier as (partition by s.account_id order by s.horizon)
        ), summed as (
            select i.account_id, i.horizon, i.balance, sum(added.minor) over (
                partition by i.account_id order by i.horizon) as total
            from intervals i cross join lateral (
                select coalesce(sum(l.minor), 0) as minor from payonce.posting_lines l
                where l.account_id = i.account_id and l.xact >= i.begins and l.xact < i.horizon) added
        )
        select format('the snapshot of account %s below transaction %s says %s minor units, and its lines add up to %s',
            coalesce(a.path, s.account_id::text), s.horizon, s.balance, s.total) as finding
        from summed s left join payonce.accounts a on a.id = s.account_id
        where s.balance <> s.total
    """,
    "foreign transaction": """
        select format('%s was written by transaction %s, which this server has not counted to yet: '
            'as its owner run select payonce.rebase_ledger()', place, xact) as finding
        from (
            select format('posting %s', posting_id) as place, xact from payonce.posting_lines
            union all
            select format('a snapshot of account %s', account_id), horizon from payonce.balance_snapshots
        ) written
        where xact > pg_snapshot_xmax(pg_current_snapshot())
    """,
}
