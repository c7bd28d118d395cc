"""The description is complete, and generated requests, good and bad, are answered as it says."""

import asyncio
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import positive_data_acceptance

from payonce.engine.webhooks import announce
from payonce.http.kit import attempts
from payonce.http.server import listening
from payonce.services import payouts
from payonce.services.payouts.api.webhook import read_webhook
from payonce.services.payouts.store.orders import receive
from payonce.testing import OpenStage
from tests.http.client import WebClient
from tests.http.conftest import OpenWeb
from tests.http.test_idempotency import BOTH, ORDER, TRANSFERS
from tests.http.test_operator_routes import ALL, QUEUE, in_review, parked
from tests.services.payouts.payouts_stage import TERMS, signed, webhook

EXAMPLES, EXAMPLES_FULL = 4, 50
"""Per operation and kind of data: bounded, and the same every time."""
TAGS = ("health", "queues", "logs", "effects", "approvals", "webhooks", "deliveries", "transfers", "payouts")
SHORT_RUN = ("queues", "effects", "payouts")
"""What is tried out without --full."""
OF_BILLING = (
    "auth",
    "customers",
    "plans",
    "subscriptions",
    "invoices",
    "credit",
    "entitlements",
    "usage",
    "payment events",
    "test clocks",
    "payments",
    "billing ops",
)
"""Tried out in tests/services/billing/api, where there are customers who ask."""
OPEN = {"/healthz", "/readyz", "/v1/health/", "/v1/health/detailed", "/metrics"}
OPEN_AT_BILLING = {
    "POST /v1/auth/register",
    "POST /v1/auth/login",
    "POST /v1/auth/refresh",
    "POST /v1/auth/logout",
    "POST /v1/auth/set-password",
    "GET /v1/plans",
    "GET /v1/plans/{plan_id}",
}
"""Where people come in, and what they come for."""


def is_open(method: str, path: str) -> bool:
    return path in OPEN or f"{method.upper()} {path}" in OPEN_AT_BILLING


async def test_every_route_is_described_and_every_closed_one_says_so(web: OpenWeb) -> None:
    async with web() as ask:
        described = (await ask.get("/openapi.json")).json
        served = {
            (route.path, method)
            for route in ask.web.routes
            if isinstance(route, APIRoute) and route.include_in_schema
            for method in route.methods or ()
        }
        told = {(path, method.upper()) for path, ways in described["paths"].items() for method in ways}
        assert told
        assert served <= told
        for path, ways in described["paths"].items():
            for method, operation in ways.items():
                assert ("security" in operation) == (not is_open(method, path)), path
                assert operation["summary"], path
                assert set(operation["tags"]) <= {*TAGS, *OF_BILLING}, path
                if not is_open(method, path):
                    assert {"401", "403", "429", "503"} <= set(operation["responses"]), path
                for status, answer in operation["responses"].items():
                    kinds = set(answer.get("content", {}))
                    assert int(status) < 400 or kinds == {"application/problem+json"}, (path, method, status)
        assert "HTTPValidationError" not in described["components"]["schemas"]


async def test_every_closed_route_is_closed(web: OpenWeb) -> None:
    """Whoever has no key, or a key for something else, gets nowhere, on whatever route there is."""
    async with web() as ask:
        described = (await ask.get("/openapi.json")).json
        stranger = await ask.as_holder("mallory", "other:thing")
        unknown = "00000000-0000-7000-8000-000000000000"
        ids = dict.fromkeys(("effect_id", "endpoint_id", "delivery_id"), unknown)
        example = defaultdict(lambda: "x", {"queue": QUEUE, "approval_id": "1", **ids})
        tried = 0
        for path, ways in described["paths"].items():
            concrete = path.format_map(example)
            for method in ways:
                if is_open(method, path):
                    continue
                tried += 1
                assert (await ask(method.upper(), concrete, body={})).status == 401, path
                assert (await stranger(method.upper(), concrete, body={})).status == 403, path
        assert tried > 10


async def test_no_page_is_fetched_from_elsewhere(web: OpenWeb) -> None:
    async with web() as ask:
        assert [(await ask.get(path)).status for path in ("/docs", "/redoc")] == [404, 404]


@pytest.mark.parametrize(
    "tag", [pytest.param(tag, marks=[] if tag in SHORT_RUN else [pytest.mark.full]) for tag in TAGS]
)
async def test_generated_requests_are_answered_as_described(
    web: OpenWeb, stage: OpenStage, tag: str, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    # Wrong keys are among what is tried; that they are bounded is shown elsewhere.
    monkeypatch.setattr(attempts, "FAILURES_MAX", 1_000_000)
    examples = EXAMPLES_FULL if pytestconfig.getoption("--full") else EXAMPLES
    async with web() as ask:
        known = await prepared(ask, stage)
        ada = await ask.as_holder("ada", *ALL, *BOTH, *payouts.SCOPES)
        described = (await ask.get("/openapi.json")).json
        async with listening(ask.app, "127.0.0.1", 0) as port:
            url = f"http://127.0.0.1:{port}"
            # From elsewhere: on this machine itself a monitor needs no key.
            headers = {"Authorization": ada.headers["authorization"], "X-Forwarded-For": "198.51.100.7"}
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                await asyncio.to_thread(tried_out, described, tag, url, headers, known, mode, examples)


async def prepared(ask: WebClient, stage: OpenStage) -> Mapping[str, str]:
    """What there is to be found, by the names of the paths' parameters."""
    await parked(ask.app, stage, 3)
    effect = await in_review(ask, stage, minor=500, above="1.00")
    ada = await ask.as_holder("ada", *ALL, *BOTH)
    made = await ada.post(TRANSFERS, ORDER, idempotency_key="k")
    body = {"answer": "did_not", "note": "looked", "revision": effect.revision}
    asked = await ada.post(f"/v1/effects/{effect.id}/answer", body, idempotency_key="k2")
    told = await ada.post("/v1/webhooks/endpoints", {"url": "https://hooks.example.com/x", "events": ["*"]})
    async with ask.app.begin() as tx:
        await announce(tx, "order.paid", {"order": 7})
    [delivery] = (await ada.get(f"/v1/webhooks/endpoints/{told.json['id']}/deliveries")).json["deliveries"]
    return {
        "endpoint_id": told.json["id"],
        "delivery_id": delivery["id"],
        "queue": QUEUE,
        "effect_id": str(effect.id),
        "payout_id": await ordered(ask),
        "transfer_id": made.json["id"],
        "what": made.headers["trace-id"],
        "approval_id": str(asked.json["approval"]),
    }


async def ordered(ask: WebClient) -> str:
    """A payout, as its webhook makes it."""
    now = await ask.app.read.fetchval("select payonce.due_now()")
    body = webhook(now)
    async with ask.app.begin() as tx:
        return (await receive(tx, read_webhook(TERMS, signed(body), body, now))).payout.id


def tried_out(
    described: dict[str, Any],
    tag: str,
    url: str,
    headers: Mapping[str, str],
    known: Mapping[str, str],
    mode: GenerationMode,
    examples: int = EXAMPLES,
) -> None:
    described["paths"] = {
        path: ways for path, ways in described["paths"].items() if any(tag in each["tags"] for each in ways.values())
    }
    schema = schemathesis.openapi.from_dict(described)
    asked: set[str] = set()
    for result in schema.get_all_operations():
        operation = result.ok()  # type: ignore[union-attr]

        aims = known if mode is GenerationMode.POSITIVE else {}
        ask_once = asking(operation, url, headers, aims, mode, asked, examples)
        with warnings.catch_warnings(), suppress(Unsatisfiable):
            # Where nothing can be said, nothing can be said wrongly.
            warnings.simplefilter("ignore")
            ask_once()
    everything = {
        f"{method.upper()} {path}"
        for path, ways in described["paths"].items()
        for method, operation in ways.items()
        if operation.get("parameters") or operation.get("requestBody")
    }
    assert asked >= everything


def asking(
    operation: Any,
    url: str,
    headers: Mapping[str, str],
    known: Mapping[str, str],
    mode: GenerationMode,
    asked: set[str],
    examples: int,
) -> Callable[[], None]:
    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), aim=st.booleans())
    def ask_once(case: Any, aim: bool) -> None:
        if aim:
            case.path_parameters.update({name: known[name] for name in case.path_parameters if name in known})
        # An empty list or object in a query is not sent at all, so nothing wrong arrives.
        assume(not any(value in ([], {}, None) for value in (case.query or {}).values()))
        asked.add(operation.label)
        # A schema cannot say everything: that 12.345 EUR has a decimal too many, that one time is before another.
        case.call_and_validate(base_url=url, headers=dict(headers), excluded_checks=[positive_data_acceptance])

    return ask_once
