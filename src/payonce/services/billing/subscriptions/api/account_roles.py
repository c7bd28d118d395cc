"""Operators of billing: the route that grants and revokes the role."""

from typing import Annotated, Literal

from fastapi import APIRouter

from payonce.http.kit.context import AppContextDep, Trace
from payonce.http.kit.problems import Problem
from payonce.http.kit.values import RequestBody
from payonce.services.billing.api.callers import BillingCaller, require_operator, require_resource
from payonce.services.billing.scopes import OPERATE
from payonce.services.billing.subscriptions.api.auth import AccountDocument, account_document
from payonce.services.billing.subscriptions.api.common_routes import CHANGES, Id
from payonce.services.billing.subscriptions.domain.refusals import NotFound
from payonce.services.billing.subscriptions.store import accounts
from payonce.services.billing.subscriptions.store.accounts import AccountVersions

Operator = Annotated[BillingCaller, require_operator(OPERATE)]


class RoleChange(RequestBody):
    role: Literal["customer", "operator"]


def account_role_routes() -> APIRouter:
    routes = APIRouter(prefix="/v1/ops", tags=["billing ops"])

    @routes.post("/accounts/{account_id}/role", summary="Set an account's role", responses=CHANGES)
    async def set_role(
        account_id: Id, body: RoleChange, context: AppContextDep, trace: Trace, caller: Operator
    ) -> AccountDocument:
        versions = require_resource(context, AccountVersions)
        try:
            async with context.begin(trace) as tx:
                changed = await accounts.set_role(tx, account_id, body.role, caller.holder)
        except NotFound as refusal:
            raise Problem(404, str(refusal)) from refusal
        versions.forget(account_id)
        return account_document(changed)

    return routes
