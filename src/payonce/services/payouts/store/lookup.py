"""Search for a payout by any of its identifiers, and the alert about payouts that wait for an operator."""

from typing import Any, Final

from payonce.engine.ledger.model import Reads
from payonce.engine.monitoring.attention import Attention
from payonce.engine.monitoring.causes import causes
from payonce.engine.monitoring.lookup import MATCHES_MAX, LookupResult
from payonce.services.payouts.domain.addresses import SEGWIT, hash_key, in_one_spelling
from payonce.services.payouts.store.queries import WITH_PEOPLE, is_installed

REASONS_READ_MAX: Final = 1_000
"""The newest waiting payouts that are read: enough to find the most frequent cause."""


async def find_payouts(read: Reads, what: str) -> list[LookupResult]:
    """Finds payouts by id, payment id, unique id, exchange, swap, transaction or address, newest first."""
    if not await is_installed(read):
        return []
    same = _in_one_spelling(what)
    rows = await read.fetch(
        f"""
        with found (id, matched, rank) as (
            select id, 'id', 1 from payouts.payouts where id = $1
            union all select id, 'payment id', 2 from payouts.payouts where payment_id = $1
            union all select id, 'unique id', 3 from payouts.payouts
                where unique_id = upper($1)::char(16) and length($1) = 16
            union all select payout_id, 'swap', 4 from payouts.shares where swap_id = $1
            union all select h.payout_id, 'exchange id', 5
                from payouts.swaps s join payouts.shares h on h.swap_id = s.id where s.cn_api_id = $1
            union all select h.payout_id, 'transaction', 6
                from payouts.wallet_attempts a join payouts.wallet_payments w using (wallet, nonce)
                join payouts.shares h on h.swap_id = w.swap_id where a.hash in ($1, $2)
            union all select h.payout_id, case when s.payout_hash = $2 then 'transaction to the client'
                else 'transaction' end, 6
                from payouts.swaps s join payouts.shares h on h.swap_id = s.id
                where s.payin_hash = $2 or s.payout_hash = $2
            union all select h.payout_id, 'transaction that came back', 7
                from payouts.refunds r join payouts.shares h on h.swap_id = r.swap_id where r.hash = lower($1)
            union all (select id, 'address', 8 from payouts.payouts
                where payouts.address_key(wallet_address) = $2
                order by created_at desc limit {MATCHES_MAX})
            union all (select h.payout_id, 'deposit address', 9
                from payouts.swaps s join payouts.shares h on h.swap_id = s.id
                where payouts.address_key(s.payin_address) = $2
                order by s.created_at desc limit {MATCHES_MAX}))
        select p.id, p.unique_id, p.state, n.matched from (
            select distinct on (id) id, matched from found order by id, rank) n
        join payouts.payouts p on p.id = n.id order by p.created_at desc, p.id desc limit {MATCHES_MAX}
        """,
        what,
        same,
    )
    return [_match(row) for row in rows]


def _in_one_spelling(what: str) -> str:
    """The canonical spelling: EVM hashes and addresses are case-insensitive and Bech32 may be in upper case; other
    chains are case-sensitive."""
    what = hash_key(what)
    for network in SEGWIT:
        what = in_one_spelling(network, what)
    return what


async def waiting_payouts(read: Reads) -> list[Attention]:
    """The alert about payouts that are held or in review."""
    if not await is_installed(read):
        return []
    # One statement: between two, the last payout might be released and leave no reason to show.
    waiting = await read.fetch(
        f"""
        select reason, count(*) over () as count from payouts.payouts where state in ('held', 'review')
        order by updated_at desc limit {REASONS_READ_MAX}
        """
    )
    if not waiting:
        return []
    most = causes(row["reason"] for row in waiting)[0]
    return [
        Attention(
            "Payouts held or in review",
            waiting[0]["count"],
            "only an operator can release them",
            "/payouts",
            {"state": WITH_PEOPLE},
            cause=most.example,
        )
    ]


def _match(row: Any) -> LookupResult:
    return LookupResult("payout", row["unique_id"], f"/payouts/{row['id']}", row["state"], row["matched"], row["id"])
