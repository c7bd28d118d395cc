"""The card gateway from the settings: simulated or real, within its budget, and as a stand-in for other processes."""

import re
import stat
from pathlib import Path

import pytest

from payonce.engine.database.rate_limits import SharedBudget
from payonce.engine.monitoring.metrics import REGISTRY
from payonce.kit.http import HttpClient
from payonce.kit.outcomes import Invalid, NotSent, Retry, Unknown
from payonce.kit.webhooks import new_secret
from payonce.services.billing.demo.simulators import open_simulated_gateway
from payonce.services.billing.resources import open_gateway
from payonce.services.billing.settings import BillingSettings
from payonce.settings import Settings, load_settings
from payonce.testing import OpenStage, eventually
from payonce.testing.faults import Fault, Script
from payonce.testing.faulty import Faulty
from payonce.testing.server import serving
from payonce.vendors.gateway.client import GatewayClient
from payonce.vendors.gateway.outbox import WebhookFaults
from payonce.vendors.gateway.port import BUDGET_BURST, BUDGET_PER_S, Gateway
from payonce.vendors.gateway.simulator import GatewaySimulator
from tests.vendors.gateway.at import KEY, PAYS, order
from tests.vendors.gateway.test_webhooks import Receiver

TRIES = 30


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for field in BillingSettings.model_fields.values():
        monkeypatch.delenv(str(field.validation_alias), raising=False)
    monkeypatch.setenv("PAYONCE_DATA_DIR", str(tmp_path))


def settings_with(tmp_path: Path, **variables: str) -> Settings:
    settings = Settings.model_validate({"PAYONCE_DATA_DIR": str(tmp_path)})
    return settings.having(BillingSettings.model_validate(variables))


def counted(call: str, outcome: str) -> float:
    labels = {"vendor": "gateway", "call": call, "outcome": outcome}
    return REGISTRY.get_sample_value("payonce_vendor_call_seconds_count", labels) or 0.0


async def test_without_key_and_address_it_is_simulated_in_the_process_and_its_calls_are_counted(
    stage: OpenStage, tmp_path: Path
) -> None:
    before = counted("charge", "ok")
    async with stage() as s, open_gateway(settings_with(tmp_path), s.database) as [client, simulator]:
        assert isinstance(client, Gateway)
        assert isinstance(simulator, GatewaySimulator)
        assert not isinstance(simulator, Gateway)
        charge = await client.charge(order(simulator.tokenise(PAYS)))
        assert [*simulator.books.charges] == [charge.id]
    assert counted("charge", "ok") == before + 1
    assert (tmp_path / "simulators" / "gateway.journal").exists()


@pytest.mark.parametrize("version", ["", "/", "/v1", "/v1/"])
async def test_a_key_and_an_address_lead_to_the_gateway(stage: OpenStage, tmp_path: Path, version: str) -> None:
    simulator = GatewaySimulator(api_key=KEY)
    async with stage() as s, serving(simulator) as url:
        settings = settings_with(tmp_path, GATEWAY_API_KEY=f"{KEY}\n", GATEWAY_URL=f"{url}{version}")
        async with open_gateway(settings, s.database) as [client]:
            assert isinstance(client, Gateway)
            await client.charge(order(simulator.tokenise(PAYS)))
    assert simulator.books.captured_total("AED").minor == 2_900


@pytest.mark.parametrize(
    ("named", "missing", "value"),
    [("GATEWAY_URL", "GATEWAY_API_KEY", "https://gateway.example"), ("GATEWAY_API_KEY", "GATEWAY_URL", KEY)],
)
async def test_half_of_it_is_refused(stage: OpenStage, tmp_path: Path, named: str, missing: str, value: str) -> None:
    async with stage() as s:
        with pytest.raises(Invalid, match=f"^{named} is set and {missing} is not; set both, or neither"):
            async with open_gateway(settings_with(tmp_path, **{named: value}), s.database):
                pass


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GATEWAY_URL", "gateway.example"),
        ("GATEWAY_TIMEOUT_S", "15"),
        ("GATEWAY_TIMEOUT_S", "nan"),
        ("GATEWAY_REQUESTS_PER_S", "0"),
    ],
)
def test_a_bad_value_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(Invalid, match=f"^{name} is '{re.escape(value)}'; it must be "):
        load_settings().of(BillingSettings)


@pytest.mark.parametrize(("name", "value"), [("GATEWAY_API_KEY", "two words"), ("GATEWAY_WEBHOOK_SECRET", "short")])
def test_a_bad_secret_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(Invalid, match=f"^{name} set, its value is not shown; ") as refused:
        load_settings().of(BillingSettings)
    assert value not in str(refused.value)


def test_the_secret_of_webhooks_is_the_settings_or_made_and_kept_or_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    billing = load_settings().of(BillingSettings)
    assert billing.gateway_secrets(None) == ()
    [made], [again] = billing.gateway_secrets(tmp_path), billing.gateway_secrets(tmp_path)
    assert made.key == again.key
    assert stat.S_IMODE((tmp_path / "gateway-webhook-secret").stat().st_mode) == 0o600
    old, new = new_secret().reveal(), new_secret().reveal()
    monkeypatch.setenv("GATEWAY_WEBHOOK_SECRET", f"{new} {old}")
    billing = load_settings().of(BillingSettings)
    assert [each.reveal() for each in billing.gateway_secrets(tmp_path)] == [new, old]
    assert new not in repr(billing)


async def test_a_rest_that_the_gateway_asks_for_holds_every_process_back(stage: OpenStage) -> None:
    simulator = GatewaySimulator()
    token = simulator.tokenise(PAYS)
    faulty = Faulty(simulator, Script([Fault.TOO_MANY_REQUESTS]), retry_after_s=30)
    async with stage() as s, stage() as other, HttpClient("g", "https://gateway.example", transport=faulty) as http:
        await s.clock.freeze()
        ours, theirs = (
            GatewayClient(http, KEY, SharedBudget(at.database, "gateway", BUDGET_PER_S, BUDGET_BURST, 1.0))
            for at in (s, other)
        )
        with pytest.raises(NotSent, match="too many requests"):
            await ours.charge(order(token))
        for each in (ours, theirs):
            with pytest.raises(Retry, match=r"next turn in 30\.0 s"):
                await each.find_charge("inv-1:1")
            with pytest.raises(NotSent, match=r"next turn in 30\.0 s"):
                await each.charge(order(token))
        assert faulty.enacted == {Fault.TOO_MANY_REQUESTS: 1}, "nobody asked the gateway meanwhile"
        await s.clock.advance(30)
        await theirs.charge(order(token))
    assert len(simulator.books.charges) == 1


async def test_above_its_limit_the_gateway_turns_requests_away() -> None:
    simulator = GatewaySimulator(limit_per_s=3, tick=lambda: 0.0)
    async with HttpClient("gateway", "https://gateway.example", transport=simulator) as http:
        client = GatewayClient(http, KEY)
        for _ in range(3):
            assert await client.find_charge("inv-1:1") is None
        with pytest.raises(Retry, match="answered 429"):
            await client.find_charge("inv-1:1")
    assert (simulator.meter.requests, simulator.meter.turned_away) == (4, 1)


async def test_the_stand_in_serves_other_processes_on_a_bad_day_and_tells_of_what_happened(
    monkeypatch: pytest.MonkeyPatch, stage: OpenStage
) -> None:
    receiver = Receiver()
    async with (
        serving(receiver) as url,
        open_simulated_gateway(
            5, 0.4, webhooks_to=f"{url}/v1/webhooks/gateway", post=WebhookFaults(duplicate=1.0)
        ) as stand_in,
        stage() as s,
    ):
        for name, value in stand_in.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("GATEWAY_TIMEOUT_S", "0.3")
        token = stand_in.simulator.tokenise(PAYS)
        async with open_gateway(load_settings(), s.database) as [client]:
            assert isinstance(client, Gateway)
            for number in range(12):
                await surely_charged(client, token, f"inv-{number}:1")
        await stand_in.deliver()
        stand_in.clock.advance(10)
        await eventually(lambda: len(receiver.came) >= 24)
        assert set(stand_in.simulator.books.captures_per_invoice().values()) == {1}
        assert sum(stand_in.faults().values()) >= 3
        assert len(set(receiver.ids)) == len(stand_in.simulator.books.charges) == 12


async def surely_charged(client: Gateway, token: str, reference: str) -> None:
    for _ in range(TRIES):
        try:
            await client.charge(order(token, reference))
            return
        except (NotSent, Unknown):
            continue
    raise AssertionError(f"not charged within {TRIES} tries")
