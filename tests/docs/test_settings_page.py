"""The page on settings matches the settings classes and the requirements of each role at its start."""

import pytest
from pydantic import SecretStr

from payonce.app.registry import SERVICES, check_roles
from payonce.kit.outcomes import Invalid
from payonce.settings import load_settings
from payonce.settings.variables import variables
from tests.docs import settings_page
from tests.docs.settings_page import ALIASES, MODELS, REQUIRED, documented

ROLES = [f"{service.name}.{role}" for service in SERVICES for role in service.roles]
URL = "postgresql://service@db.example/payonce"
KEY = "a-key-of-this-test-0123456789abcdef"


def test_the_page_is_what_the_settings_declare() -> None:
    assert settings_page.PAGE.read_text() == settings_page.page(), (
        "write it again: .venv/bin/python -m tests.docs.settings_page"
    )


def test_every_setting_is_in_a_table_of_its_module_and_every_row_is_a_setting() -> None:
    fields = {name for model in MODELS for name in variables(model)} - set(ALIASES)
    documentation = {name for module in MODELS.values() for name in documented(module)}
    assert documentation == fields


def test_every_setting_is_on_the_page_once() -> None:
    names = [row.variable for row in settings_page.rows()]
    assert len(names) == len(set(names))
    text = settings_page.PAGE.read_text()
    assert [name for name in names if text.count(f"\n| `{name}` |") != 1] == []


def test_the_defaults_of_the_modules_are_those_of_the_fields() -> None:
    documentation = {name: unset for module in MODELS.values() for name, (_, unset) in documented(module).items()}
    shown = {row.variable: row.default.strip("`") for row in settings_page.rows() if row.default.startswith("`")}
    assert {name: documentation[name] for name in shown} == shown


@pytest.mark.parametrize("role", ROLES)
def test_a_role_starts_with_what_the_page_requires_and_not_without(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (name for model in MODELS for name in variables(model)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DATABASE_URL", URL)
    required = REQUIRED.get(f"{role.partition('.')[0]}.*", ())
    for name in required:
        monkeypatch.setenv(name, KEY)
    check_roles(load_settings(), [role])
    for name in required:
        monkeypatch.delenv(name)
        with pytest.raises(Invalid, match=f"^{name} is not set"):
            check_roles(load_settings(), [role])
        monkeypatch.setenv(name, KEY)


def test_a_secret_is_marked_as_one() -> None:
    values = {row.variable: row.value for row in settings_page.rows()}
    for model in MODELS:
        for name, field in variables(model).items():
            if field.annotation == SecretStr | None:
                assert values[name].startswith("secret: "), name
