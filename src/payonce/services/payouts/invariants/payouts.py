"""Invariants of payouts: each query returns the rows that violate it."""

from typing import Final

from payonce.services.payouts.invariants.wallet import WALLET_INVARIANTS
from payonce.services.payouts.schedules import MESSAGES_OF_A_PAYOUT

FORGOTTEN_AFTER: Final = "interval '15 minutes'"
"""By then the janitor has run several times."""

INVARIANTS: Final = WALLET_INVARIANTS | {
    "fee and rest are the price": """
        select id from payouts.payouts where fee_minor + adjusted_minor <> price_minor
    """,
    "what is owed in the books is owed to payouts that are not at their end": """
        select p.id, p.state, owed.asset, owed.minor from payouts.payouts p
        cross join lateral (
            select a.asset, coalesce(sum(l.minor), 0) as minor
            from (values ('USDT', 6), ('ETH', 18)) a (asset, exponent)
            left join payonce.postings t on t.reference_kind = 'payout' and t.reference_id = p.id
            left join payonce.accounts c on c.asset = a.asset and c.exponent = a.exponent
                and (c.path = 'payouts/owed' or c.path like 'payouts/accumulated/%')
            left join payonce.posting_lines l on l.posting_id = t.id and l.account_id = c.id
            group by a.asset) owed
        where owed.minor <> case
            when p.state in ('rejected', 'refunded', 'finished') then 0
            when owed.asset = 'USDT' then case when p.value_minor is null then -p.adjusted_minor else 0 end
            when p.value_minor is null then 0
            else -p.value_minor + coalesce((
                select sum(h.amount_minor) from payouts.shares h join payouts.swaps s on s.id = h.swap_id
                where h.payout_id = p.id and s.state = 'finished'), 0) end
    """,
    "what accumulates is what the payouts in that state are worth": """
        select coalesce(sum(minor), 0) as books, (
            select coalesce(sum(value_minor), 0) from payouts.payouts where state = 'accumulating') as payouts
        from payonce.posting_lines l join payonce.accounts a on a.id = l.account_id
        where a.path like 'payouts/accumulated/%'
        having coalesce(sum(minor), 0) <> -(
            select coalesce(sum(value_minor), 0) from payouts.payouts where state = 'accumulating')
    """,
    "what is at the exchange is what was paid in and is not finished": """
        select coalesce(sum(minor), 0) as books from payonce.posting_lines l
        join payonce.accounts a on a.id = l.account_id where a.path = 'payouts/at_changenow'
        having coalesce(sum(minor), 0) <> (
            select coalesce(sum(s.amount_minor - coalesce((
                select sum(r.counted_minor) from payouts.refunds r where r.swap_id = s.id), 0)), 0)
            from payouts.swaps s where s.state = 'paid_in' and not s.direct)
    """,
    "parts add up to the value": """
        select p.id, p.value_minor, sum(t.amount_minor) as parts from payouts.payouts p
        join payouts.parts t on t.payout_id = p.id group by p.id having sum(t.amount_minor) <> p.value_minor
    """,
    "shares add up to their swap": """
        select s.id from payouts.swaps s left join payouts.shares h on h.swap_id = s.id
        group by s.id having coalesce(sum(h.amount_minor), 0) <> s.amount_minor
    """,
    "a share of an active swap is the whole part": """
        select h.swap_id, h.payout_id, h.part from payouts.shares h
        join payouts.parts t on t.payout_id = h.payout_id and t.part = h.part
        where h.active and h.amount_minor <> t.amount_minor
    """,
    "no part has two active swaps": """
        select payout_id, part from payouts.shares where active group by payout_id, part having count(*) > 1
    """,
    "every exchange on record is a performed effect": """
        select s.id, s.cn_api_id from payouts.swaps s
        where s.cn_api_id is not null and not s.direct and not exists (
            select from payonce.effects e where e.kind = 'changenow.create' and e.key = s.id
                and e.state = 'performed' and e.vendor_ref = s.cn_api_id)
    """,
    "hostpay knows only what is queued, and nothing else was replaced": """
        select s.id, s.state from payouts.swaps s
        where (s.triggered_at is not null and not exists (
                select from payouts.split_payout_que q where q.unique_id = s.unique_id and q.cn_api_id = s.cn_api_id))
           or (s.state in ('abandoned', 'lapsed') and exists (
                select from payouts.split_payout_hostpay h
                where h.unique_id = s.unique_id and h.cn_api_id = s.cn_api_id))
    """,
    "what was handed over to an external hostpay is on record as an effect, and what is an effect as handed over": """
        select s.id, s.state from payouts.swaps s
        where (s.handed_over_at is not null) <> exists (
            select from payonce.effects e where e.kind = 'hostpay.task' and e.key = s.id)
    """,
    "every payout that has a price has its request": """
        select p.id from payouts.payouts p
        where (p.value_minor is not null) <> exists (
            select from payouts.split_payout_request r where r.unique_id = p.unique_id)
    """,
    "every payout under way has a message, or gets one": f"""
        select p.id, p.state from payouts.payouts p
        where p.state in ('received', 'priced', 'swap_creating', 'swapped', 'paying', 'paid_in')
          and p.updated_at < payonce.due_now() - {FORGOTTEN_AFTER} and not exists ({MESSAGES_OF_A_PAYOUT})
    """,
    "every deposit at the exchange is looked at while a person has its payout, or will be": f"""
        select p.id, p.state from payouts.payouts p
        where p.state in ('held', 'review') and exists (
                select from payouts.shares h join payouts.swaps s on s.id = h.swap_id
                where h.payout_id = p.id and h.active and s.state = 'paid_in')
          and p.updated_at < payonce.due_now() - {FORGOTTEN_AFTER} and not exists ({MESSAGES_OF_A_PAYOUT})
    """,
}
