"""What billing reads from the environment: defaults, secrets that must be there, and what is refused."""

import re
import stat
from pathlib import Path

import pytest

from payonce.app.registry import check_roles, usual_port
from payonce.kit.outcomes import Invalid, Unavailable
from payonce.services.billing.settings import BillingSettings, jwt_keys, notification_secrets
from payonce.services.billing.subscriptions.pdf import glyphs
from payonce.services.billing.subscriptions.resources import invoice_fonts
from payonce.settings import load_settings
from payonce.settings.variables import variables

KEY = "0123456789abcdef0123456789abcdef"
ADDRESS = "postgresql://someone@host/x"
SUBSCRIPTIONS, PAYMENTS = "billing.subscriptions", "billing.payments"
NEEDED = {"JWT_SECRET_KEY": KEY, "WEBHOOK_SIGNING_SECRET": KEY}


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    others = ("DATABASE_URL", "DATABASE_OWNER_URL", "WEBHOOK_SIGNING_SECRET", "PAYONCE_PORT", "PORT")
    for name in (*others, *variables(BillingSettings)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PAYONCE_DATA_DIR", str(tmp_path))


@pytest.mark.parametrize("role", [SUBSCRIPTIONS, PAYMENTS])
@pytest.mark.parametrize("missing", NEEDED)
def test_without_a_secret_no_role_of_billing_starts(monkeypatch: pytest.MonkeyPatch, role: str, missing: str) -> None:
    monkeypatch.setenv("DATABASE_URL", ADDRESS)
    for name in NEEDED.keys() - {missing}:
        monkeypatch.setenv(name, KEY)
    settings = load_settings()
    with pytest.raises(Invalid, match=f"^{missing} is not set"):
        check_roles(settings, ["tally.worker", role])
    check_roles(settings, ["tally.worker"])


def test_the_private_database_has_secrets_of_its_own_and_keeps_them(tmp_path: Path) -> None:
    check_roles(load_settings(), [SUBSCRIPTIONS])
    [jwt_key], [secret] = jwt_keys(load_settings()), notification_secrets(load_settings())
    assert [jwt_key] == list(jwt_keys(load_settings()))
    assert jwt_key != secret.key
    for name in ("billing-jwt-key", "billing-webhook-secret"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_while_secrets_are_exchanged_there_are_several(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NEEDED:
        monkeypatch.setenv(name, f"{'n' * 32} {KEY}\n")
    settings = load_settings()
    assert jwt_keys(settings) == (b"n" * 32, KEY.encode())
    assert [each.reveal() for each in notification_secrets(settings)] == ["n" * 32, KEY]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BILLING_REGISTRATIONS_MAX", "-1"),
        ("BILLING_REGISTRATIONS_MAX", "many"),
        ("BILLING_REGISTRATIONS_MAX", "1000001"),
        ("BILLING_REGISTRATIONS_MAX", "2.5"),
        ("ACCESS_TOKEN_EXPIRE_MINUTES", "0"),
        ("ACCESS_TOKEN_EXPIRE_MINUTES", "soon"),
        ("BILLING_INVOICE_FONTS", "fonts/Here.ttf"),
        ("BILLING_INVOICE_FONTS_BOLD", ";".join(["/f.ttf"] * 9)),
        ("REFRESH_TOKEN_EXPIRE_DAYS", "367"),
        ("SUBSCRIPTION_SERVICE_URL", "subscriptions:8001"),
    ],
)
def test_a_bad_value_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(Invalid, match=f"^{name} is '{re.escape(value)}'; it must "):
        load_settings().of(BillingSettings)


@pytest.mark.parametrize("value", ["short", "é" * 40, f"{KEY} short", "x" * 257])
def test_a_bad_key_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("JWT_SECRET_KEY", value)
    with pytest.raises(Invalid, match=r"^JWT_SECRET_KEY set, its value is not shown; each key must have 32") as told:
        load_settings().of(BillingSettings)
    assert value not in str(told.value)


def test_each_service_alone_has_its_port_unless_it_is_told_another(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings()
    assert [usual_port(settings, [role]) for role in (SUBSCRIPTIONS, PAYMENTS, "tally.worker")] == [8001, 8002, None]
    assert usual_port(settings, [SUBSCRIPTIONS, PAYMENTS]) is None
    monkeypatch.setenv("PAYONCE_PORT", "9000")
    settings = load_settings()
    assert [usual_port(settings, [role]) for role in (SUBSCRIPTIONS, PAYMENTS, "tally.worker")] == [9000, 9000, None]


@pytest.mark.parametrize("name", ["BILLING_INVOICE_FONTS", "BILLING_INVOICE_FONTS_BOLD"])
def test_a_font_that_cannot_be_read_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    ours = Path(glyphs.__file__).parent / "fonts" / "DejaVuSans.ttf"
    broken = tmp_path / "broken.otf"
    broken.write_bytes(b"OTTO" + bytes(100))
    monkeypatch.setenv(name, f"{ours}; {ours}")
    fonts = invoice_fonts(load_settings())
    assert fonts.regular + fonts.bold == (ours, ours)
    for path in (broken, tmp_path / "nowhere.ttf"):
        monkeypatch.setenv(name, f"{ours};{path}")
        with pytest.raises(Unavailable, match=rf"the font {path} cannot be read as TrueType"):
            invoice_fonts(load_settings())


def test_every_variable_stands_in_the_table() -> None:
    import payonce.services.billing.settings as room

    assert room.__doc__ is not None
    assert set(variables(BillingSettings)) <= set(re.findall(r"[A-Z][A-Z_]+", room.__doc__))
