"""What services declare and most processes never need: their routes and scenarios, imported when they are asked for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import APIRouter
    from starlette.routing import Route

    from payonce.testing.crash import Scenario


def transfers_scenarios() -> Sequence["Scenario"]:
    from payonce.examples.transfers.scenario import TransfersScenario

    return (TransfersScenario(),)


def transfers_routes() -> "APIRouter":
    from payonce.examples.transfers.api import build_routes

    return build_routes()


def payouts_scenarios() -> Sequence["Scenario"]:
    from payonce.services.payouts.crash import SCENARIOS

    return SCENARIOS


def payouts_routes() -> "APIRouter":
    from payonce.services.payouts.api.routes import build_routes

    return build_routes()


def billing_scenarios() -> Sequence["Scenario"]:
    from payonce.services.billing.crash import SCENARIOS

    return SCENARIOS


def subscriptions_routes() -> "APIRouter":
    from payonce.services.billing.subscriptions.api import build_routes

    return build_routes()


def subscriptions_short_routes() -> "Sequence[Route]":
    from payonce.services.billing.subscriptions.api import build_short_routes

    return build_short_routes()


def payments_routes() -> "APIRouter":
    from payonce.services.billing.payments.api.routes import build_routes

    return build_routes()


def payments_short_routes() -> "Sequence[Route]":
    from payonce.services.billing.payments.api.inbound_messages import build_short_routes

    return build_short_routes()
