"""What payouts read from the environment: defaults, keys that must be there, and what is refused."""

import re
import stat
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qs, urlsplit

import pytest

from payonce.app.registry import check_roles
from payonce.engine.database.sessions import connect
from payonce.kit.outcomes import Invalid
from payonce.services.payouts.settings import PayoutsSettings
from payonce.settings import load_settings
from payonce.settings.cloud_sql import CloudSqlSettings
from payonce.testing import ScratchDatabase

KEY = "0123456789abcdef0123456789abcdef"
ADDRESS = "postgresql://someone@host/x"
ROLES = ["payouts.orchestrator", "payouts.estimator", "payouts.swapper", "payouts.hostpay"]
URLS = ("GCSPLIT1_URL", "GCSPLIT2_URL", "GCSPLIT3_URL", "HOSTPAY_WEBHOOK_URL")
CLOUD_SQL = {
    "INSTANCE_CONNECTION_NAME": "shop-1:us-central1:books",
    "DB_NAME": "pay/outs",
    "DB_USER": "app@shop",
    "DB_PASSWORD": "p@ss:w/rd?#",
}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    variables = [str(field.validation_alias) for field in PayoutsSettings.model_fields.values()]
    for name in ("DATABASE_URL", "DATABASE_OWNER_URL", "CLOUD_TASKS_PROJECT_ID", *CLOUD_SQL, *variables):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PAYONCE_DATA_DIR", str(tmp_path))


def payouts_settings() -> PayoutsSettings:
    return load_settings().of(PayoutsSettings)


def test_defaults_serve_without_any_variable() -> None:
    payouts = payouts_settings()
    assert payouts.fee_percent == Decimal(3)
    assert (payouts.allow_missing_payment_id, payouts.accepts_v1, payouts.emits_v1) == (False, False, False)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("missing", ["SUCCESS_URL_SIGNING_KEY", "TPS_HOSTPAY_SIGNING_KEY"])
def test_without_a_key_no_role_of_payouts_starts(monkeypatch: pytest.MonkeyPatch, role: str, missing: str) -> None:
    monkeypatch.setenv("DATABASE_URL", ADDRESS)
    for name in {"SUCCESS_URL_SIGNING_KEY", "TPS_HOSTPAY_SIGNING_KEY"} - {missing}:
        monkeypatch.setenv(name, KEY)
    settings = load_settings()
    with pytest.raises(Invalid, match=f"^{missing} is not set"):
        check_roles(settings, ["tally.worker", role])
    check_roles(settings, ["tally.worker"])


def test_the_private_database_has_keys_of_its_own_and_keeps_them(tmp_path: Path) -> None:
    check_roles(load_settings(), ROLES)
    [signing], [hostpay] = (
        payouts_settings().signing_keys(load_settings()),
        payouts_settings().hostpay_keys(load_settings()),
    )
    assert [signing.key] == [key.key for key in payouts_settings().signing_keys(load_settings())]
    assert signing.key != hostpay.key
    for name in ("payouts-signing-key", "payouts-hostpay-key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("role", ROLES)
def test_with_a_real_exchange_and_no_wallet_no_role_of_payouts_starts(
    monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    monkeypatch.setenv("CHANGENOW_API_KEY", KEY)
    with pytest.raises(Invalid, match=r"^CHANGENOW_API_KEY is set and there is no wallet: this version has none"):
        check_roles(load_settings(), [role])
    check_roles(load_settings(), ["tally.worker"])
    monkeypatch.setenv("CHANGENOW_URL", "http://127.0.0.1:9101")
    with pytest.raises(Invalid, match="there is no wallet"):
        check_roles(load_settings(), [role])
    monkeypatch.setenv("PAYONCE_CHAIN_URL", "http://127.0.0.1:9102")
    check_roles(load_settings(), [role])


@pytest.mark.parametrize("role", ROLES[:3])
def test_with_an_external_hostpay_the_other_roles_need_no_wallet(monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    monkeypatch.setenv("PAYOUTS_HOSTPAY", "external")
    for missing, value in (
        ("HOSTPAY_WEBHOOK_URL", "https://gchostpay.example/pay/"),
        ("HOST_WALLET_ADDRESS", "0x" + "12" * 20),
        ("CHANGENOW_API_KEY", KEY),
    ):
        with pytest.raises(Invalid, match=missing):
            check_roles(load_settings(), [role])
        monkeypatch.setenv(missing, value)
    settings = load_settings()
    check_roles(settings, [role])
    with pytest.raises(Invalid, match=r"your own GCHostPay pays; do not run payouts\.hostpay"):
        check_roles(settings, ROLES)
    assert settings.of(PayoutsSettings).runnable(ROLES) == ROLES[:3]
    written = settings.of(PayoutsSettings).hostpay_url
    assert written == "https://gchostpay.example/pay/", "as written: others may not redirect"


def test_while_keys_are_exchanged_there_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUCCESS_URL_SIGNING_KEY", f"{'n' * 32} {KEY}\n")
    assert [key.reveal() for key in payouts_settings().signing_keys(load_settings())] == ["n" * 32, KEY]


def test_at_google_every_address_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_TASKS_PROJECT_ID", "shop-1")
    for name in URLS:
        with pytest.raises(Invalid, match=f"and {name} is not; it must be an address"):
            check_roles(load_settings(), ROLES)
        monkeypatch.setenv(name, "https://role-xxx.run.app/")
    settings = load_settings()
    check_roles(settings, ROLES)
    assert settings.of(PayoutsSettings).gcsplit2_url == "https://role-xxx.run.app"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TP_FLAT_FEE", "three"),
        ("TP_FLAT_FEE", "3%"),
        ("TP_FLAT_FEE", "-1"),
        ("TP_FLAT_FEE", "100"),
        ("TP_FLAT_FEE", "nan"),
        ("TP_FLAT_FEE", "1e1"),
        ("TP_FLAT_FEE", "3.1234567"),
        ("TP_FLAT_FEE", "٣"),
        ("GCSPLIT1_URL", "gcsplit1.run.app"),
        ("HOSTPAY_WEBHOOK_URL", "ftp://hostpay.example"),
        ("GCSPLIT2_QUEUE", "my_queue"),
        ("GCSPLIT3_QUEUE", "projects/p/queues/q"),
        ("HOSTPAY_QUEUE", "q" * 101),
        ("GCSPLIT1_RESPONSE_QUEUE", "gcsplit-hostpay-trigger-queue"),
        ("ESTIMATOR__GCSPLIT1_RESPONSE_QUEUE", "a b"),
        ("SWAPPER__GCSPLIT1_RESPONSE_QUEUE", "é"),
        ("PAYOUTS_ALLOW_MISSING_PAYMENT_ID", "perhaps"),
        ("PAYOUTS_TOKENS_V1", "on"),
        ("PAYOUTS_HOSTPAY", "mine"),
        ("PAYOUTS_WEBHOOK_FORMAT", "seed"),
        ("HOST_WALLET_ADDRESS", "0x12"),
        ("INSTANCE_CONNECTION_NAME", "/cloudsql/books"),
    ],
)
def test_a_bad_value_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(Invalid, match=f"^{name} is '{re.escape(value)}'; it must "):
        load_settings().of(PayoutsSettings)


@pytest.mark.parametrize("name", ["SUCCESS_URL_SIGNING_KEY", "TPS_HOSTPAY_SIGNING_KEY", "CHANGENOW_API_KEY"])
def test_a_bad_key_is_not_shown(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "hünter2")
    with pytest.raises(Invalid, match=f"^{name} set, its value is not shown; ") as no:
        load_settings().of(PayoutsSettings)
    assert "nter2" not in str(no.value)


def test_the_task_service_may_call_a_queue_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "gcsplit-usdt-eth-estimate-queue": "GCSPLIT2_QUEUE",
        "gcsplit-usdt-eth-response-queue": "ESTIMATOR__GCSPLIT1_RESPONSE_QUEUE",
        "gcsplit-eth-client-swap-queue": "GCSPLIT3_QUEUE",
        "gcsplit-eth-client-response-queue": "SWAPPER__GCSPLIT1_RESPONSE_QUEUE",
        "gcsplit-hostpay-trigger-queue": "HOSTPAY_QUEUE",
    }
    assert {queue: payouts_settings().called(queue) for queue in variables} == {name: name for name in variables}
    for queue, variable in variables.items():
        monkeypatch.setenv(variable, f"{queue}-2")
    assert all(payouts_settings().called(queue) == f"{queue}-2" for queue in variables)
    monkeypatch.setenv("GCSPLIT1_RESPONSE_QUEUE", "gcsplit-usdt-eth-response-queue")
    assert payouts_settings().response_queue == "gcsplit-usdt-eth-response-queue"


def test_no_text_of_the_settings_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SUCCESS_URL_SIGNING_KEY", "TPS_HOSTPAY_SIGNING_KEY", "CHANGENOW_API_KEY", "DB_PASSWORD"):
        monkeypatch.setenv(name, KEY)
    settings = load_settings()
    assert KEY not in repr(settings) + str(settings.model_dump()) + repr(
        settings.of(PayoutsSettings).signing_keys(settings)
    )


def test_cloud_sql_is_reached_by_its_socket_when_no_address_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CLOUD_SQL.items():
        monkeypatch.setenv(name, value)
    found = load_settings().database_url
    assert found is not None
    assert found.get_secret_value() == (
        "postgresql://app%40shop:p%40ss%3Aw%2Frd%3F%23@/pay%2Fouts?host=%2Fcloudsql%2Fshop-1%3Aus-central1%3Abooks"
    )
    assert not load_settings().embedded
    monkeypatch.setenv("DATABASE_URL", ADDRESS)
    assert load_settings().database_url != found


@pytest.mark.parametrize("missing", ["DB_NAME", "DB_USER", "DB_PASSWORD"])
def test_half_a_cloud_sql_database_is_none(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name, value in CLOUD_SQL.items():
        if name != missing:
            monkeypatch.setenv(name, value)
    with pytest.raises(Invalid, match=f"{missing} is not set; set it, or name the database by DATABASE_URL") as no:
        load_settings().of(PayoutsSettings)
    assert CLOUD_SQL["DB_PASSWORD"] not in str(no.value)


async def test_a_connection_goes_through_the_socket_of_the_instance(scratch: ScratchDatabase) -> None:
    """PostgreSQL's own socket stands where Cloud SQL puts the instance's."""
    parts = urlsplit(scratch.owner_url)
    instance = "shop-1:us-central1:books"
    # Not in pytest's folder: the path of a socket has at most 107 bytes.
    with TemporaryDirectory() as folder:
        (Path(folder) / instance).symlink_to(parse_qs(parts.query)["host"][0])
        cloud_sql = CloudSqlSettings.model_validate(
            {
                "INSTANCE_CONNECTION_NAME": instance,
                "DB_NAME": parts.path.lstrip("/"),
                "DB_USER": parts.username,
                "DB_PASSWORD": CLOUD_SQL["DB_PASSWORD"],
            }
        )
        connection = await connect(cloud_sql.url(folder) or "")
        try:
            assert await connection.fetchval("select current_database()") == cloud_sql.db_name
        finally:
            await connection.close()
