"""Where a browser gives its card to the gateway, as long as that is simulated in this process."""

from http import HTTPStatus
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from payonce.app.process import App
from payonce.http.kit.problems import Problem, document

PLACE: Final = "/simulated-gateway"
TOKENS: Final = "/v1/tokens"
_NOT_HERE: Final = Problem(
    HTTPStatus.NOT_FOUND,
    f"cards are given to the gateway itself; where it is simulated in this process, with POST {PLACE}{TOKENS}",
)


def simulated_cards(app: App) -> ASGIApp:
    """Tokens alone, which the real gateway gives to browsers without a key: charges go through payments."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        simulator = _simulator(app)
        asked = scope["path"].removeprefix(PLACE)
        if simulator is None or asked != TOKENS or scope["method"] != "POST":
            await document(scope["path"], _NOT_HERE, scope["state"].get("trace_id"))(scope, receive, send)
            return
        inner = {**scope, "path": asked, "raw_path": asked.encode(), "root_path": ""}
        await simulator(inner, receive, send)

    return answer


def _simulator(app: App) -> ASGIApp | None:
    from payonce.vendors.gateway.simulator import GatewaySimulator

    return next((each for each in app.resources if isinstance(each, GatewaySimulator)), None)
