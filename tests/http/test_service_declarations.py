"""What a service declares for the port: routes that its parts share, mounted applications, and who operates it."""

from dataclasses import replace

import pytest
from fastapi import APIRouter
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from payonce.engine.monitoring.metrics import REGISTRY
from payonce.http.application import build_web
from payonce.http.kit.context import AppContext, context_of
from payonce.kit.outcomes import Invalid
from payonce.service import Service
from tests.http.client import WebClient
from tests.http.conftest import OpenWeb

SHARED = "/v1/shop/hours"
SALES = "/v1/shop/sales"
DEPTHS = "/v1/health/queues"


def shared_routes() -> APIRouter:
    routes = APIRouter()

    @routes.get(SHARED)
    async def hours() -> dict[str, str]:
        return {"open": "9 to 5"}

    return routes


def till(context: AppContext) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse(f"till with {len(context.resources)} drawers")(scope, receive, send)

    return answer


async def is_operator(request: Request, given: HTTPAuthorizationCredentials) -> bool | None:
    return {"manager": True, "guest": False}.get(given.credentials)


BADGE = HTTPBearer(scheme_name="Badge", auto_error=False)


def operator_scheme() -> HTTPBearer:
    return BADGE


async def sell(request: Request) -> Response:
    article = (await request.body()).decode()
    if article == "nothing":
        raise Invalid("nothing is no article; name one")
    if article == "bread":
        raise ConnectionRefusedError("the till does not answer")
    if article == "crash":
        raise KeyError(article)
    return PlainTextResponse(f"{article} to {len(context_of(request).resources)} customers")


def short_routes() -> list[Route]:
    return [Route(SALES, sell, methods=["POST"])]


SHOP = Service(
    "shop",
    None,
    {"front": ()},
    short_routes=short_routes,
    shared_routes=shared_routes,
    mounts={"/till": till},
    is_operator=is_operator,
    operator_scheme=operator_scheme,
)
STOCK = Service(
    "shop",
    None,
    {"stock": ()},
    shared_routes=shared_routes,
    is_operator=is_operator,
    operator_scheme=operator_scheme,
)


def with_shop(ask: WebClient) -> WebClient:
    ask.app.services = [*ask.app.services, SHOP, STOCK]
    return replace(ask, web=build_web(ask.app))


async def test_routes_that_parts_of_a_service_share_are_there_once(web: OpenWeb) -> None:
    async with web() as ask:
        shop = with_shop(ask)
        assert (await shop.get(SHARED)).json == {"open": "9 to 5"}
        # A route that is there twice has an operation id that is there twice, of which FastAPI warns.
        assert SHARED in (await shop.get("/openapi.json")).json["paths"]


async def test_a_mounted_application_answers_below_its_path_with_a_trace_id(web: OpenWeb) -> None:
    async with web() as ask:
        assert (await ask.get("/till/any")).status == 404
        answer = await with_shop(ask).get("/till/any")
        assert (answer.status, answer.body) == (200, b"till with 0 drawers")
        assert answer.headers["trace-id"]


@pytest.mark.parametrize(("token", "status"), [("manager", 200), ("guest", 403), ("stranger", 401)])
async def test_operators_of_a_service_see_the_queues(web: OpenWeb, token: str, status: int) -> None:
    async with web() as ask:
        bearing = replace(ask, headers={"authorization": f"Bearer {token}"})
        assert (await bearing.get(DEPTHS)).status == 401, "nobody issues such tokens"
        assert (await with_shop(bearing).get(DEPTHS)).status == status


@pytest.mark.parametrize(
    ("article", "status", "said"),
    [
        ("milk", 200, "milk to 0 customers"),
        ("nothing", 400, "nothing is no article; name one"),
        ("bread", 503, "the database does not answer; try again"),
        ("crash", 500, "internal error of payonce; see its log"),
    ],
)
async def test_a_short_route_has_the_bounds_problems_and_metrics_of_every_other(
    web: OpenWeb, article: str, status: int, said: str
) -> None:
    async with web() as ask:
        labels = {"method": "POST", "route": SALES, "status": str(status)}
        before = REGISTRY.get_sample_value("payonce_http_requests_total", labels) or 0
        answer = await with_shop(ask).post(SALES, article.encode())
        assert answer.status == status
        assert (answer.body.decode() if status == 200 else answer.problem["detail"]) == said
        assert REGISTRY.get_sample_value("payonce_http_requests_total", labels) == before + 1


async def test_a_short_route_takes_posts_only(web: OpenWeb) -> None:
    async with web() as ask:
        assert (await with_shop(ask).get(SALES)).status == 405


async def test_the_description_has_the_security_schemes_of_the_services_that_are_here(web: OpenWeb) -> None:
    async with web() as ask:
        ask.app.services = [each for each in ask.app.services if each.operator_scheme is None]
        for service_scheme, served in (([], replace(ask, web=build_web(ask.app))), (["Badge"], with_shop(ask))):
            described = (await served.get("/openapi.json")).json
            names = ["ApiKey", *service_scheme]
            assert sorted(described["components"]["securitySchemes"]) == sorted(names)
            assert described["paths"][DEPTHS]["get"]["security"] == [*({name: []} for name in names), {}]
