"""The host wallet on the Vendors page: its payments, its limits, and the form that changes them."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from payonce.console.forms import reason_of, text_of
from payonce.console.page import Visit
from payonce.engine.controls import Executed, preview, submit, waiting_approval
from payonce.kit.money import Amount
from payonce.kit.outcomes import Invalid
from payonce.services.payouts.decisions.wallet_limits import ACTION, limit_change
from payonce.services.payouts.model import ETH
from payonce.services.payouts.store import queries
from payonce.services.payouts.store.queries import WalletUse

BOUNDS: Final = ("per_payment", "per_day", "low_balance")


async def wallet_section(visit: Visit) -> Mapping[str, Any] | None:
    """The section's values; None if this database has no payouts or no wallet."""
    read = visit.context.read
    if not await queries.is_installed(read) or (wallet := await queries.wallet_use(read)) is None:
        return None
    return {
        "wallet": wallet,
        "percent": _used_percent(wallet),
        "waiting": await waiting_approval(read, ACTION, ETH.code),
        "may_limit": ACTION in visit.context.actions,
    }


async def change_limits(visit: Visit) -> Response:
    """Previews the change; with `sure` it is carried out, or submitted to a second person."""
    if ACTION not in visit.context.actions:
        raise Invalid("this process does not run payouts; change the limits in the console of a process that does")
    per_payment, per_day, low = (_bound_of(visit, name) for name in BOUNDS)
    action, why = visit.context.actions[ACTION], reason_of(visit.form)
    async with visit.context.begin() as tx:
        change = await limit_change(tx, per_payment, per_day, low or Amount.zero(ETH))
        seen = await preview(tx, action, change, visit.person.name)
        if text_of(visit.form, "sure") == "yes":
            end = await submit(tx, action, change, visit.person.name, why)
    if text_of(visit.form, "sure") != "yes":
        return visit.page(
            "check_change.html",
            "Change the wallet's limits?",
            crumbs=[("Vendors", "/vendors")],
            sentences=[f"You want to {seen.assessment.text}."],
            amounts=(),
            because=seen.because,
            document=None,
            note=why,
            action="/vendors/wallet-limits",
            back="/vendors",
            danger=False,
            button="Ask a second person" if seen.because else "Change them",
            hidden={**{name: text_of(visit.form, name) for name in (*BOUNDS, "why")}, "sure": "yes"},
        )
    if isinstance(end, Executed):
        return visit.done("/vendors", f"The wallet pays {end.result['limits']} without approval.")
    return visit.awaiting_approval(end.id)


def _bound_of(visit: Visit, name: str) -> Amount | None:
    text = text_of(visit.form, name)
    return Amount.from_decimal(text, ETH) if text else None


def _used_percent(use: WalletUse) -> int | None:
    if use.per_day is None:
        return None
    return min(100, use.used_today.minor * 100 // use.per_day.minor) if use.per_day.minor else 100
