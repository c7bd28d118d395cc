"""Velocity limits, with the amount used in the current window."""

from starlette.responses import Response

from payonce.console.forms import name_of, number_of, text_of
from payonce.console.money import amount_of
from payonce.console.page import Page, Visit, get, post
from payonce.engine.controls import LimitUsage, limits, remove_limit, set_limit
from payonce.kit.durations import parsed_duration_s


async def list_limits(visit: Visit) -> Response:
    rows = [(each, _used_percent(each)) for each in await limits(visit.context.read)]
    return visit.page("limits.html", "Limits", rows=rows)


async def set_one(visit: Visit) -> Response:
    window_s = parsed_duration_s(text_of(visit.form, "window") or "1h", "the window")
    most, vendor = amount_of(visit.form), name_of(visit.form, "vendor")
    async with visit.context.begin() as tx:
        made = await set_limit(tx, most, visit.person.name, window_s=window_s, vendor=vendor)
    return visit.done("/limits", f"Limit {made.id}: at most {made.what}.")


async def remove_one(visit: Visit) -> Response:
    """Shows the consequences first; with `sure` it executes."""
    number = number_of(visit.path, "id")
    assert number is not None
    if text_of(visit.form, "sure") != "yes":
        found = [each for each in await limits(visit.context.read) if each.limit.id == number]
        if found:
            [used] = found
            said = f"At most {used.limit.what} may be sent now; {used.used} of it is used."
            return visit.page(
                "check_change.html",
                f"Remove limit {number}?",
                crumbs=[("Limits", "/limits")],
                amounts=(),
                sentences=[said, "Without it, waiting messages continue within five minutes."],
                because="",
                document=None,
                note="",
                action=f"/limits/{number}/remove",
                back="/limits",
                button="Remove it",
                hidden={"sure": "yes"},
                danger=True,
            )
    async with visit.context.begin() as tx:
        removed = await remove_limit(tx, number, visit.person.name)
    return visit.done("/limits", f"The limit of {removed.what} is removed.")


def _used_percent(used: LimitUsage) -> int:
    if not used.limit.most.minor:
        return 100
    return min(100, used.used.minor * 100 // used.limit.most.minor)


PAGE = Page(
    "Limits",
    "/limits",
    (get("/limits", list_limits), post("/limits/set", set_one), post("/limits/{id}/remove", remove_one)),
    group="Money",
)
