"""What a process of billing opens, and where its notifications go when nobody says so."""

from pathlib import Path

import pytest

from payonce.app.process import App
from payonce.services.billing.api.tokens import Tokens
from payonce.services.billing.payments.api.gateway_events import GatewayEventReceiver
from payonce.services.billing.payments.handlers.notifications import NotificationSender
from payonce.services.billing.payments.reconciliation import statements
from payonce.services.billing.resources import notify_this_process, open_payments
from payonce.services.billing.subscriptions.domain.config import SubscriptionConfig
from payonce.services.billing.subscriptions.store.accounts import AccountVersions
from payonce.settings import Settings, load_settings
from payonce.testing import OpenStage, ScratchDatabase
from payonce.vendors.gateway.port import Gateway

BOTH = ["billing.subscriptions", "billing.payments"]
KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def settings(scratch: ScratchDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("DATABASE_URL", scratch.service_url)
    monkeypatch.setenv("PAYONCE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("JWT_SECRET_KEY", KEY)
    monkeypatch.setenv("WEBHOOK_SIGNING_SECRET", KEY)
    return load_settings()


async def test_a_process_of_billing_has_what_its_handlers_need(settings: Settings) -> None:
    async with App.open(settings, BOTH) as app:
        for kind in (Gateway, NotificationSender, GatewayEventReceiver, SubscriptionConfig, AccountVersions):
            assert len([each for each in app.resources if isinstance(each, kind)]) == 1
        tokens = next(each for each in app.resources if isinstance(each, Tokens))
        assert isinstance(tokens._versions, AccountVersions), "its own accounts are asked, not another process"
        app.start()
        await app.stop()


@pytest.mark.parametrize(
    ("said", "roles", "host", "goes_to"),
    [
        (None, BOTH, "127.0.0.1", "http://127.0.0.1:9000"),
        (None, BOTH, "0.0.0.0", "http://127.0.0.1:9000"),
        (None, BOTH, "::1", "http://[::1]:9000"),
        (None, ["billing.payments"], "127.0.0.1", "http://127.0.0.1:8001"),
        ("https://subscriptions.example/", BOTH, "127.0.0.1", "https://subscriptions.example"),
    ],
)
async def test_notifications_go_where_subscriptions_answer(
    stage: OpenStage,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    said: str | None,
    roles: list[str],
    host: str,
    goes_to: str,
) -> None:
    monkeypatch.setenv("PAYONCE_HOST", host)
    if said is not None:
        monkeypatch.setenv("SUBSCRIPTION_SERVICE_URL", said)
    settings = load_settings()
    async with stage() as s, open_payments(settings, s.database) as resources:
        notify_this_process(resources, settings, roles, 9_000)
        [notifier] = [each for each in resources if isinstance(each, NotificationSender)]
        assert notifier._url == f"{goes_to}/v1/webhooks/payment"


async def test_a_command_without_secrets_reads_the_gateways_statement(
    stage: OpenStage, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JWT_SECRET_KEY")
    settings = load_settings()
    async with stage() as s, open_payments(settings, s.database) as resources:
        assert len(statements(resources)) == 1
        assert not [each for each in resources if isinstance(each, NotificationSender)]
