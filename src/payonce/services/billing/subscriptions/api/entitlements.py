"""Entitlements over HTTP: whether an account may use a feature now, and the remaining allowance."""

from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from payonce.http.kit.context import AppContextDep
from payonce.http.kit.values import NO_CONTROLS
from payonce.services.billing.api.callers import account_of, require_resource
from payonce.services.billing.subscriptions.api.common_routes import READS, OfAccount, Viewer
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig
from payonce.services.billing.subscriptions.model import State
from payonce.services.billing.subscriptions.store import usage
from payonce.services.billing.subscriptions.store.usage import FEATURE_MAX_LENGTH, UsageRefusal

PREFIX: Final = "/v1/entitlements"
Feature = Annotated[str, Path(min_length=1, max_length=FEATURE_MAX_LENGTH, pattern=NO_CONTROLS)]


class EntitlementDocument(BaseModel):
    feature: str
    entitled: bool = Field(description="Whether one more use would be accepted now.")
    why_not: UsageRefusal | None
    state: State | None = Field(description="State of the subscription; null without one.")
    used: int | None
    limit: int | None = Field(description="Null is unlimited or not included.")
    left: int | None
    resets_at: datetime | None


def entitlement_routes() -> APIRouter:
    routes = APIRouter(prefix=PREFIX, tags=["entitlements"])

    @routes.get("/{feature}", summary="Check whether a feature may be used now", responses=READS)
    async def show_entitlement(
        feature: Feature, context: AppContextDep, caller: Viewer, account_id: OfAccount = None
    ) -> EntitlementDocument:
        require_resource(context, SubscriptionConfig)
        found = await usage.entitlement(context.read, account_of(caller, account_id), feature)
        return EntitlementDocument(**{name: getattr(found, name) for name in EntitlementDocument.model_fields})

    return routes
