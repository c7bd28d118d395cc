"""Reconciliation: unmatched items between vendors' statements and our effects, and the runs that found them."""

from typing import Final
from uuid import UUID

from starlette.responses import Response

from payonce.console.forms import PAGE_ROWS, id_of, name_of, reason_of, text_of
from payonce.console.links import link
from payonce.console.page import Page, Visit, get, post
from payonce.engine.controls import Executed, WriteOff, preview, submit, waiting_approval
from payonce.engine.reconcile import (
    Item,
    ItemState,
    coverages,
    describe,
    explain,
    item_of,
    last_runs,
    suspense_totals,
    unmatched,
)
from payonce.kit.redact import redact

ACTION: Final = "write off"
RUNS_SHOWN: Final = 10


async def books(visit: Visit) -> Response:
    read, vendor, after = visit.context.read, name_of(visit.query, "vendor"), id_of(visit.query, "after")
    found = await unmatched(read, vendor, PAGE_ROWS + 1, after)
    page = found[:PAGE_ROWS]
    return visit.page(
        "reconcile.html",
        "Reconciliation",
        totals=await suspense_totals(read),
        coverages=await coverages(read),
        runs=await last_runs(read, vendor, RUNS_SHOWN),
        rows=page,
        vendor=vendor or "",
        first=link("/reconcile", vendor=vendor) if after else None,
        next=link("/reconcile", vendor=vendor, after=page[-1].id) if len(found) > PAGE_ROWS else None,
    )


async def one_item(visit: Visit) -> Response:
    item = await item_of(visit.context.read, _id(visit))
    return visit.page(
        "item.html",
        f"{item.subject.vendor} {item.subject.kind}",
        item=item,
        open=item.state is ItemState.OPEN,
        waiting=await waiting_approval(visit.context.read, ACTION, str(item.id)),
    )


async def explain_item(visit: Visit) -> Response:
    async with visit.context.begin() as tx:
        item = await explain(tx, _id(visit), visit.person.name, reason_of(visit.form))
    return visit.done(
        f"/reconcile/{item.id}", "Explained. The item stays in suspense until it matches or is written off."
    )


async def write_off(visit: Visit) -> Response:
    """Shows the consequences first; with `sure` it executes, or requests approval."""
    item = await item_of(visit.context.read, _id(visit))
    why, account = reason_of(visit.form), text_of(visit.form, "account")
    # Redacted before it is stored with the approval.
    given = WriteOff(item.id, account, redact(why))
    if text_of(visit.form, "sure") != "yes":
        return await _check(visit, item, given)
    async with visit.context.begin() as tx:
        end = await submit(tx, visit.context.actions[ACTION], given, visit.person.name, why)
    if isinstance(end, Executed):
        return visit.done(f"/reconcile/{item.id}", f"Written off to {account}: {end.result['amount']}.")
    return visit.done(
        f"/approvals/{end.id}", f"Requested. Nothing is posted until a second person grants approval {end.id}."
    )


async def _check(visit: Visit, item: Item, given: WriteOff) -> Response:
    async with visit.context.begin() as tx:
        seen = await preview(tx, visit.context.actions[ACTION], given, visit.person.name)
    path = f"/reconcile/{item.id}"
    said = [
        f"{describe(item)} moves from suspense to the account {given.account}.",
        "If it matches later, the posting is reversed.",
    ]
    return visit.page(
        "check_change.html",
        "Write it off?",
        crumbs=[("Reconciliation", "/reconcile"), (describe(item), path)],
        sentences=said,
        amounts=seen.assessment.amounts,
        because=seen.because,
        document=None,
        note=given.note,
        action=f"{path}/write-off",
        back=path,
        button="Ask a second person" if seen.because else "Write it off",
        hidden={"account": given.account, "why": given.note, "sure": "yes"},
        danger=True,
    )


def _id(visit: Visit) -> UUID:
    item_id = id_of(visit.path, "id")
    assert item_id is not None
    return item_id


PAGE = Page(
    "Reconciliation",
    "/reconcile",
    (
        get("/reconcile", books),
        get("/reconcile/{id}", one_item),
        post("/reconcile/{id}/explain", explain_item),
        post("/reconcile/{id}/write-off", write_off),
    ),
    group="Money",
    badge="unmatched",
)
