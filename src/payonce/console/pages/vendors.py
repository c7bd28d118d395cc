"""How the vendors are: how long they take, what they refuse or lose, how much of a budget is used, what is paused."""

from starlette.responses import Response

from payonce.console.page import Page, Visit, get
from payonce.engine.declared import declared
from payonce.engine.vendor_health import budgets, calls, tries
from payonce.services.payouts import looking
from payonce.services.payouts.looking import WalletUse


async def show_vendors(visit: Visit) -> Response:
    read = visit.desk.read
    paused = [(depth.queue, await declared(read, depth.queue)) for depth in visit.glance.depths if depth.paused]
    wallet = await looking.wallet_use(read) if await looking.is_installed(read) else None
    return visit.page(
        "vendors.html", "Vendors", tries=await tries(read), calls=calls(), budgets=await budgets(read), paused=paused,
        wallet=wallet, wallet_percent=None if wallet is None else _used_percent(wallet),
    )  # fmt: skip


def _used_percent(use: WalletUse) -> int | None:
    if use.per_day is None:
        return None
    return min(100, use.used_today.minor * 100 // use.per_day.minor) if use.per_day.minor else 100


PAGE = Page("Vendors", "/vendors", (get("/vendors", show_vendors),), group="Work")
