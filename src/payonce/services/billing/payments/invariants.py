"""Invariants of payments, as queries that return the violating rows."""

from typing import Final

FORGOTTEN_AFTER: Final = "interval '15 minutes'"
"""No work is between two messages for so long."""
PENDING_MAX: Final = "interval '1 day'"
UNDELIVERED_MAX: Final = "interval '1 hour'"
"""By then all attempts of the queue are over, and the message is parked."""

INVARIANTS: Final = {
    "refunds add up to the totals of their transaction": """
        select t.id, t.refunded_minor, t.refunding_minor from payments.transactions t
        left join payments.refunds r on r.transaction_id = t.id
        group by t.id
        having t.refunded_minor <> coalesce(sum(r.amount_minor) filter (where r.state = 'succeeded'), 0)
            or t.refunding_minor <> coalesce(sum(r.amount_minor) filter (where r.state = 'pending'), 0)
            or t.paid_out_minor <> coalesce(sum(r.amount_minor) filter (where r.from_credit and r.state <> 'failed'), 0)
    """,
    "credit held for plan changes is counted by its charges": """
        select t.id, t.credited_minor, sum(h.minor) as held from payments.transactions t
        join payments.credits_held h on h.transaction_id = t.id
        group by t.id having t.credited_minor < sum(h.minor)
    """,
    "no charge or refund is pending for longer than a day": f"""
        select id, 'charge' as what from payments.transactions
        where state = 'pending' and created_at < payonce.due_now() - {PENDING_MAX}
        union all
        select id, 'refund' from payments.refunds
        where state = 'pending' and created_at < payonce.due_now() - {PENDING_MAX}
    """,
    "the price of a trial is refunded, or being refunded": """
        select t.id, t.refunded_minor from payments.transactions t
        where t.action = 'trial' and t.state in ('succeeded', 'partially_refunded') and t.refunding_minor = 0
    """,
    "every pending charge and refund has a message": f"""
        select t.id, 'charge' as what from payments.transactions t
        where t.state = 'pending' and t.updated_at < payonce.due_now() - {FORGOTTEN_AFTER} and not exists (
            select from payonce.live_messages m where m.queue = 'q:pay:charge_initiation'
                and m.correlation_id = coalesce(t.subscription_id, t.id))
        union all
        select r.id, 'refund' from payments.refunds r join payments.transactions t on t.id = r.transaction_id
        where r.state = 'pending' and r.updated_at < payonce.due_now() - {FORGOTTEN_AFTER} and not exists (
            select from payonce.live_messages m where m.queue = 'q:pay:refund_initiation'
                and m.correlation_id = coalesce(t.subscription_id, t.id))
    """,
    "no notification is undelivered for longer than an hour": f"""
        select event_id, created_at from payments.notifications
        where delivered_at is null and created_at < payonce.due_now() - {UNDELIVERED_MAX}
    """,
    "every outcome is reported to subscriptions exactly once": """
        select t.id, t.state from payments.transactions t
        where t.action <> 'payment' and (t.state <> 'pending') <> (1 = (
            select count(*) from payments.notifications n where n.transaction_id = t.id and n.refund_id is null))
        union all
        select r.id, r.state from payments.refunds r join payments.transactions t on t.id = r.transaction_id
        where t.action <> 'payment' and (r.state <> 'pending') <> (1 = (
            select count(*) from payments.notifications n where n.refund_id = r.id))
    """,
    "the clearing balance is what was captured and not refunded": """
        select t.id, t.state from payments.transactions t
        where (t.state not in ('pending', 'failed')) <> exists (
                select from payonce.postings p
                join payonce.posting_lines l on l.posting_id = p.id
                join payonce.accounts a on a.id = l.account_id and a.path = 'billing/gateway_clearing'
                where p.reference_kind = 'billing_transaction' and p.reference_id = t.id
                    and l.minor = t.amount_minor and a.asset = t.currency and a.exponent = t.exponent)
        union all
        select r.id, r.state from payments.refunds r
        where (r.state = 'succeeded') <> exists (
                select from payonce.postings p
                join payonce.posting_lines l on l.posting_id = p.id
                join payonce.accounts a on a.id = l.account_id
                    and a.path = case when r.outside then 'billing/paid_outside' else 'billing/gateway_clearing' end
                where p.reference_kind = 'billing_refund' and p.reference_id = r.id and l.minor = -r.amount_minor)
    """,
    "no invoice is paid by two charges": """
        select invoice_id, count(*) from payments.transactions
        where invoice_id is not null and state in ('succeeded', 'partially_refunded')
        group by invoice_id having count(*) > 1
    """,
    "every capture and refund is a performed effect": """
        select t.id, t.gateway_id from payments.transactions t
        where t.state not in ('pending', 'failed') and not exists (
            select from payonce.effects e where e.kind = 'gateway.charge' and e.key = t.charge_key
                and e.state = 'performed' and e.vendor_ref = t.gateway_id)
        union all
        select r.id, r.gateway_id from payments.refunds r
        where r.state = 'succeeded' and not r.outside and not exists (
            select from payonce.effects e where e.kind = 'gateway.refund' and e.key = r.id
                and e.state = 'performed' and e.vendor_ref = r.gateway_id)
    """,
    "refunds outside the gateway have succeeded and have no order there": """
        select r.id, r.state, r.gateway_id from payments.refunds r
        where r.outside and (r.state <> 'succeeded' or exists (
            select from payonce.effects e where e.kind = 'gateway.refund' and e.key = r.id))
    """,
    "nothing has ended while its order at the gateway is open": """
        select t.id, t.state, e.state as effect from payments.transactions t
        join payonce.effects e on e.kind = 'gateway.charge' and e.key = t.charge_key
        where t.state <> 'pending' and e.state in ('intended', 'unknown', 'review')
        union all
        select r.id, r.state, e.state from payments.refunds r
        join payonce.effects e on e.kind = 'gateway.refund' and e.key = r.id
        where r.state <> 'pending' and e.state in ('intended', 'unknown', 'review')
    """,
}

SHARED_INVARIANTS: Final = {
    # A result that was applied but is not marked as delivered yet may be in transit or not; hence bounds, which hold at
    # any moment.
    "amounts in transit are those not yet reported to subscriptions": """
        with transit as (
            select a.asset, a.exponent, sum(l.minor) as minor
            from payonce.posting_lines l join payonce.accounts a on a.id = l.account_id
            where a.path = 'billing/captured' group by a.asset, a.exponent
        ), untold as (
            select t.currency as asset, t.exponent,
                coalesce(sum(t.amount_minor) filter (where n.refund_id is null and t.state <> 'failed'), 0) as charges,
                coalesce(sum(r.amount_minor) filter (where r.state = 'succeeded'), 0) as refunds
            from payments.notifications n join payments.transactions t on t.id = n.transaction_id
            left join payments.refunds r on r.id = n.refund_id
            where n.delivered_at is null group by t.currency, t.exponent
        )
        select asset, minor, charges, refunds from transit full join untold using (asset, exponent)
        where coalesce(minor, 0) not between -coalesce(charges, 0) and coalesce(refunds, 0)
    """,
}
"""Invariants of a ledger that subscriptions also writes: `billing/captured` is in transit between the two services."""

APART_INVARIANTS: Final = {
    "amounts captured for subscriptions are those reported to it": """
        with booked as (
            select a.asset, a.exponent, sum(l.minor) as minor
            from payonce.posting_lines l join payonce.accounts a on a.id = l.account_id
            where a.path = 'billing/captured' group by a.asset, a.exponent
        ), told as (
            select currency as asset, exponent, sum(refunded_minor - amount_minor) as minor
            from payments.transactions where action <> 'payment' and state not in ('pending', 'failed')
            group by currency, exponent
        )
        select asset, b.minor as booked, t.minor as told from booked b full join told t using (asset, exponent)
        where coalesce(b.minor, 0) <> coalesce(t.minor, 0)
    """,
}
"""Invariants of a ledger that only payments writes."""
