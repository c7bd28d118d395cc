"""Test clocks over HTTP, available where the gateway is simulated: simulate a customer's year in seconds."""

from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter
from pydantic import BaseModel, Field

from payonce.http.kit.context import AppContext, AppContextDep, Trace
from payonce.http.kit.problems import not_found
from payonce.http.kit.values import Moment, Name, RequestBody
from payonce.services.billing.api.callers import BillingCaller, account_of, require_account_or_key, require_resource
from payonce.services.billing.scopes import OPERATE
from payonce.services.billing.subscriptions.api.common_routes import CHANGES, READS, ForAccount, Id, refusals
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig
from payonce.services.billing.subscriptions.handlers import test_clocks
from payonce.services.billing.subscriptions.handlers.test_clocks import TestClock

PREFIX: Final = "/v1/test-clocks"

Mover = Annotated[BillingCaller, require_account_or_key(OPERATE)]


class ClockOrder(RequestBody):
    name: Name = "test clock"
    now_at: Moment | None = Field(None, description="Initial time. Default: the current time.")


class ClockJoin(RequestBody):
    account_id: ForAccount = None


class ClockAdvance(RequestBody):
    to: Moment


class ClockDocument(BaseModel):
    id: str
    name: str
    now_at: datetime
    target_at: datetime
    arrived: bool = Field(description="Whether the clock has reached its target and all work due until then is done.")
    waits_for: str | None = Field(description="The work in progress that the clock waits for.")
    created_at: datetime


def clock_routes() -> APIRouter:
    routes = APIRouter(prefix=PREFIX, tags=["test clocks"])

    @routes.post("", status_code=201, summary="Create a test clock", responses=CHANGES)
    async def make_test_clock(body: ClockOrder, context: AppContextDep, trace: Trace, caller: Mover) -> ClockDocument:
        _only_where_simulated(context)
        with refusals():
            async with context.begin(trace) as tx:
                made = await test_clocks.create(tx, body.name, caller.idempotency_scope, body.now_at)
        return await _document(context, made)

    @routes.get("/{clock_id}", summary="Get a test clock", responses=READS)
    async def show_test_clock(clock_id: Id, context: AppContextDep, caller: Mover) -> ClockDocument:
        return await _document(context, await _visible_clock(context, caller, clock_id))

    @routes.post(
        "/{clock_id}/join", summary="Put an account on the clock; only before its first subscription", responses=CHANGES
    )
    async def join_test_clock(
        clock_id: Id, body: ClockJoin, context: AppContextDep, trace: Trace, caller: Mover
    ) -> ClockDocument:
        clock = await _visible_clock(context, caller, clock_id)
        account_id = account_of(caller, body.account_id)
        with refusals():
            async with context.begin(trace) as tx:
                await test_clocks.put_on_clock(tx, account_id, clock.id)
        return await _document(context, clock)

    @routes.post(
        "/{clock_id}/advance",
        status_code=202,
        summary="Advance the clock; due work runs in order",
        responses=CHANGES,
    )
    async def advance_test_clock(
        clock_id: Id, body: ClockAdvance, context: AppContextDep, trace: Trace, caller: Mover
    ) -> ClockDocument:
        clock = await _visible_clock(context, caller, clock_id)
        with refusals():
            async with context.begin(trace) as tx:
                moved = await test_clocks.advance(tx, clock.id, body.to)
        return await _document(context, moved)

    return routes


def _only_where_simulated(context: AppContext) -> None:
    if not require_resource(context, SubscriptionConfig).test_clocks:
        raise not_found("test clock here: the gateway is a real one, and BILLING_TEST_CLOCKS does not enable them")


async def _visible_clock(context: AppContext, caller: BillingCaller, clock_id: str) -> TestClock:
    """The clock, if the caller created it or is an operator; raises a 404 problem otherwise."""
    _only_where_simulated(context)
    found = await test_clocks.find(context.read, clock_id)
    if found is None or not (caller.operator or found.made_by == caller.idempotency_scope):
        raise not_found(f"test clock {clock_id!r}")
    return found


async def _document(context: AppContext, clock: TestClock) -> ClockDocument:
    waits_for = await test_clocks.waits_for(context.read, clock.id)
    return ClockDocument(
        id=clock.id,
        name=clock.name,
        now_at=clock.now_at,
        target_at=clock.target_at,
        arrived=clock.arrived and waits_for is None,
        waits_for=waits_for,
        created_at=clock.created_at,
    )
