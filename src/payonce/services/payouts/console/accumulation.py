"""Payouts below the exchange's minimum, by client: their total, the missing amount, and since when they wait."""

from dataclasses import dataclass

from starlette.responses import Response

from payonce.console.forms import PAGE_ROWS
from payonce.console.links import link
from payonce.console.page import Visit
from payonce.console.reads import bounded
from payonce.kit.money import Amount
from payonce.services.payouts.store import queries
from payonce.services.payouts.store.minimums import minimums
from payonce.services.payouts.store.queries import AccumulatingClient


@dataclass(frozen=True)
class AccumulationRow:
    client: AccumulatingClient
    least: Amount | None
    """None if unknown."""
    href: str

    @property
    def missing(self) -> Amount | None:
        if self.least is None:
            return None
        return Amount(max(0, self.least.minor - self.client.value.minor), self.least.asset)

    @property
    def percent(self) -> int:
        if self.least is None or self.least.minor == 0:
            return 0
        return min(100, self.client.value.minor * 100 // self.least.minor)


async def show_accumulation(visit: Visit) -> Response:
    """Does not refresh by itself: each request calls the exchange."""
    async with bounded(visit) as read:
        clients = await queries.accumulated(read, PAGE_ROWS + 1)
    shown = clients[:PAGE_ROWS]
    least = await minimums(visit.context.resources, [(each.payout_currency, each.payout_network) for each in shown])
    rows = [
        AccumulationRow(
            each,
            least.get((each.payout_currency, each.payout_network)),
            link(
                "/payouts",
                state="accumulating",
                currency=each.payout_currency,
                network=each.payout_network,
                wallet=each.wallet_address,
            ),
        )
        for each in shown
    ]
    return visit.page("payouts/accumulation.html", "Accumulating by client", rows=rows, more=len(clients) > PAGE_ROWS)
