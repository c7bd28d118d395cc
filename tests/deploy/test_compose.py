"""The compose file has what the compose specification allows, and names roles, settings and commands that exist."""

import asyncio
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import jsonschema_rs
import pytest
from typer.main import get_command

from payonce.app.addresses import Addresses
from payonce.app.process import App, migrate_database
from payonce.app.registry import check_roles, role_names
from payonce.cli.application import app
from payonce.embedded import Server, client_environment, psql_command, reset, start
from payonce.http.hosts import Hosts
from payonce.http.kit.problems import Problem
from payonce.kit.outcomes import Unavailable
from payonce.services.billing.settings import BillingSettings
from payonce.settings import Settings, load_settings
from payonce.settings.access import AccessSettings
from payonce.settings.variables import variables
from payonce.testing.servers import QUICK_SETTINGS
from tests.deploy.documents import DEPLOY, read_yaml

FILE = read_yaml("compose.yaml")
SERVICES: Mapping[str, Any] = FILE["services"]
TEXT = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
OURS = {name for name, service in SERVICES.items() if service["image"] == "payonce"}
ONCE = {"logins", "migrate"}
WORDS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
TIME = {"type": "string", "pattern": "^[0-9]+s$"}
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "services", "volumes"],
    "patternProperties": {"^x-": {}},
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"},
        "volumes": {"type": "object", "additionalProperties": {"type": "null"}},
        "services": {"type": "object", "additionalProperties": {"$ref": "#/$defs/service"}},
    },
    "$defs": {
        "service": {
            "type": "object",
            "additionalProperties": False,
            "required": ["image"],
            "properties": {
                "build": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"context": {"type": "string"}, "dockerfile": {"type": "string"}},
                },
                "image": {"type": "string"},
                "command": WORDS,
                "profiles": WORDS,
                "ports": WORDS,
                "volumes": WORDS,
                "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]},
                "stop_grace_period": TIME,
                "environment": {"type": "object", "additionalProperties": {"type": "string"}},
                "depends_on": {
                    "type": "object",
                    "additionalProperties": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["condition"],
                        "properties": {"condition": {"enum": ["service_healthy", "service_completed_successfully"]}},
                    },
                },
                "healthcheck": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["test"],
                    "properties": {
                        "test": {**WORDS, "prefixItems": [{"enum": ["CMD", "CMD-SHELL"]}]},
                        "interval": TIME,
                        "timeout": TIME,
                        "start_period": TIME,
                        "retries": {"type": "integer", "minimum": 1},
                    },
                },
                "deploy": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"replicas": {"type": "integer", "minimum": 1}},
                },
            },
        }
    },
}
"""The part of the compose specification that is used: another key is a typo, or belongs here too."""


def test_the_file_has_only_keys_and_values_of_the_specification() -> None:
    assert [str(error) for error in jsonschema_rs.validator_for(SCHEMA).iter_errors(FILE)] == []


@pytest.mark.parametrize(
    "slip",
    [
        {"dependson": {}},
        {"restart": "sometimes"},
        {"healthcheck": {"tests": ["CMD", "x"]}},
        {"command": [1]},
        {"depends_on": {"redis": {"condition": "service_up"}}},
        {"environment": {"PORT": 80}},
    ],
)
def test_a_planted_slip_is_found(slip: dict[str, Any]) -> None:
    planted = {**FILE, "services": {"one": {"image": "payonce", **slip}}}
    assert not jsonschema_rs.validator_for(SCHEMA).is_valid(planted)


def test_both_services_their_workers_and_both_stores_are_there() -> None:
    run = [SERVICES[name]["command"][1:] for name in OURS if SERVICES[name]["command"][0] == "run"]
    roles = [[word for word in words if "." in word] for words in run]
    assert {role for each in roles for role in each} <= set(role_names())
    for role in ("billing.subscriptions", "billing.payments"):
        assert len([each for each in roles if role in each]) == 2, f"{role} and more workers of it"
    assert {SERVICES[name]["image"].partition(":")[0] for name in SERVICES} == {"payonce", "postgres", "redis"}


def test_every_command_is_one_that_there_is() -> None:
    known = get_command(app)
    for name in OURS:
        command: Any = known
        words = list(SERVICES[name]["command"])
        while getattr(command, "commands", None):
            command = command.commands[words.pop(0)]
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, name


def test_every_long_running_process_has_a_health_check_on_the_port_that_it_has() -> None:
    for name in SERVICES.keys() - ONCE - {"simulators"}:
        check = SERVICES[name]["healthcheck"]["test"]
        if name in OURS:
            port = SERVICES[name]["command"][-1]
            assert check[-1] == f"http://127.0.0.1:{port}/readyz", name
            compile(check[3], name, "exec")
            assert SERVICES[name]["healthcheck"]["timeout"] == "10s", "as docs/http.md advises for new connections"
            assert "timeout=9" in check[3], "the check itself says why it failed"


def test_what_is_waited_for_is_there_and_can_tell() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in SERVICES, f"{name} waits for {other}"
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], other
            else:
                assert other in ONCE, other
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert (DEPLOY / source).is_file() if source.startswith("./") else source in FILE["volumes"], volume


def test_nothing_is_open_to_the_network_and_no_secret_has_a_default() -> None:
    for service in SERVICES.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    referenced = dict(re.findall(r"\$\{(\w+)(:?[?-])", TEXT))
    assert {name for name, how in referenced.items() if how != ":?"} == {
        "GATEWAY_URL",
        "PAYONCE_TRUSTED_PROXIES",
        "PAYONCE_ALLOWED_HOSTS",
    }


def test_the_environment_is_one_that_the_settings_take(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = SERVICES["payments"]["environment"]
    known = {*variables(Settings), *variables(AccessSettings), *variables(BillingSettings)}
    assert environment.keys() | SERVICES["migrate"]["environment"].keys() <= known
    given = {
        "BILLING_SERVICE_PASSWORD": "secret",
        "PAYONCE_KEYS": "k1:" + "A" * 43 + "=",
        "JWT_SECRET_KEY": "a" * 64,
        "WEBHOOK_SIGNING_SECRET": "b" * 64,
        "GATEWAY_API_KEY": "simulated",
        "GATEWAY_WEBHOOK_SECRET": "c" * 64,
        "PAYONCE_TRUSTED_PROXIES": "",
        "PAYONCE_ALLOWED_HOSTS": default_of("PAYONCE_ALLOWED_HOSTS"),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, re.sub(r"\$\{(\w+):[^}]*\}", lambda found: given.get(found[1], "http://g:1"), value))
    settings = load_settings()
    check_roles(settings, ["billing.subscriptions", "billing.payments"])
    assert settings.redis_url is not None
    assert settings.trusted_proxies is None
    assert "PAYONCE_TRUSTED_PROXIES" in environment
    assert settings.access.allowed_hosts == "localhost,subscriptions,payments"


def test_processes_answer_to_the_names_that_they_call_each_other_by_and_to_no_other() -> None:
    called = {urlsplit(url).hostname for url in re.findall(r"http://[a-z0-9.:-]+", TEXT)} - {"simulators"}
    assert {"127.0.0.1", "subscriptions", "payments"} == called
    for name in OURS - {"migrate", "simulators"}:
        assert SERVICES[name]["environment"]["PAYONCE_ALLOWED_HOSTS"].startswith("${PAYONCE_ALLOWED_HOSTS:-")
    hosts = Hosts("0.0.0.0", default_of("PAYONCE_ALLOWED_HOSTS"))
    for host in called:
        hosts.check(f"{host}:8001".encode())
    with pytest.raises(Problem, match=r"does not answer to the name 'rebound\.example'"):
        hosts.check(b"rebound.example")


def default_of(variable: str) -> str:
    found: list[str] = re.findall(rf"\$\{{{variable}:-([^}}]*)\}}", TEXT)
    return found[0]


def test_services_know_neither_the_administrators_nor_the_owners_password() -> None:
    for name in OURS - {"migrate"}:
        environment = "".join(SERVICES[name]["environment"].values())
        assert "POSTGRES_PASSWORD" not in environment
        assert "OWNER" not in environment
        assert "//billing_service:" in environment
    assert "//billing_owner:" in SERVICES["migrate"]["environment"]["DATABASE_OWNER_URL"]
    assert "POSTGRES_PASSWORD" not in "".join(SERVICES["migrate"]["environment"].values())


async def test_the_logins_migrate_and_serve_and_services_start_with_neither_superuser_nor_owner(
    empty: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    passwords = {"BILLING_OWNER_PASSWORD": "it's one", "BILLING_SERVICE_PASSWORD": "it's another"}
    environment = {**client_environment(empty.superuser_url), **passwords}
    command = [*psql_command(empty.superuser_url), "-X", "-q", "-f", str(DEPLOY / "postgres" / "logins.sql")]
    for _ in range(2):
        completed = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, text=True)
        assert (completed.returncode, completed.stderr) == (0, "")
    owner, service = (
        empty.superuser_url.replace("//postgres@", f"//{name}@", 1) for name in ("billing_owner", "billing_service")
    )
    await migrate_database(Addresses(service, owner))
    monkeypatch.setenv("PAYONCE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("DATABASE_URL", service)
    monkeypatch.setenv("PAYONCE_ACCEPT_DATA_LOSS", "true")
    async with App.open(load_settings(), ["tally.worker"]) as app:
        row = await app.read.fetchrow(
            "select session_user::text, rolsuper, rolcreaterole from pg_roles where rolname = session_user"
        )
        assert tuple(row) == ("billing_service", False, False)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await app.database.work.execute("create table payonce.mine (id int)")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await app.database.work.execute("set role billing_owner")
    monkeypatch.setenv("DATABASE_URL", owner)
    with pytest.raises(Unavailable, match=r"logs in as billing_owner, which owns the schema.*PAYONCE_ACCEPT_OWNER"):
        async with App.open(load_settings(), ["tally.worker"]):
            pass
    async with App.open(load_settings()) as app:
        assert await app.read.fetchval("select current_user::text") == "payonce_service", "commands go on"
    monkeypatch.setenv("PAYONCE_ACCEPT_OWNER", "true")
    async with App.open(load_settings(), ["tally.worker"]) as app:
        assert await app.read.fetchval("select current_user::text") == "payonce_service"
    monkeypatch.setenv("DATABASE_URL", empty.superuser_url)
    with pytest.raises(Unavailable, match=r"logs in as postgres, which is a superuser.*PAYONCE_ACCEPT_SUPERUSER"):
        async with App.open(load_settings(), ["tally.worker"]):
            pass
    administrator = await asyncpg.connect(empty.superuser_url)
    await administrator.execute(
        "create role dba superuser; create role crew in role dba; grant crew to billing_service"
    )
    await administrator.close()
    monkeypatch.setenv("DATABASE_URL", service)
    with pytest.raises(Unavailable, match="logs in as billing_service, which is a member of dba, a superuser"):
        async with App.open(load_settings(), ["tally.worker"]):
            pass
    monkeypatch.setenv("DATABASE_URL", empty.superuser_url)
    monkeypatch.setenv("PAYONCE_ACCEPT_SUPERUSER", "true")
    async with App.open(load_settings(), ["tally.worker"]) as app:
        assert await app.read.fetchval("select current_user::text") == "payonce_service"


@pytest.fixture
def empty() -> Iterator[Server]:
    """A server without any table of payonce."""
    with tempfile.TemporaryDirectory(prefix="payonce-compose-") as folder:
        yield start(Path(folder) / "postgres", settings=QUICK_SETTINGS, tie_to_parent=True)
        reset(Path(folder) / "postgres")


def test_processes_get_longer_to_end_than_they_take() -> None:
    for name in OURS:
        grace_s = int(SERVICES[name]["stop_grace_period"].removesuffix("s"))
        assert grace_s > Settings.model_fields["grace_s"].default
