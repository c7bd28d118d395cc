"""Invariants of credit, as queries that return the violating rows."""

from typing import Final

PAID_OUT_WITHIN: Final = "interval '1 day'"
"""By then all attempts of a message are over, and the gateway has forgotten its keys: an operator must decide."""

CREDIT_INVARIANTS: Final = {
    "credit granted is used, paid out, expired or left": """
        with sums as (
            select account_id, currency,
                sum(minor) filter (where kind in ('opening', 'granted', 'adjusted')) as granted,
                -sum(minor) filter (where kind = 'used') as used,
                -sum(minor) filter (where kind = 'paid_out') as paid_out,
                -sum(minor) filter (where kind = 'expired') as expired
            from subscriptions.credit_entries group by account_id, currency
        )
        select account_id, currency, s.granted, s.used, s.paid_out, s.expired, c.minor as left_minor
        from sums s full join subscriptions.credits c using (account_id, currency)
        where coalesce(s.granted, 0) <>
            coalesce(s.used, 0) + coalesce(s.paid_out, 0) + coalesce(s.expired, 0) + coalesce(c.minor, 0)
    """,
    "every credit entry has the balance of all entries up to it": """
        select id, account_id, balance_minor, running from (
            select e.id, e.account_id, e.balance_minor,
                sum(e.minor) over (partition by e.account_id, e.currency order by e.id) as running
            from subscriptions.credit_entries e) carried
        where balance_minor <> running
    """,
    "credit used is what invoices were paid with": """
        select i.id, i.number, i.state, i.credit_minor, -sum(e.minor) as used from subscriptions.credit_entries e
        join subscriptions.invoices i on i.id = e.invoice_id
        where e.kind = 'used' and exists (
            select from subscriptions.credit_entries f where f.invoice_id = i.id and f.entry_key = 'used:' || i.id)
        group by i.id having -sum(e.minor) <> case when i.state in ('open', 'paid') then i.credit_minor
            else least(i.credit_minor, greatest((
                select sum(l.earned_minor) from subscriptions.invoice_lines l where l.invoice_id = i.id), 0)) end
    """,
    "credit granted is what a plan change credited": """
        select e.id, e.minor, i.total_minor from subscriptions.credit_entries e
        left join subscriptions.invoices i on i.id = e.invoice_id
        where e.kind = 'granted' and i.total_minor is distinct from -e.minor
    """,
    "every credit payout has deducted its amount, unless it failed": """
        select p.id, p.state, p.amount_minor, coalesce(sum(e.minor), 0) as taken from subscriptions.credit_payouts p
        left join subscriptions.credit_entries e on e.payout_id = p.id
        group by p.id
        having coalesce(sum(e.minor), 0) <> case when p.state = 'failed' then 0 else -p.amount_minor end
    """,
    "credit being paid out is that of pending payouts": """
        select p.id, p.state, p.amount_minor, booked.minor from subscriptions.credit_payouts p
        cross join lateral (
            select coalesce(sum(l.minor), 0) as minor from payonce.postings o
            join payonce.posting_lines l on l.posting_id = o.id
            join payonce.accounts a on a.id = l.account_id and a.path = 'billing/credit_payout'
            where o.reference_kind = 'billing_credit_payout' and o.reference_id = p.id) booked
        where booked.minor <> case when p.state = 'pending' then -p.amount_minor else 0 end
    """,
    "a credit payout ends within a day": f"""
        select id, account_id, amount_minor from subscriptions.credit_payouts
        where state = 'pending' and created_at < payonce.due_now() - {PAID_OUT_WITHIN}
    """,
}
