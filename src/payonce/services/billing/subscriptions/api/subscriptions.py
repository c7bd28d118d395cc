"""Subscriptions over HTTP: customers and operators start, change, pause and end them, once per order."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response
from pydantic import Field

from payonce.engine.messages.transaction import Reader, Tx
from payonce.http.kit.context import AppContextDep
from payonce.http.kit.idempotency import Once
from payonce.http.kit.problems import not_found
from payonce.http.kit.values import NUMBER_MAX, PAGE_DEFAULT, Limit, Note, RequestBody
from payonce.services.billing.api.callers import account_of, caller_of, require_idempotent, require_resource
from payonce.services.billing.scopes import OPERATE
from payonce.services.billing.subscriptions.api.common_routes import (
    CHANGES,
    READS,
    Cursor,
    ForAccount,
    Id,
    IdText,
    OfAccount,
    Viewer,
    only_of,
    page_after,
    refusing,
)
from payonce.services.billing.subscriptions.api.documents import (
    EventDocument,
    EventPage,
    PlanChangeDocument,
    PlanChangeList,
    SubscriptionDocument,
    SubscriptionPage,
)
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig
from payonce.services.billing.subscriptions.handlers import new_subscriptions
from payonce.services.billing.subscriptions.handlers import plan_changes as changing
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.model import ChangeState, State, Subscription
from payonce.services.billing.subscriptions.store import pages, plan_changes, subscriptions

PREFIX: Final = "/v1/subscriptions"
ABOUT_CHANGES: Final = (
    "202: the change is accepted and `plan_change` is pending. It ends as applied, failed or canceled, as shown "
    "by the subscription, its events and the merchant's webhooks. 200: no change is pending, for example because "
    "the request withdrew one. 409: the change is not possible, for the given reason; nothing was changed."
)
NOTHING_PENDING: Final[dict[int | str, Any]] = {
    200: {"model": SubscriptionDocument, "description": "No plan change is pending."}
}

Orderer = Annotated[Once, require_idempotent(OPERATE)]
Change = Callable[[Tx, str | None, str], Awaitable[Subscription]]


class SubscriptionOrder(RequestBody):
    plan_id: IdText = Field(description="Id of a version, or code of a plan for its current version.")
    account_id: ForAccount = None


class TrialOrder(RequestBody):
    trial_plan_id: IdText = Field("trial", description="Its price is charged to verify the card, and refunded.")
    account_id: ForAccount = None


class PlanChangeOrder(RequestBody):
    new_plan_id: IdText
    when: ChangeTiming | None = Field(
        None, description="Default: now for a more expensive plan, otherwise at the end of the period."
    )


class Cancellation(RequestBody):
    at: ChangeTiming = Field(ChangeTiming.PERIOD_END, description="now: at once, without a refund.")
    reason: Note | None = None


def subscription_routes() -> APIRouter:
    routes = APIRouter(prefix=PREFIX, tags=["subscriptions"])
    _add_starting(routes)
    _add_reading(routes)
    _add_changing(routes)
    return routes


def _add_starting(routes: APIRouter) -> None:
    @routes.post(
        "",
        status_code=201,
        summary="Subscribe to a plan; incomplete until the first payment",
        response_model=SubscriptionDocument,
        responses=CHANGES,
    )
    async def subscribe(body: SubscriptionOrder, context: AppContextDep, once: Orderer) -> Response:
        require_resource(context, SubscriptionConfig)

        async def act(tx: Tx) -> SubscriptionDocument:
            account_id = account_of(caller_of(once), body.account_id)
            return SubscriptionDocument.of(await new_subscriptions.start(tx, account_id, body.plan_id))

        return await once.answer(refusing(act), status=201, location=_place)

    @routes.post(
        "/trial",
        status_code=201,
        summary="Start a trial, whose price is charged and refunded",
        response_model=SubscriptionDocument,
        responses=CHANGES,
    )
    async def begin_trial(body: TrialOrder, context: AppContextDep, once: Orderer) -> Response:
        require_resource(context, SubscriptionConfig)

        async def act(tx: Tx) -> SubscriptionDocument:
            caller = caller_of(once)
            account_id = account_of(caller, body.account_id)
            begun = await new_subscriptions.start_trial(tx, account_id, body.trial_plan_id, again=caller.operator)
            return SubscriptionDocument.of(begun)

        return await once.answer(refusing(act), status=201, location=_place)


def _add_reading(routes: APIRouter) -> None:
    @routes.get("", summary="List subscriptions, newest first", responses=READS)
    async def list_subscriptions(
        context: AppContextDep,
        caller: Viewer,
        account_id: OfAccount = None,
        state: State | None = None,
        limit: Limit = PAGE_DEFAULT,
        after: Cursor = None,
    ) -> SubscriptionPage:
        require_resource(context, SubscriptionConfig)
        whose = account_id if caller.operator else account_of(caller, account_id)
        found = await pages.subscriptions(context.read, whose, state, after, limit)
        changes = await plan_changes.shown(context.read, [each.id for each in found])
        shown = [SubscriptionDocument.of(each, changes.get(each.id)) for each in found]
        return SubscriptionPage(subscriptions=shown, next_after=page_after(found, limit))

    @routes.get("/active", summary="Get an account's current subscription", responses=READS)
    async def show_active(context: AppContextDep, caller: Viewer, account_id: OfAccount = None) -> SubscriptionDocument:
        require_resource(context, SubscriptionConfig)
        found = await subscriptions.running(context.read, account_of(caller, account_id))
        if found is None:
            raise not_found("subscription of this account that has not ended")
        return await _shown(context.read, found)

    @routes.get("/{subscription_id}", summary="Get a subscription", responses=READS)
    async def show_subscription(subscription_id: Id, context: AppContextDep, caller: Viewer) -> SubscriptionDocument:
        require_resource(context, SubscriptionConfig)
        found = await subscriptions.find(context.read, subscription_id)
        if found is None or not caller.may_see(found.account_id):
            raise not_found(f"subscription {subscription_id!r}")
        return await _shown(context.read, found)

    @routes.get(
        "/{subscription_id}/events", summary="List a subscription's events in chronological order", responses=READS
    )
    async def list_events(
        subscription_id: Id,
        context: AppContextDep,
        caller: Viewer,
        limit: Limit = PAGE_DEFAULT,
        after: Annotated[int, Query(ge=0, le=NUMBER_MAX, description="The last id of the previous page.")] = 0,
    ) -> EventPage:
        require_resource(context, SubscriptionConfig)
        found = await subscriptions.find(context.read, subscription_id)
        if found is None or not caller.may_see(found.account_id):
            raise not_found(f"subscription {subscription_id!r}")
        asked = min(limit, subscriptions.LISTED_MAX)
        events = [EventDocument(**event) for event in await subscriptions.events(context.read, found.id, after, asked)]
        return EventPage(events=events, next_after=events[-1].id if len(events) == asked else None)

    @routes.get(
        "/{subscription_id}/plan-changes", summary="List a subscription's plan changes, newest first", responses=READS
    )
    async def list_plan_changes(
        subscription_id: Id, context: AppContextDep, caller: Viewer, limit: Limit = PAGE_DEFAULT
    ) -> PlanChangeList:
        require_resource(context, SubscriptionConfig)
        found = await subscriptions.find(context.read, subscription_id)
        if found is None or not caller.may_see(found.account_id):
            raise not_found(f"subscription {subscription_id!r}")
        changes = await plan_changes.of_subscription(context.read, found.id, limit)
        return PlanChangeList(plan_changes=[PlanChangeDocument.of(each, found) for each in changes])


def _add_changing(routes: APIRouter) -> None:
    @routes.post(
        "/{subscription_id}/change-plan",
        summary="Change the plan, now or at the end of the period",
        description=ABOUT_CHANGES,
        status_code=202,
        response_model=SubscriptionDocument,
        responses=NOTHING_PENDING | CHANGES,
    )
    async def change_plan(
        subscription_id: Id, body: PlanChangeOrder, context: AppContextDep, once: Orderer
    ) -> Response:
        require_resource(context, SubscriptionConfig)

        async def act(tx: Tx) -> SubscriptionDocument:
            whose = only_of(caller_of(once))
            changed = await changing.request_plan(tx, whose, subscription_id, body.new_plan_id, body.when)
            return await _shown(tx, changed)

        return await once.answer(refusing(act), status=_status)

    @routes.post(
        "/{subscription_id}/cancel",
        summary="Cancel, now or at the end of the period",
        response_model=SubscriptionDocument,
        responses=CHANGES,
    )
    async def cancel(subscription_id: Id, body: Cancellation, context: AppContextDep, once: Orderer) -> Response:
        require_resource(context, SubscriptionConfig)

        async def act(tx: Tx) -> SubscriptionDocument:
            whose = only_of(caller_of(once))
            ended = await changing.cancel(tx, whose, subscription_id, body.at, body.reason or "")
            return await _shown(tx, ended)

        return await once.answer(refusing(act))

    for name, change, summary in (
        ("pause", changing.pause, "Pause: no service and no renewals until it is resumed"),
        ("resume", changing.resume, "End a pause, or withdraw a cancellation"),
    ):
        _add_plain_change(routes, name, change, summary)


def _add_plain_change(routes: APIRouter, name: str, change: Change, summary: str) -> None:
    async def changed(subscription_id: Id, context: AppContextDep, once: Orderer) -> Response:
        require_resource(context, SubscriptionConfig)

        async def act(tx: Tx) -> SubscriptionDocument:
            return await _shown(tx, await change(tx, only_of(caller_of(once)), subscription_id))

        return await once.answer(refusing(act))

    routes.add_api_route(
        f"/{{subscription_id}}/{name}",
        changed,
        methods=["POST"],
        name=f"{name}_subscription",
        summary=summary,
        response_model=SubscriptionDocument,
        responses=CHANGES,
    )


async def _shown(read: Reader | Tx, subscription: Subscription) -> SubscriptionDocument:
    changes = await plan_changes.shown(read, [subscription.id])
    return SubscriptionDocument.of(subscription, changes.get(subscription.id))


def _status(changed: SubscriptionDocument) -> int:
    """202 while a change is pending; 200 if there is none, for example because the request withdrew one."""
    pending = changed.plan_change is not None and changed.plan_change.state is ChangeState.PENDING
    return HTTPStatus.ACCEPTED if pending else HTTPStatus.OK


def _place(made: SubscriptionDocument) -> str:
    return f"{PREFIX}/{made.id}"
