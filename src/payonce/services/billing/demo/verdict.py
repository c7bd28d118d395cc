"""The verdict on a demo run, from the customers' scripts, the gateway's books and the ledger's balances."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from payonce.engine.ledger import audit_ledger
from payonce.engine.messages.transaction import Reader
from payonce.services.billing import INVARIANTS
from payonce.services.billing.demo.customers import PRICES, TRIAL, Customer
from payonce.vendors.gateway.books import GatewayBooks

CURRENCY: Final = "AED"
MINOR: Final = Decimal(100)
AT_REST: Final = ("billing/captured", "billing/receivable", "billing/unapplied", "billing/one_off")
"""Accounts that are empty once everything is settled."""
CLEARING: Final = "billing/gateway_clearing"


@dataclass(frozen=True)
class Verdict:
    customers: int
    periods_invoiced: int
    endings: Mapping[str, int]
    missed_periods: Sequence[str]
    double_invoiced: Sequence[str]
    """Invoices that no script expects, and periods with two."""
    double_charged: Sequence[str]
    """By the gateway: invoices captured more than once, and customers who paid more than their script costs."""
    unpaid: Sequence[str]
    """By the gateway: customers who paid less."""
    trial_refunds_missing: Sequence[str]
    misplaced: Sequence[str]
    """Subscriptions whose state differs from their script's."""
    unexplained: Mapping[str, Decimal]
    broken: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True)
class Record:
    """One customer in the subscription service's database."""

    state: str
    periods: Sequence[tuple[datetime, int]]
    """Start and amount of every invoice of a period."""
    changes: Sequence[int]


async def judge(
    read: Reader, books: GatewayBooks, cards: Mapping[str, set[str]], customers: Sequence[Customer]
) -> Verdict:
    records = await _records(read)
    missed, double, misplaced = compare(customers, records)
    double_charged, unpaid, refunds_missing = compare_gateway(customers, books, cards)
    return Verdict(
        len(customers),
        sum(len(record.periods) for record in records.values()),
        Counter(record.state for record in records.values()),
        missed,
        double,
        double_charged,
        unpaid,
        refunds_missing,
        misplaced,
        {CURRENCY: await _unexplained(read, books)},
        await _broken(read),
    )


def compare(customers: Sequence[Customer], records: Mapping[str, Record]) -> tuple[list[str], list[str], list[str]]:
    """Missed periods, surplus invoices, and subscriptions in another state than expected."""
    missed, double, misplaced = list[str](), list[str](), list[str]()
    for customer in customers:
        record, life = records.get(customer.id, Record("none", (), ())), customer.life
        named = f"{customer.id} ({customer.kind})"
        wanted = Counter((period.start, period.amount) for period in life.periods)
        found = Counter(record.periods)
        missed += [f"{named} {start:%Y-%m-%d %H:%M} of {amount}" for start, amount in (wanted - found).elements()]
        double += [f"{named} {start:%Y-%m-%d %H:%M} of {amount}" for start, amount in (found - wanted).elements()]
        if sorted(record.changes) != sorted(life.changes):
            double.append(f"{named} paid {list(record.changes)} for plan changes, not {list(life.changes)}")
        if record.state != life.ending:
            misplaced.append(f"{named} is {record.state}, not {life.ending}")
    return missed, double, misplaced


def compare_gateway(
    customers: Sequence[Customer], books: GatewayBooks, cards: Mapping[str, set[str]]
) -> tuple[list[str], list[str], list[str]]:
    """Customers charged too much, customers charged too little, and trials that were not refunded exactly once."""
    captured, refunds = Counter[str](), defaultdict[str, list[int]](list)
    for entry in books.charges.values():
        captured[entry.payment_method] += entry.captured
    for refund in books.refunds.values():
        refunds[books.charges[refund.charge].payment_method].append(refund.amount)
    more = [f"invoice {each}: {times} captures" for each, times in books.captures_per_invoice().items() if times > 1]
    less, missing = list[str](), list[str]()
    for customer in customers:
        mine = cards[customer.id]
        paid, wanted = sum(captured[card] for card in mine), customer.life.captured
        if paid != wanted:
            (more if paid > wanted else less).append(f"{customer.id} ({customer.kind}): {paid} captured, not {wanted}")
        given_back = [amount for card in mine for amount in refunds[card]]
        if given_back != ([PRICES[TRIAL]] if customer.life.tries else []):
            missing.append(f"{customer.id} ({customer.kind}): {given_back} refunded")
    return more, less, missing


async def _records(read: Reader) -> dict[str, Record]:
    rows = await read.fetch(
        """
        select s.account_id, s.state, i.period, i.period_start, i.total_minor
        from subscriptions.subscriptions s left join subscriptions.invoices i on i.subscription_id = s.id
        """
    )
    found: dict[str, Any] = {}
    for row in rows:
        _, periods, changes = found.setdefault(row["account_id"], (row["state"], [], []))
        if row["period"] is not None:
            periods.append((row["period_start"], row["total_minor"]))
        elif row["total_minor"] is not None:
            changes.append(row["total_minor"])
    return {account: Record(*parts) for account, parts in found.items()}


async def _unexplained(read: Reader, books: GatewayBooks) -> Decimal:
    """The difference between our books and the gateway's, plus balances that should be zero."""
    rows = await read.fetch(
        """
        select a.path, sum(l.minor) as minor from payonce.posting_lines l join payonce.accounts a on a.id = l.account_id
        where a.asset = $1 group by a.path
        """,
        CURRENCY,
    )
    ours = {row["path"]: int(row["minor"]) for row in rows}
    theirs = sum(line.amount for line in books.lines if line.currency == CURRENCY)
    left = sum(abs(ours.get(path, 0)) for path in AT_REST)
    return (abs(ours.get(CLEARING, 0) - theirs) + left + abs(sum(ours.values()))) / MINOR


async def _broken(read: Reader) -> list[str]:
    found = [f"{name}: {len(rows)} rows" for name, query in INVARIANTS.items() if (rows := await read.fetch(query))]
    parked = await read.fetch("select queue, last_error from payonce.live_messages where state = 'parked' limit 20")
    found += [f"a message of {row['queue']} is parked: {row['last_error']}" for row in parked]
    return found + [f"{finding.kind}: {finding.text}" for finding in await audit_ledger(read)]
