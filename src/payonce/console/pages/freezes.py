"""Freezes: list, add and lift, with sends that are still in flight."""

from starlette.responses import Response

from payonce.console.forms import PAGE_ROWS, name_of, number_of, reason_of, text_of
from payonce.console.links import link
from payonce.console.page import Page, Visit, get, post
from payonce.engine.controls import check_asset, freeze, freeze_of, freezes, lift, sends_in_flight, unknown_targets
from payonce.kit.durations import parsed_duration_s

CONDITIONS = ("vendor", "asset", "tenant", "service")


async def list_freezes(visit: Visit) -> Response:
    ended, before = text_of(visit.query, "ended") == "yes", number_of(visit.query, "before")
    found = await freezes(visit.context.read, ended=ended, limit=PAGE_ROWS + 1, before=before)
    page, query = found[:PAGE_ROWS], {"ended": "yes" if ended else None}
    return visit.page(
        "freezes.html",
        "Freezes",
        rows=page,
        ended=ended,
        typed={name: visit.query.get(name, "") for name in CONDITIONS},
        first=link("/freezes", **query) if before else None,
        next=link("/freezes", **query, before=page[-1].id) if len(found) > PAGE_ROWS else None,
    )


async def one_freeze(visit: Visit) -> Response:
    frozen = await freeze_of(visit.context.read, _number(visit))
    under_way = await sends_in_flight(visit.context.read, frozen) if frozen.in_force else None
    return visit.page("freeze.html", f"Freeze {frozen.id}", frozen=frozen, under_way=under_way)


async def add_freeze(visit: Visit) -> Response:
    """Immediate, without confirmation: in an emergency a question costs time, and a freeze is easily lifted."""
    vendor, asset, tenant, service = (name_of(visit.form, name) for name in CONDITIONS)
    lasts = text_of(visit.form, "for")
    if asset is not None:
        await check_asset(visit.context.read, asset)
    async with visit.context.begin() as tx:
        made = await freeze(
            tx,
            by=visit.person.name,
            reason=reason_of(visit.form),
            vendor=vendor,
            asset=asset,
            tenant=tenant,
            service=service,
            everything=text_of(visit.form, "everything") == "yes",
            for_s=parsed_duration_s(lasts, "the time") if lasts else None,
        )
    doubts = await unknown_targets(visit.context.read, vendor, asset)
    begun = f" Sends may still go out: {made.under_way}." if made.under_way else " No matching send is in flight."
    doubted = f" But {'; '.join(doubts)}" if doubts else ""
    return visit.done(f"/freezes/{made.id}", f"Freeze {made.id} of {made.what} is in force.{begun}{doubted}")


async def lift_freeze(visit: Visit) -> Response:
    async with visit.context.begin() as tx:
        lifted = await lift(tx, _number(visit), visit.person.name, reason_of(visit.form))
    return visit.done(
        "/freezes", f"Freeze {lifted.id} of {lifted.what} is lifted; waiting messages continue within a minute."
    )


def _number(visit: Visit) -> int:
    number = number_of(visit.path, "id")
    assert number is not None
    return number


PAGE = Page(
    "Freezes",
    "/freezes",
    (
        get("/freezes", list_freezes),
        get("/freezes/{id}", one_freeze),
        post("/freezes/add", add_freeze),
        post("/freezes/{id}/lift", lift_freeze),
    ),
    group="Money",
    badge="freezes",
)
