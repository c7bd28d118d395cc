"""Billing figures: recurring revenue and churn by month, charges by day and decline codes."""

from collections.abc import Sequence
from typing import Any, Final

from starlette.responses import Response

from payonce.console.forms import choice_of
from payonce.console.page import Visit
from payonce.console.reads import bounded
from payonce.services.billing.console.queries import PAYMENTS, has
from payonce.services.billing.payments.store import queries
from payonce.services.billing.payments.store.queries import ChargeDay
from payonce.services.billing.subscriptions.store import figures, monthly_figures
from payonce.services.billing.subscriptions.store.figures import Month

WINDOWS: Final = {"6m": 6, "12m": 12, "36m": 36}
DAYS: Final = 30
WHO: Final = ("customers", "test clocks")


async def show_figures(visit: Visit) -> Response:
    window = choice_of(visit.query, "window", tuple(WINDOWS), "12m")
    who = choice_of(visit.query, "who", WHO, WHO[0])
    with_payments = await has(visit, PAYMENTS)
    async with bounded(visit) as read:
        assets = await figures.currencies(read)
        names = tuple(asset.code for asset in assets)
        currency = choice_of(visit.query, "currency", names, names[0]) if names else ""
        asset = next((each for each in assets if each.code == currency), None)
        months = (
            []
            if asset is None
            else await monthly_figures.months(read, WINDOWS[window], asset, on_test_clocks=who == WHO[1])
        )
        shown = asset if with_payments else None
        days = [] if shown is None else await queries.days(read, DAYS, shown)
        declines = {} if shown is None else await queries.declines(read, DAYS, shown)
    some = any(each.running or each.won or each.lost for each in months)
    return visit.page(
        "billing/figures.html",
        "Billing in figures",
        window=window,
        windows=tuple(WINDOWS),
        who=who,
        everybody=WHO,
        currency=currency,
        currencies=names,
        months=list(reversed(months)),
        some=some,
        chart=month_columns(months),
        units=1 if asset is None else 10**asset.exponent,
        charges=day_columns(days),
        declines=declines,
        days=DAYS,
        charged=sum(each.succeeded + each.failed for each in days),
        with_payments=with_payments,
    )


def month_columns(months: Sequence[Month]) -> dict[str, list[Any]]:
    """In the format of charts: one list per line, amounts in minor units."""
    return {
        "at": [int(each.begin.timestamp()) for each in months],
        "recurring": [each.recurring.minor for each in months],
        **{name: [getattr(each, name) for each in months] for name in ("running", "won", "lost", "churn_percent")},
    }


def day_columns(days: Sequence[ChargeDay]) -> dict[str, list[Any]]:
    return {
        "at": [int(each.day.timestamp()) for each in days],
        **{name: [getattr(each, name) for each in days] for name in ("succeeded", "failed", "hard")},
    }
