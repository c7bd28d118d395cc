"""Settings that name a secret are read with Google's own client, once, at the start; no error shows what is inside."""

import builtins
import re
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from payonce.kit.outcomes import Invalid, PayonceError, Unavailable
from payonce.services.payouts.settings import PayoutsSettings
from payonce.settings import load_settings, references
from tests.cli.secret_manager import SecretManager, serving

SECRET = "hunter2-hunter2-hunter2"
KEY, FEE = (
    "projects/shop-1/secrets/SUCCESS_URL_SIGNING_KEY/versions/latest",
    "projects/7/secrets/TP_FLAT_FEE/versions/3",
)


@pytest.fixture(scope="module", name="server")
def _server() -> Iterator[SecretManager]:
    with serving() as manager:
        yield manager


@pytest.fixture(name="manager")
def _manager(server: SecretManager, monkeypatch: pytest.MonkeyPatch) -> SecretManager:
    variables = [str(field.validation_alias) for field in PayoutsSettings.model_fields.values()]
    for name in ("DATABASE_URL", "DATABASE_OWNER_URL", *variables):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SECRET_MANAGER_ENDPOINT", server.endpoint)
    server.asked.clear()
    server.secrets.clear()
    return server


def test_a_reference_is_replaced_by_what_it_names(manager: SecretManager, monkeypatch: pytest.MonkeyPatch) -> None:
    manager.secrets |= {KEY: SECRET.encode() + b"\n", FEE: b"2.5 \n"}
    monkeypatch.setenv("SUCCESS_URL_SIGNING_KEY", KEY)
    monkeypatch.setenv("TPS_HOSTPAY_SIGNING_KEY", f"{KEY}\n")
    monkeypatch.setenv("TP_FLAT_FEE", FEE)
    settings = load_settings()
    payouts = settings.of(PayoutsSettings)
    keys = (*payouts.signing_keys(settings), *payouts.hostpay_keys(settings))
    assert [key.reveal() for key in keys] == [SECRET, SECRET]
    assert str(payouts.fee_percent) == "2.5"
    assert sorted(manager.asked) == sorted([KEY, FEE]), "each is asked for once"


def test_any_setting_may_be_a_reference(manager: SecretManager, monkeypatch: pytest.MonkeyPatch) -> None:
    manager.secrets["projects/p/secrets/s/versions/1"] = b"postgresql://someone@host/x"
    monkeypatch.setenv("DATABASE_URL", "projects/p/secrets/s/versions/1")
    url = load_settings().database_url
    assert url is not None
    assert url.get_secret_value() == "postgresql://someone@host/x"


def test_anything_else_is_taken_as_it_is(manager: SecretManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUCCESS_URL_SIGNING_KEY", f"{SECRET} \n")
    monkeypatch.setenv("SOMEBODY_ELSES_VARIABLE", KEY)
    assert [key.reveal() for key in load_settings().of(PayoutsSettings).signing_keys(load_settings())] == [SECRET]
    assert manager.asked == []


@pytest.mark.parametrize(
    "almost",
    [
        "projects/p/secrets/s",
        "projects/p/secrets/s/versions/",
        "projects/secrets/s/versions/1",
        "projects/p/locations/europe-west1/secrets/s/versions/1",
    ],
)
def test_what_is_almost_a_reference_is_no_key(
    manager: SecretManager, monkeypatch: pytest.MonkeyPatch, almost: str
) -> None:
    monkeypatch.setenv("SUCCESS_URL_SIGNING_KEY", almost)
    with pytest.raises(
        Invalid, match=f"^SUCCESS_URL_SIGNING_KEY is '{re.escape(almost)}'; a secret is named projects/"
    ):
        load_settings().of(PayoutsSettings)


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (grpc.StatusCode.NOT_FOUND, Invalid, "which Secret Manager does not have; make it"),
        (grpc.StatusCode.PERMISSION_DENIED, Invalid, "which this process may not read; grant its account the role"),
        (grpc.StatusCode.UNAUTHENTICATED, Invalid, "which this process may not read; grant its account the role"),
        (grpc.StatusCode.FAILED_PRECONDITION, Invalid, "which is disabled or destroyed; add a version"),
        (grpc.StatusCode.INVALID_ARGUMENT, Invalid, "which Secret Manager refuses as a name"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, Unavailable, "Secret Manager does not answer; try again"),
        (grpc.StatusCode.DATA_LOSS, Unavailable, "Secret Manager does not answer; try again"),
        (b"", Invalid, "which is empty; add a version"),
        (b" \n", Invalid, "which is empty; add a version"),
        (b"\xff" + SECRET.encode(), Invalid, "which is not text; store it as UTF-8"),
    ],
)
def test_what_cannot_be_read_is_one_sentence_without_its_value(
    manager: SecretManager, monkeypatch: pytest.MonkeyPatch, answer: Any, kind: type[PayonceError], said: str
) -> None:
    manager.secrets[KEY] = answer
    monkeypatch.setenv("SUCCESS_URL_SIGNING_KEY", KEY)
    with pytest.raises(kind, match=rf"^SUCCESS_URL_SIGNING_KEY names {KEY}, .*{said}") as no:
        load_settings().of(PayoutsSettings)
    assert SECRET not in str(no.value)


def test_a_bad_value_that_was_a_secret_is_not_shown(manager: SecretManager, monkeypatch: pytest.MonkeyPatch) -> None:
    manager.secrets[FEE] = SECRET.encode()
    monkeypatch.setenv("TP_FLAT_FEE", FEE)
    with pytest.raises(Invalid, match=r"^TP_FLAT_FEE set, its value is not shown; it must be a percentage") as no:
        load_settings().of(PayoutsSettings)
    assert SECRET not in str(no.value)


def test_an_unreachable_secret_manager_is_told_within_the_limit(
    manager: SecretManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "ANSWER_LIMIT_S", 0.2)
    monkeypatch.setenv("SECRET_MANAGER_ENDPOINT", "127.0.0.1:1")
    monkeypatch.setenv("SUCCESS_URL_SIGNING_KEY", KEY)
    with pytest.raises(Unavailable, match="Secret Manager does not answer"):
        load_settings().of(PayoutsSettings)


@pytest.mark.parametrize("endpoint", ["secrets.example:443", "10.0.0.1:80", "127.0.0.1", "localhost:x"])
def test_secrets_pass_no_network_without_tls(
    manager: SecretManager, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setenv("SECRET_MANAGER_ENDPOINT", endpoint)
    monkeypatch.setenv("SUCCESS_URL_SIGNING_KEY", KEY)
    with pytest.raises(Invalid, match=f"^SECRET_MANAGER_ENDPOINT is '{re.escape(endpoint)}'; it must be host:port"):
        load_settings().of(PayoutsSettings)


def test_without_google_credentials_the_way_out_is_told(
    manager: SecretManager, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.delenv("SECRET_MANAGER_ENDPOINT")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    monkeypatch.setenv("SUCCESS_URL_SIGNING_KEY", KEY)
    with pytest.raises(Unavailable, match="no Google credentials"):
        load_settings().of(PayoutsSettings)


def test_without_the_extra_the_way_out_is_told(manager: SecretManager, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_import = builtins.__import__

    def without_google(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("google"):
            raise ModuleNotFoundError(name)
        return plain_import(name, *arguments, **options)

    monkeypatch.setenv("SUCCESS_URL_SIGNING_KEY", KEY)
    monkeypatch.setattr(builtins, "__import__", without_google)
    with pytest.raises(Unavailable, match=r"pip install 'payonce\[gcp\]'"):
        load_settings().of(PayoutsSettings)
