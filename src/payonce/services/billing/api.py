"""Billing over HTTP: both services' routes. Which of them a process answers is decided by what its roles opened."""

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.routing import Route

from payonce.services.billing.payments import api as payments
from payonce.services.billing.subscriptions import api as subscriptions


def build_routes() -> APIRouter:
    routes = APIRouter()
    for room in (subscriptions, payments):
        routes.include_router(room.build_routes())
    return routes


def build_short_routes() -> Sequence[Route]:
    return subscriptions.build_short_routes()
