"""The routes of docs/http.md, run as they stand."""

import re
from pathlib import Path
from typing import Any

from tests.http.conftest import OpenWeb

PAGE = Path(__file__).parents[2] / "docs" / "http.md"


async def test_the_routes_of_the_page_take_a_tip_once(web: OpenWeb) -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": "http"}
    exec(compile(program, "http.md", "exec"), names)  # noqa: S102 - it is our own document
    async with web() as ask:
        await ask.app.feed.declare([names["TIPS"]])
        ask.web.include_router(names["build_routes"]())
        guest = await ask.as_holder("guest", "tips:write", tenant="table 4")
        answers = [await guest.post("/v1/tips", {"waiter": "kim", "cents": 250}, idempotency_key="t") for _ in range(2)]
        assert [answer.status for answer in answers] == [201, 201]
        assert answers[0].body == answers[1].body
        refused = await guest.post("/v1/tips", {"waiter": "nobody", "cents": 250}, idempotency_key="u")
        assert (refused.status, refused.problem["detail"]) == (422, "nobody works here")
        rows = await ask.app.read.fetch("select lane, payload from payonce.messages")
        assert [(row["lane"], row["payload"]) for row in rows] == [("table 4", '{"waiter":"kim","cents":250}')]


async def test_every_route_of_the_table_is_there_with_its_scope(web: OpenWeb) -> None:
    page = PAGE.read_text(encoding="utf-8")
    async with web() as ask:
        described = (await ask.get("/openapi.json")).json
    ids = re.compile(r"\{\w+\}")
    told = {ids.sub("{}", path) for path in re.findall(r"/v1/[\w/{}]+", page)}
    served = {ids.sub("{}", path) for path in described["paths"]}
    assert {path for path in told if not path.startswith("/v1/tips")} <= served
