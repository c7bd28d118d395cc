"""Stored figures of past months, which avoid reading every invoice again, and the months of the console page.

A month is recomputed daily while the outcome of its last invoices may still change: dunning takes 14 days.
"""

from collections.abc import Sequence
from typing import Final

from payonce.engine.janitors import Every, Schedule
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.money import Asset
from payonce.services.billing.policies import BILLING_CLOCK
from payonce.services.billing.subscriptions.store import figures
from payonce.services.billing.subscriptions.store.figures import MONTHS_MAX, Month, month_from

KEEP: Final = "keep_figures"
KEPT_MAX: Final = MONTHS_MAX - 1
"""Past months; the current one is computed when it is shown."""
COUNTED_ANEW: Final = 2
"""The latest past months; all invoices of older ones have ended."""
COUNTED_EVERY: Final = "interval '1 day'"
LOOK_EVERY_S: Final = 3_600
_OVER: Final = """
    from subscriptions.kept_months
    where currency = $1 and exponent = $2 and begin_at < date_trunc('month', payonce.due_now(), 'UTC')
      and begin_at >= (date_trunc('month', payonce.due_now() at time zone 'UTC')
          - make_interval(months => $3::int)) at time zone 'UTC'"""
"""This number of months before the current one."""

FIGURES_SCHEDULES: Final = (Schedule("billing-figures", BILLING_CLOCK, every=Every(LOOK_EVERY_S), action=KEEP),)


async def months(read: Reads, count: int, asset: Asset, *, on_test_clocks: bool = False) -> list[Month]:
    """Oldest first, ending with the current month. Months that are not stored yet, and test clocks, are computed from
    the invoices."""
    wanted = min(count, MONTHS_MAX)
    if not on_test_clocks:
        over = await kept(read, wanted - 1, asset)
        if len(over) == wanted - 1:
            return [*over, await figures.running_month(read, asset)]
    return await figures.count_months(read, wanted, asset, on_test_clocks=on_test_clocks)


async def kept(read: Reads, count: int, asset: Asset) -> list[Month]:
    """The stored ones of the latest past months, oldest first."""
    rows = await read.fetch(
        f"select begin_at, recurring_minor as minor, running, won, lost {_OVER} order by begin_at",
        asset.code,
        asset.exponent,
        count,
    )
    return [month_from(row, asset) for row in rows]


@handles(BILLING_CLOCK, KEEP)
async def keep_figures(work: Work) -> None:
    """Computes outside the transaction: a repetition writes the same figures."""
    read, found = work.read, dict[Asset, Sequence[Month]]()
    for asset in await figures.currencies(read):
        if count := await _to_count(read, asset):
            found[asset] = (await figures.count_months(read, count + 1, asset))[:-1]
    async with work.commit() as tx:
        for asset, over in found.items():
            await _keep(tx, asset, over)


async def _to_count(read: Reads, asset: Asset) -> int:
    """How many months to recompute: all while one is missing, the latest ones once a day, otherwise none."""
    row = await read.fetchrow(
        f"""
        select count(*), coalesce(max(kept_at) > payonce.due_now() - {COUNTED_EVERY}, false) as fresh {_OVER}
        """,
        asset.code,
        asset.exponent,
        KEPT_MAX,
    )
    if row["count"] < KEPT_MAX:
        return KEPT_MAX
    return 0 if row["fresh"] else COUNTED_ANEW


async def _keep(tx: Tx, asset: Asset, over: Sequence[Month]) -> None:
    await tx.execute(
        """
        insert into subscriptions.kept_months (currency, exponent, begin_at, recurring_minor, running, won, lost)
        select $1, $2, * from unnest($3::timestamptz[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
        on conflict (currency, exponent, begin_at) do update
        set recurring_minor = excluded.recurring_minor, running = excluded.running, won = excluded.won,
            lost = excluded.lost, kept_at = excluded.kept_at
        """,
        asset.code,
        asset.exponent,
        [each.begin for each in over],
        [each.recurring.minor for each in over],
        [each.running for each in over],
        [each.won for each in over],
        [each.lost for each in over],
    )
