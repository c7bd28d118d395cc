"""Invariants of subscriptions, as queries that return the violating rows."""

from typing import Final

from payonce.services.billing.subscriptions.store.allowance_windows import OUTDATED

UNPUT_AFTER: Final = "interval '1 hour'"
"""By then the schedule has run sixty times."""
RETURNED_WITHIN: Final = "interval '1 day'"
"""A requested refund that does not arrive is requested again every quarter of an hour."""

ANSWERED_WITHIN: Final = "interval '1 day'"
"""By then all attempts of a message are over, and the gateway has forgotten its keys: an operator must decide."""
PUT_RIGHT_WITHIN: Final = "interval '1 hour'"
"""By then the repair has run four times."""
MOVES_WITHIN: Final = "interval '1 hour'"
"""A test clock with a target is advanced every minute."""

_LEDGER: Final = """
    select coalesce(sum(l.minor), 0) from payonce.posting_lines l join payonce.accounts a on a.id = l.account_id"""

INVARIANTS: Final = {
    "every period that began has exactly one invoice": """
        select s.id, n.period from subscriptions.subscriptions s
        cross join lateral generate_series(0, s.period) n (period)
        where s.anchor_at is not null and (
            select count(*) from subscriptions.invoices i
            where i.subscription_id = s.id and i.period = n.period
              and (i.state <> 'void' or s.state in ('canceled', 'incomplete_expired'))) <> 1
    """,
    "no invoice belongs to a period that has not begun": """
        select i.id, i.period, s.period as running from subscriptions.invoices i
        join subscriptions.subscriptions s on s.id = i.subscription_id where i.period > s.period
    """,
    "an invoice is the sum of its lines": """
        select i.id, i.total_minor, sum(l.amount_minor) as lines from subscriptions.invoices i
        left join subscriptions.invoice_lines l on l.invoice_id = i.id
        group by i.id having i.total_minor is distinct from sum(l.amount_minor)
    """,
    "numbers have no gaps": """
        with numbers as (
            select substring(number from '^(.*)-[0-9]{4}-[0-9]+$') as series,
                substring(number from '-([0-9]{4})-[0-9]+$')::int as year,
                substring(number from '([0-9]+)$')::int as n
            from (select number from subscriptions.invoices union all
                  select number from subscriptions.credit_notes) given
        ), counted as (
            select series, year, count(*) as given, max(n) as highest from numbers group by series, year
        )
        select coalesce(c.series, t.series) as series, coalesce(c.year, t.year) as year, c.given, c.highest, t.last
        from counted c full join subscriptions.number_series t on t.series = c.series and t.year = c.year
        where c.given is distinct from c.highest or c.highest is distinct from t.last
    """,
    "a paid invoice has its transaction, or nothing was due": """
        select id from subscriptions.invoices
        where state = 'paid' and (transaction_id is null) <> (due_minor = 0)
    """,
    "receivables are the open invoices' amounts due": """
        select i.id, i.state, i.due_minor, booked.minor from subscriptions.invoices i
        cross join lateral (
            select coalesce(sum(l.minor), 0) as minor from payonce.postings p
            join payonce.posting_lines l on l.posting_id = p.id
            join payonce.accounts a on a.id = l.account_id and a.path = 'billing/receivable'
            where p.reference_kind = 'billing_invoice' and p.reference_id = i.id) booked
        where booked.minor <> case when i.state = 'open' then i.due_minor else 0 end
    """,
    "deferred revenue is what is billed and not earned": """
        select i.id, i.state, booked.minor from subscriptions.invoices i
        cross join lateral (
            select coalesce(sum(l.minor), 0) as minor from payonce.postings p
            join payonce.posting_lines l on l.posting_id = p.id
            join payonce.accounts a on a.id = l.account_id and a.path = 'billing/deferred'
            where p.reference_kind = 'billing_invoice' and p.reference_id = i.id) booked
        where booked.minor <> case when i.state in ('open', 'paid') then (
            select sum(l.earned_minor - l.amount_minor) from subscriptions.invoice_lines l where l.invoice_id = i.id)
            else 0 end
    """,
    "revenue is what the lines have earned": f"""
        select sums.asset, sums.booked, sums.earned from (
            select i.currency as asset, sum(l.earned_minor) as earned, -({_LEDGER}
                where a.path = 'billing/revenue' and a.asset = i.currency) as booked
            from subscriptions.invoices i join subscriptions.invoice_lines l on l.invoice_id = i.id
            group by i.currency) sums
        where sums.booked <> sums.earned
    """,
    "paid invoices are fully earned in the end": """
        select i.id, l.line from subscriptions.invoices i join subscriptions.invoice_lines l on l.invoice_id = i.id
        where i.state = 'paid' and i.earn_at is null and l.earned_minor <> l.amount_minor
    """,
    "customers' credit is what the ledger owes them": f"""
        select sums.currency, sums.owed, sums.booked from (
            select c.currency, sum(c.minor) as owed, -({_LEDGER}
                where a.path = 'billing/credit' and a.asset = c.currency) as booked
            from subscriptions.credits c group by c.currency) sums
        where sums.owed <> sums.booked
    """,
    "refunds are their credit notes": f"""
        select sums.currency, sums.noted, sums.booked from (
            select i.currency, sum(n.amount_minor) as noted, ({_LEDGER}
                where a.path = 'billing/refunds' and a.asset = i.currency) as booked
            from subscriptions.credit_notes n join subscriptions.invoices i on i.id = n.invoice_id
            where n.refund_id is not null group by i.currency) sums
        where sums.noted <> sums.booked
        union all
        select i.id, i.refunded_minor, sum(n.amount_minor) from subscriptions.invoices i
        left join subscriptions.credit_notes n on n.invoice_id = i.id and n.refund_id is not null
        group by i.id having i.refunded_minor <> coalesce(sum(n.amount_minor), 0)
    """,
    "money without a matching invoice is recorded and being refunded": f"""
        select transaction_id, reason, amount_minor - returned_minor as minor from subscriptions.unapplied_payments
        where returned_minor < amount_minor
          and (not refund_asked or created_at < payonce.due_now() - {RETURNED_WITHIN})
        union all
        select 'the books', 'billing/unapplied is another amount than what is named', sums.booked from (
            select ({_LEDGER} where a.path = 'billing/unapplied') + (
                select coalesce(sum(amount_minor - returned_minor), 0) from subscriptions.unapplied_payments) as booked
        ) sums where sums.booked <> 0
    """,
    "an unpaid invoice belongs to an unpaid subscription": """
        select s.id, s.state, i.id as invoice, i.state as invoice_state from subscriptions.subscriptions s
        join subscriptions.invoices i on i.subscription_id = s.id
        where (i.state = 'open' and s.state in ('canceled', 'incomplete_expired', 'paused'))
           or (i.state = 'open' and not i.charging and i.period is not null
               and s.state not in ('incomplete', 'past_due'))
           or (i.state = 'open' and not i.charging and i.period is null)
    """,
    "a past due subscription waits for a dunning day or an answer": """
        select s.id from subscriptions.subscriptions s
        where s.state = 'past_due' and (s.due_for is distinct from 'dun') = not exists (
            select from subscriptions.invoices i where i.subscription_id = s.id and i.state = 'open' and i.charging)
    """,
    "due work is enqueued within an hour": f"""
        select s.id, s.due_at, s.due_for from subscriptions.subscriptions s
        where s.due_at < payonce.due_now() - {UNPUT_AFTER} and s.test_clock_id is null
          and s.put_for is distinct from s.due_at and (s.due_for in ('expire', 'dun') or not exists (
            select from subscriptions.invoices i where i.subscription_id = s.id and i.state = 'open'))
    """,
    "enqueued work is processed within a day": f"""
        select s.id, s.due_at, s.due_for from subscriptions.subscriptions s
        left join subscriptions.test_clocks c on c.id = s.test_clock_id
        where s.put_for = s.due_at and coalesce(c.updated_at, s.due_at) < payonce.due_now() - {ANSWERED_WITHIN}
    """,
    "a requested charge is answered within a day": f"""
        select i.id, i.number, i.generation, i.updated_at from subscriptions.invoices i
        where i.state = 'open' and i.charging and i.updated_at < payonce.due_now() - {ANSWERED_WITHIN}
    """,
    "the price of a trial is refunded within a day": f"""
        select i.id, i.number, i.refunding from subscriptions.invoices i
        where i.action = 'trial' and i.state = 'paid' and i.refunded_minor < i.due_minor
          and (not i.refunding or i.updated_at < payonce.due_now() - {ANSWERED_WITHIN})
    """,
    "an accepted plan change ends": f"""
        select c.id, c.subscription_id, c.at_period_end, c.to_plan_id from subscriptions.plan_changes c
        join subscriptions.subscriptions s on s.id = c.subscription_id
        where c.state = 'pending' and (
            s.state in ('incomplete_expired', 'canceled')
            or (c.at_period_end and s.next_plan_id is distinct from c.to_plan_id)
            or (not c.at_period_end and c.created_at < payonce.due_now() - {ANSWERED_WITHIN} and not exists (
                select from subscriptions.invoices i where i.id = c.id and i.state = 'open'))
            or exists (select from subscriptions.invoices i where i.id = c.id and i.state <> 'open'))
    """,
    "limits reset as the plan says": f"""
        select s.id, s.plan_id, s.period_start, s.allowance_starts[1] as first_window {OUTDATED}
          and s.updated_at < payonce.due_now() - {PUT_RIGHT_WITHIN}
    """,
    "a test clock with work to do advances within an hour": f"""
        select c.id, c.now_at, c.target_at from subscriptions.test_clocks c
        where c.updated_at < payonce.due_now() - {MOVES_WITHIN} and (c.target_at > c.now_at or exists (
            select from subscriptions.subscriptions s
            where s.test_clock_id = c.id and s.due_at <= c.now_at and s.put_for is distinct from s.due_at))
    """,
    "revenue is recognised within a day of its time": f"""
        select i.id, i.number, i.earn_at from subscriptions.invoices i
        join subscriptions.subscriptions s on s.id = i.subscription_id
        left join subscriptions.test_clocks c on c.id = s.test_clock_id
        where i.earn_at < coalesce(c.now_at, payonce.due_now()) - {ANSWERED_WITHIN}
          and i.updated_at < payonce.due_now() - {ANSWERED_WITHIN}
    """,
    "every payment event was processed": """
        select id, event_id, error_message from subscriptions.payment_webhook_requests where not processed
    """,
}

APART_INVARIANTS: Final = {
    "what was captured is what invoices were paid, and what is being refunded": """
        with booked as (
            select a.asset, sum(l.minor) as minor
            from payonce.posting_lines l join payonce.accounts a on a.id = l.account_id
            where a.path = 'billing/captured' group by a.asset
        ), applied as (
            select asset, sum(minor) as minor from (
                select currency as asset, due_minor - refunded_minor as minor from subscriptions.invoices
                where transaction_id is not null
                union all
                select currency, amount_minor - returned_minor from subscriptions.unapplied_payments
                union all
                select currency, -amount_minor from subscriptions.credit_payouts
                where way = 'card' and state = 'succeeded') each group by asset
        )
        select asset, b.minor as booked, a.minor as applied from booked b full join applied a using (asset)
        where coalesce(b.minor, 0) <> coalesce(a.minor, 0)
    """,
}
"""Invariants of a ledger that only subscriptions writes."""
