"""Generated requests to every route of billing, good and bad, are answered as its description says."""

import asyncio
from typing import Any

import pytest
from schemathesis import GenerationMode

from payonce.engine.operators import login_limits
from payonce.http.kit import attempts
from payonce.http.server import listening
from payonce.services.billing.payments.api import payment_completion
from tests.http.test_description import OF_BILLING, tried_out
from tests.services.billing.api.conftest import OpenShop
from tests.services.billing.api.counter import PASSWORD
from tests.services.billing.api.test_ownership import things_of

FEW, MANY = 3, 24
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


@pytest.fixture(autouse=True)
def _many_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BILLING_REGISTRATIONS_MAX", "1000000")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", [GenerationMode.NEGATIVE], ids=lambda mode: str(mode.value))
async def test_generated_requests_are_answered_as_described(
    shop: OpenShop, mode: GenerationMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await try_all(shop, mode, FEW, monkeypatch)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: str(mode.value))
async def test_many_generated_requests_are_answered_as_described(
    shop: OpenShop, mode: GenerationMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    await try_all(shop, mode, MANY, monkeypatch)


async def try_all(shop: OpenShop, mode: GenerationMode, examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Wrong tokens and passwords are among what is tried; that they are bounded is shown elsewhere.
    monkeypatch.setattr(attempts, "FAILURES_MAX", 1_000_000)
    for bound in ("FAILURES_MAX", "ADDRESS_FAILURES_MAX", "NAME_FAILURES_MAX"):
        monkeypatch.setattr(login_limits, bound, 1_000_000)
    monkeypatch.setattr(payment_completion, "WAIT_S", 0.0)
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        known = {
            **await things_of(ada),
            "plan_id": "basic",
            "queue": "q:sub:clock",
            "feature": "projects",
            "feature_name": "projects",
        }
        root = await ask.customer("root@example.com", None)
        key = await ask.with_key("house", "billing:operate")
        await key.post(f"/v1/ops/accounts/{root.account_id}/role", {"role": "operator"})
        login = await ask.post("/v1/auth/login", {"email": "root@example.com", "password": PASSWORD})
        headers = {"Authorization": f"Bearer {login.json['access_token']}"}
        described = (await ask.get("/openapi.json")).json
        async with listening(ask.app, "127.0.0.1", 0) as port:
            for tag in OF_BILLING:
                copied: dict[str, Any] = {**described, "paths": dict(described["paths"])}
                await asyncio.to_thread(
                    tried_out, copied, tag, f"http://127.0.0.1:{port}", headers, known, mode, examples
                )
