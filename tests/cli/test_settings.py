"""Settings from the environment: defaults, the data folder, and what is refused."""

import re
from pathlib import Path

import pytest

from payonce.examples.transfers.settings import TransfersSettings
from payonce.kit.outcomes import Invalid
from payonce.services.payouts.settings import PayoutsSettings
from payonce.settings import load_settings
from payonce.settings.data_folder import default_data_dir

VARIABLES = (
    *("DATABASE_URL", "DATABASE_OWNER_URL", "PORT", "CHANGENOW_API_KEY", "CHANGENOW_URL"),
    *(
        f"PAYONCE_{name}"
        for name in (
            "DATA_DIR",
            "HOST",
            "PORT",
            "SLOTS",
            "POOL_SIZE",
            "ACCEPT_DATA_LOSS",
            "GRACE_S",
            "LOG",
            "JOB_LOG_DAYS",
            "NORTHBANK_URL",
            "SOUTHBANK_URL",
        )
    ),
)


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_defaults_serve_without_any_variable() -> None:
    settings = load_settings()
    assert (settings.embedded, settings.host, settings.port, settings.log) == (True, "127.0.0.1", 8080, "auto")


def test_port_is_honoured_and_our_own_name_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "9000")
    assert load_settings().port == 9000
    monkeypatch.setenv("PAYONCE_PORT", "9001")
    assert load_settings().port == 9001


def test_an_empty_variable_is_an_unset_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "")
    assert load_settings().embedded


def test_addresses_are_secrets_and_settings_cannot_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://someone:hunter2@host/x")
    settings = load_settings()
    assert "hunter2" not in repr(settings) + str(settings.model_dump())
    with pytest.raises(ValueError, match="frozen"):
        settings.port = 1


def load_every_setting() -> None:
    settings = load_settings()
    settings.of(PayoutsSettings)
    settings.of(TransfersSettings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PAYONCE_SLOTS", "0"),
        ("PAYONCE_POOL_SIZE", "1.5"),
        ("PAYONCE_ACCEPT_DATA_LOSS", "perhaps"),
        ("PAYONCE_GRACE_S", "nan"),
        ("PAYONCE_GRACE_S", "-1"),
        ("PAYONCE_LOG", "loud"),
        ("PAYONCE_JOB_LOG_DAYS", "0"),
        ("PORT", "eighty"),
        ("PAYONCE_NORTHBANK_URL", "bank.example"),
        ("PAYONCE_SOUTHBANK_URL", "ftp://bank.example"),
        ("PAYONCE_CHAIN_URL", "127.0.0.1:8545"),
        ("CHANGENOW_URL", "api.changenow.io"),
        ("PAYONCE_METRICS", "closed"),
        ("PAYONCE_TRUSTED_PROXIES", "*"),
        ("PAYONCE_TRUSTED_PROXIES", "10.0.0.1, proxy.example"),
    ],
)
def test_a_bad_value_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(Invalid, match=f"^{name} is '{re.escape(value)}'; it must be "):
        load_every_setting()


def test_a_key_is_taken_without_the_white_space_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHANGENOW_API_KEY", "0123abcd\n")
    key = load_settings().of(PayoutsSettings).changenow_api_key
    assert key is not None
    assert key.get_secret_value() == "0123abcd"
    monkeypatch.setenv("CHANGENOW_API_KEY", "two words")
    with pytest.raises(Invalid, match=r"^CHANGENOW_API_KEY set, its value is not shown; it must be one word"):
        load_settings().of(PayoutsSettings)


def test_the_data_folder_is_the_projects_own(tmp_path: Path) -> None:
    inside = tmp_path / "shop" / "src"
    inside.mkdir(parents=True)
    (tmp_path / "shop" / "pyproject.toml").touch()
    assert default_data_dir(inside, {}) == tmp_path / "shop" / ".payonce"


def test_outside_a_project_it_is_the_users_data_folder(tmp_path: Path) -> None:
    assert default_data_dir(tmp_path, {"XDG_DATA_HOME": "/data"}) == Path("/data/payonce")
    assert default_data_dir(tmp_path, {"XDG_DATA_HOME": "relative"}) == Path.home() / ".local/share/payonce"


def test_an_address_may_name_several_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql://someone:hunter2@one:5432,two:5433/x?target_session_attrs=read-write"
    monkeypatch.setenv("DATABASE_URL", url)
    found = load_settings().database_url
    assert found is not None
    assert found.get_secret_value() == url


def test_every_port_of_an_address_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://someone:hunter2@one:5432,two:0/x")
    with pytest.raises(Invalid) as refusal:
        load_settings()
    assert "DATABASE_URL" in str(refusal.value)
    assert "hunter2" not in str(refusal.value)
