"""Comparison of ChangeNOW's list of our exchanges with our record, in both directions.

Exchanges that we cannot explain go through the engine's reconciliation into suspense. Deposits on our record that
ChangeNOW does not show as funded raise an alert once a day, since that money reaches nobody.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from payonce.engine.audit import Severity
from payonce.engine.ledger.model import Reads
from payonce.engine.messages.work import Work, handles
from payonce.engine.reconcile import Entry, Flow, StatementSource
from payonce.kit.log import get_logger
from payonce.kit.money import Amount, Rounding
from payonce.services.payouts.effects import CreateSwap
from payonce.services.payouts.handlers.prior_attempts import UNFUNDED, contradicts
from payonce.services.payouts.ledger import AT_EXCHANGE
from payonce.services.payouts.model import ETH, ETH_TICKER, REPLACED, SwapState
from payonce.services.payouts.policies import KEEPING
from payonce.vendors.changenow.port import PAGE_MAX, ChangeNow, Exchange, Status, same_address

RECONCILE_EVERY_S: Final = 600.0
LISTED_WITHIN_S: Final = 300.0
"""How late the list may show an exchange, by experience."""
COMPARED_AFTER_S: Final = 3_600.0
COMPARED_S: Final = 90_000.0
"""A little more than a day, so that no swap falls between two runs."""
REPLACED_COMPARED_S: Final = 7 * 86_400.0
"""An exchange that we gave up may be funded, or continue, days later; each run reports it."""
LISTED_STEP: Final = Decimal("1e-12")
"""Relative tolerance of amounts: the list shows fifteen digits, and an external GCHostPay pays the nearest double."""
COMPARE: Final = "compare_exchanges"

log = get_logger(__name__)


class ExchangesStatement(StatementSource):
    """Each funded exchange is one line: our money at the exchange. Unfunded exchanges moved nothing. A funded exchange
    of an abandoned generation is an unintended payment."""

    vendor = "changenow"
    kinds: Mapping[str, Flow] = {CreateSwap.kind: Flow.IN}
    mirror = AT_EXCHANGE
    lag_s = LISTED_WITHIN_S
    every_s = RECONCILE_EVERY_S

    def __init__(self, changenow: ChangeNow) -> None:
        self._changenow = changenow

    async def entries(self, since: datetime, until: datetime) -> AsyncIterator[Entry]:
        async for found in list_exchanges(self._changenow, since, until):
            if found.status in UNFUNDED or found.pair.from_currency != ETH_TICKER or not found.amount_from:
                continue
            yield Entry(found.id, found.payload or None, CreateSwap.kind, _wei(found.amount_from), found.created_at)

    async def expects(self, read: Reads, entry: Entry) -> bool:
        """Always false: every exchange of ours has its intent on record first."""
        return False


def statements(resources: Sequence[object]) -> list[StatementSource]:
    return [ExchangesStatement(each) for each in resources if isinstance(each, ChangeNow)]


async def list_exchanges(changenow: ChangeNow, since: datetime, until: datetime) -> AsyncIterator[Exchange]:
    offset = 0
    while page := await changenow.exchanges(since, until, offset, PAGE_MAX):
        for found in page:
            yield found
        if len(page) < PAGE_MAX:
            return
        offset += len(page)


@handles(KEEPING, COMPARE)
async def compare_exchanges(work: Work, changenow: ChangeNow) -> None:
    """The other direction: compares our deposits of the last day, and the swaps given up in the last week, with the
    exchange's list."""
    rows = await work.read.fetch(
        """
        select s.id, s.cn_api_id, s.state, s.created_at, s.amount_minor, s.address, p.state as payment,
            payonce.due_now() as now
        from payouts.swaps s left join payouts.wallet_payments p on p.swap_id = s.id
        where s.state in ('paid_in', 'finished', 'lapsed', 'returned') and not s.direct
          and s.updated_at between payonce.due_now() - make_interval(secs =>
                case when s.state in ('lapsed', 'returned') then $3::float8 else $1::float8 end)
                               and payonce.due_now() - make_interval(secs => $2::float8)
        order by s.created_at
        """,
        COMPARED_S,
        COMPARED_AFTER_S,
        REPLACED_COMPARED_S,
    )
    if not rows:
        return
    since, until = rows[0]["created_at"] - timedelta(hours=1), rows[0]["now"]
    shown = {found.id: found async for found in list_exchanges(changenow, since, until)}
    wrong = [(row, why) for row in rows if (why := disagreement(row, shown.get(row["cn_api_id"]))) is not None]
    async with work.commit() as tx:
        for row, why in wrong:
            log.error("exchange_disagrees", swap=row["id"], exchange=row["cn_api_id"], why=why)
            await tx.audit(
                "payouts.exchanges",
                row["id"],
                f"exchange {row['cn_api_id']}: {why}",
                actor="payouts",
                severity=Severity.ERROR,
            )


def disagreement(swap: Any, found: Exchange | None) -> str | None:
    """How the exchange contradicts our record of a swap; None if it does not."""
    if swap["state"] in REPLACED:
        if found is None or not contradicts(found.status, swap["payment"]):
            return None
        return f"we have it as {swap['state']} and may have paid another one, but the exchange has it as {found.status}"
    if found is None:
        return "we paid its deposit, but the exchange does not list it"
    if found.status in UNFUNDED:
        return f"we paid its deposit, but the exchange has it as {found.status}"
    if swap["state"] == SwapState.FINISHED and found.status is not Status.FINISHED:
        return f"we have it as finished, and the exchange as {found.status}"
    ours = Amount(int(swap["amount_minor"]), ETH).to_decimal()
    if found.amount_from is not None and abs(found.amount_from - ours) > ours * LISTED_STEP:
        return f"the exchange received {found.amount_from:f} ETH, but the swap is of {ours:f} ETH"
    if not same_address(found.payout_address, swap["address"]):
        return "the exchange pays another address than the client's"
    return None


def _wei(amount: Decimal) -> Amount:
    """Rounded, as the list shows fifteen digits; the effect has no amount to compare with."""
    return Amount(1, ETH).times(amount * 10**ETH.exponent, Rounding.HALF_EVEN)
