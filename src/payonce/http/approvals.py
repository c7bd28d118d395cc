"""Approvals over HTTP: list, grant and deny."""

from datetime import datetime
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, Field

from payonce.engine.controls import Approval, ApprovalState, approvals, deny, grant
from payonce.engine.messages.transaction import Tx
from payonce.http.kit.auth import Caller, require
from payonce.http.kit.context import AppContextDep
from payonce.http.kit.idempotency import Once, moves_money
from payonce.http.kit.problems import not_found, responses
from payonce.http.kit.scopes import APPROVALS_DECIDE, APPROVALS_READ
from payonce.http.kit.values import PAGE_DEFAULT, Document, Limit, Money, Note, Number, RequestBody

READ: Final = responses(400, 401, 403, 422, 429, 503)
DECIDE: Final = responses(400, 401, 403, 404, 409, 413, 422, 429, 503)

Listed = Literal["waiting", "granted", "denied", "expired", "all"]
Reader = Annotated[Caller, require(APPROVALS_READ)]
Id = Annotated[Number, Path(description="As GET /v1/approvals lists them.")]


class ApprovalDocument(BaseModel):
    id: int
    action: str
    subject: str
    text: str
    amounts: list[Money]
    why: str
    asked_by: str
    asked_at: datetime
    expires_at: datetime
    state: ApprovalState
    decided_by: str | None
    decided_at: datetime | None
    decided_why: str | None
    result: Document


class ApprovalPage(BaseModel):
    approvals: list[ApprovalDocument]
    next_before: int | None = Field(description="Pass it as `before` to get the next page; null on the last page.")


class Decision(RequestBody):
    note: Note = Field(description="What you checked, or why you deny.")


def approval_routes() -> APIRouter:
    routes = APIRouter(prefix="/v1/approvals", tags=["approvals"])

    @routes.get("", summary="List approvals, newest first", responses=READ)
    async def list_approvals(
        context: AppContextDep,
        caller: Reader,
        state: Listed = "waiting",
        limit: Limit = PAGE_DEFAULT,
        before: Annotated[Number | None, Query(description="The last id of the previous page.")] = None,
    ) -> ApprovalPage:
        wanted = None if state == "all" else ApprovalState(state)
        found = await approvals(context.read, wanted, limit=limit, before=before)
        following = found[-1].id if len(found) == limit else None
        return ApprovalPage(approvals=[_document(each) for each in found], next_before=following)

    @routes.post(
        "/{approval_id}/grant",
        summary="Grant an approval and execute the change",
        response_model=ApprovalDocument,
        responses=DECIDE,
    )
    async def grant_approval(
        approval_id: Id, body: Decision, context: AppContextDep, once: Annotated[Once, moves_money(APPROVALS_DECIDE)]
    ) -> Response:
        async def act(tx: Tx) -> ApprovalDocument:
            await _check_exists(tx, approval_id)
            return _document(await grant(tx, context.actions, approval_id, once.caller.holder, body.note))

        return await once.answer(act)

    @routes.post("/{approval_id}/deny", summary="Deny an approval", response_model=ApprovalDocument, responses=DECIDE)
    async def deny_approval(
        approval_id: Id, body: Decision, context: AppContextDep, once: Annotated[Once, moves_money(APPROVALS_DECIDE)]
    ) -> Response:
        async def act(tx: Tx) -> ApprovalDocument:
            await _check_exists(tx, approval_id)
            return _document(await deny(tx, approval_id, once.caller.holder, body.note))

        return await once.answer(act)

    return routes


async def _check_exists(tx: Tx, approval_id: int) -> None:
    if not await tx.fetchval("select exists (select from payonce.approvals where id = $1)", approval_id):
        raise not_found(f"approval {approval_id}")


def _document(approval: Approval) -> ApprovalDocument:
    names = [name for name in ApprovalDocument.model_fields if name != "amounts"]
    return ApprovalDocument(
        **{name: getattr(approval, name) for name in names}, amounts=[Money.of(each) for each in approval.amounts]
    )
