"""Payouts by day: received amounts, our fees, and the payouts' current states."""

from collections.abc import Sequence
from typing import Any, Final

from starlette.responses import Response

from payonce.console.forms import choice_of
from payonce.console.page import Visit
from payonce.console.reads import bounded
from payonce.kit.money import Amount
from payonce.services.payouts.store import queries
from payonce.services.payouts.store.queries import Day

WINDOWS: Final = {"7d": 7, "30d": 30, "90d": 90}
CHART_UNITS: Final = 100
"""Cents per USDT: charts draw whole cents, so that no amount passes through a float before the browser's canvas."""
COUNTS: Final = ("received", "finished", "under_way", "with_people", "ended_otherwise")


async def show_days(visit: Visit) -> Response:
    window = choice_of(visit.query, "window", tuple(WINDOWS), "30d")
    async with bounded(visit) as read:
        found = await queries.days(read, WINDOWS[window])
    return visit.page(
        "payouts/days.html",
        "Payouts by day",
        window=window,
        windows=tuple(WINDOWS),
        days=list(reversed(found)),
        chart=columns(found),
        units=CHART_UNITS,
        some=any(each.received for each in found),
        volume=Amount.total((each.volume for each in found), found[0].volume.asset),
        fees=Amount.total((each.fees for each in found), found[0].fees.asset),
    )


def columns(days: Sequence[Day]) -> dict[str, list[Any]]:
    """The series of the charts, one list per line."""
    found: dict[str, list[Any]] = {"at": [int(each.day.timestamp()) for each in days]}
    for name in COUNTS:
        found[name] = [getattr(each, name) for each in days]
    for name in ("volume", "fees"):
        found[name] = [_cents(getattr(each, name)) for each in days]
    return found


def _cents(amount: Amount) -> int:
    return amount.minor * CHART_UNITS // int(10**amount.asset.exponent)
