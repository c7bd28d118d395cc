"""Whatever is typed into an address or a form, the answer is a page with a sentence, never an error of ours."""

import random
from urllib.parse import quote

import pytest

from payonce.testing import OpenStage
from tests.console.renewals import POLICY, park
from tests.console.visitor import console, every_page, visiting

ODD = (
    "",
    " ",
    "\x00",
    "'",
    '"><b>',
    "%",
    "\\",
    "-1",
    "0",
    "1e309",
    "NaN",
    "9" * 40,
    "null",
    "{}",
    "[]",
    "true",
    "é",
    "🙂",
    "a" * 5_000,
    "../../etc",
    "2026-02-30",
    "0001-01-01T00:00",
    "9999-12-31T23:59:59+00:00",
    "parked",
    "success",
    "00000000-0000-0000-0000-000000000000",
    POLICY.queue,
    "\u202e",
    "\ufffe",
)
NAMES = (
    "id",
    "state",
    "after",
    "before",
    "since",
    "until",
    "status",
    "queue",
    "action",
    "correlation_id",
    "count",
    "idempotency_key",
    "error_contains",
    "window",
    "why",
    "typed",
    "asked",
    "next",
    "theme",
    "vendor",
    "asset",
)
REQUESTS = 250


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_no_input_makes_an_error_of_ours(stage: OpenStage, seed: int) -> None:
    chance = random.Random(seed)
    async with stage() as s, console(s) as address, visiting(address) as visitor:
        [message_id] = await park(s)
        token = (await visitor.get("/queues")).field("csrf")
        known = {"queue": POLICY.queue, "id": str(message_id)}
        routes = [route for page in every_page() for route in page.routes if route.path != "/live"]
        for _ in range(REQUESTS):
            route = chance.choice(routes)
            given = {name: chance.choice(ODD) for name in chance.sample(NAMES, chance.randint(0, 4))}
            path = route.path
            for name, usual in known.items():
                value = usual if chance.random() < 0.7 else chance.choice([odd for odd in ODD if odd.strip(".")])
                path = path.replace(f"{{{name}}}", quote(value[:500], safe=""))
            if route.method == "GET":
                query = "&".join(f"{name}={quote(value)}" for name, value in given.items())
                answer = await visitor.get(f"{path}?{query}")
            else:
                answer = await visitor.post(path, {**given, "csrf": token})
            assert answer.status < 500, (route.method, path, given, answer.words)
