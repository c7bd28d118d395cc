"""Approvals: requests that wait for a second person, and the thresholds above which one is needed."""

from typing import Final

from starlette.responses import Response

from payonce.console.forms import PAGE_ROWS, choice_of, number_of, reason_of, text_of
from payonce.console.links import link
from payonce.console.money import amount_of, asset_of
from payonce.console.page import Page, Visit, get, post
from payonce.engine.controls import (
    Approval,
    ApprovalState,
    Executed,
    approval_of,
    approvals,
    deny,
    grant,
    preview,
    submit,
    threshold_change,
    thresholds,
)
from payonce.engine.controls.texts import same_person
from payonce.engine.operators import Role
from payonce.kit.money import Amount, Asset, loads_exact

TABS: Final = (*ApprovalState, "all")


async def list_approvals(visit: Visit) -> Response:
    state = choice_of(visit.query, "state", TABS, "waiting")
    before = number_of(visit.query, "before")
    wanted = None if state == "all" else ApprovalState(state)
    found = await approvals(visit.context.read, wanted, limit=PAGE_ROWS + 1, before=before)
    page = found[:PAGE_ROWS]
    return visit.page(
        "approvals.html",
        "Approvals",
        tabs=TABS,
        chosen=state,
        rows=page,
        thresholds=await thresholds(visit.context.read),
        first=link("/approvals", state=state) if before else None,
        next=link("/approvals", state=state, before=page[-1].id) if len(found) > PAGE_ROWS else None,
    )


async def one_approval(visit: Visit) -> Response:
    approval = await approval_of(visit.context.read, _number(visit))
    return visit.page(
        "approval.html",
        f"Approval {approval.id}",
        approval=approval,
        argument=loads_exact(approval.argument),
        subject=_subject(visit, approval),
        own=same_person(visit.person.name, approval.asked_by),
    )


async def grant_approval(visit: Visit) -> Response:
    """Grants and executes the request; if it is no longer possible, it is denied."""
    why = text_of(visit.form, "why") or "agreed"
    async with visit.context.begin() as tx:
        decided = await grant(tx, visit.context.actions, _number(visit), visit.person.name, why)
    done = (
        "is granted and executed"
        if decided.state is ApprovalState.GRANTED
        else f"could not be executed: {decided.result}"
    )
    return visit.done(f"/approvals/{decided.id}", f"Approval {decided.id} {done}.")


async def deny_approval(visit: Visit) -> Response:
    async with visit.context.begin() as tx:
        decided = await deny(tx, _number(visit), visit.person.name, reason_of(visit.form))
    return visit.done(f"/approvals/{decided.id}", f"Approval {decided.id} is denied; nothing was changed.")


async def set_one_threshold(visit: Visit) -> Response:
    above = amount_of(visit.form)
    return await _change_threshold(visit, above.asset, above)


async def remove_one_threshold(visit: Visit) -> Response:
    return await _change_threshold(visit, asset_of(visit.form), None)


async def _change_threshold(visit: Visit, asset: Asset, above: Amount | None) -> Response:
    """Immediate if it makes approvals stricter; otherwise it needs an approval itself."""
    action = visit.context.actions["change threshold"]
    sure = text_of(visit.form, "sure") == "yes"
    async with visit.context.begin() as tx:
        change = await threshold_change(tx, asset, above)
        seen = await preview(tx, action, change, visit.person.name)
        if not seen.because or sure:
            why = reason_of(visit.form) if seen.because else "set in the console"
            end = await submit(tx, action, change, visit.person.name, why)
    if seen.because and not sure:
        verb = "remove" if above is None else "set"
        typed = {name: text_of(visit.form, name) for name in ("asset", "amount", "decimals")}
        return visit.page(
            "check_change.html",
            "Loosen the threshold?",
            crumbs=[("Approvals", "/approvals")],
            sentences=[f"You want to {seen.assessment.text}."],
            amounts=(),
            because=seen.because,
            document=None,
            note="",
            action=f"/approvals/thresholds/{verb}",
            back="/approvals",
            button="Ask a second person",
            hidden={**typed, "sure": "yes"},
            danger=False,
            asks_why=True,
        )
    if isinstance(end, Executed):
        return visit.done("/approvals", f"Above {above} a second person must now agree.")
    return visit.awaiting_approval(end.id)


def _number(visit: Visit) -> int:
    number = number_of(visit.path, "id")
    assert number is not None
    return number


def _subject(visit: Visit, approval: Approval) -> dict[str, str] | None:
    """The link to the request's subject; None if its action has no page, or is unknown in this process."""
    action = visit.context.actions.get(approval.action)
    if action is None or action.link is None:
        return None
    found = action.link(approval.subject)
    return {"text": found.text, "href": link(found.path, **found.query)}


PAGE = Page(
    "Approvals",
    "/approvals",
    (
        get("/approvals", list_approvals),
        get("/approvals/{id}", one_approval),
        post("/approvals/{id}/grant", grant_approval, Role.APPROVER),
        post("/approvals/{id}/deny", deny_approval, Role.APPROVER),
        post("/approvals/thresholds/set", set_one_threshold, Role.APPROVER),
        post("/approvals/thresholds/remove", remove_one_threshold, Role.APPROVER),
    ),
    group="Money",
    badge="approvals",
)
