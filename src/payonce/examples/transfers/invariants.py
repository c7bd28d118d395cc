"""Invariants, as queries that return violating rows."""

from typing import Final

INVARIANTS: Final = {
    "the money we hold is owed to the transfers it belongs to": """
        select t.id, t.state, coalesce(sum(l.minor), 0) as in_transit
        from transfers.transfers t
        left join payonce.postings p on p.reference_kind = 'transfer' and p.reference_id = t.id
        left join payonce.posting_lines l on l.posting_id = p.id
            and l.account_id in (select id from payonce.accounts where path = 'transfers/in_transit')
        group by t.id
        having coalesce(sum(l.minor), 0) <> case
            when t.state in ('withdrawn', 'paying', 'bounced', 'refunding', 'held') then -t.amount_minor else 0 end
    """,
    "each step that happened is in the books once": """
        select t.id, t.state from transfers.transfers t
        where num_nonnulls(t.withdrawal_id, t.payment_id, t.refund_id) <> (
            select count(*) from payonce.postings p where p.reference_kind = 'transfer' and p.reference_id = t.id)
    """,
    "each step that happened is a performed effect": """
        select t.id, step.kind from transfers.transfers t
        cross join lateral (values
            ('northbank.withdraw', t.id || '/withdraw', t.withdrawal_id),
            ('southbank.pay_in', t.id || '/pay-in', t.payment_id),
            ('northbank.refund', t.id || '/refund', t.refund_id)) as step (kind, key, vendor_ref)
        where step.vendor_ref is not null and not exists (
            select from payonce.effects e
            where e.kind = step.kind and e.key = step.key and e.state = 'performed' and e.vendor_ref = step.vendor_ref)
    """,
    "no transfer is both paid and refunded": """
        select id from transfers.transfers where payment_id is not null and refund_id is not null
    """,
    "no transfer has ended while an order of it is open": """
        select t.id, t.state, e.kind, e.state as effect from transfers.transfers t
        join payonce.effects e on e.scope = 'transfer:' || t.id
        where t.state in ('refused', 'paid', 'refunded', 'held') and e.state in ('intended', 'unknown', 'review')
    """,
    "every transfer under way has a message": """
        select t.id, t.state from transfers.transfers t
        where t.state not in ('refused', 'paid', 'refunded', 'held') and not exists (
            select from payonce.live_messages m where m.correlation_id = t.id and m.queue like 'transfers-%')
    """,
}
