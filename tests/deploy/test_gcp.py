"""The output of deploy/gcp matches policies, settings and roles; when applied, it creates only missing resources."""

import inspect
import os
import re
import shlex
import subprocess
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from payonce.app.registry import check_roles
from payonce.engine.messages.policy import Fixed
from payonce.http.server import SHUTDOWN_LIMIT_S
from payonce.kit.outcomes import Invalid
from payonce.queues.cloudtasks import client
from payonce.services import payouts
from payonce.services.payouts import policies
from payonce.services.payouts.messages.tokens import HOPS
from payonce.services.payouts.settings import PayoutsSettings
from payonce.settings import Settings, load_settings
from payonce.settings.access import AccessSettings
from payonce.settings.cloud_sql import CloudSqlSettings
from payonce.settings.variables import variables
from tests.cli.secret_manager import serving
from tests.deploy.documents import DEPLOY

SCRIPT = DEPLOY / "gcp/payouts.sh"
GIVEN = {
    "PROJECT": "shop-1",
    "IMAGE": "registry.example/payonce:1",
    "INSTANCE": "books",
    "PROJECT_NUMBER": "42",
    "HOST_WALLET_ADDRESS": "0x" + "e3" * 20,
}
SERVICES = {
    "gcsplit1-10-26": ("payouts.orchestrator", "2", "1Gi"),
    "gcsplit2-10-26": ("payouts.estimator", "1", "512Mi"),
    "gcsplit3-10-26": ("payouts.swapper", "1", "512Mi"),
    "gchostpay-10-26": ("payouts.hostpay", "1", "512Mi"),
}
Command = list[str]


def ran(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = environment.pop("PATH", os.environ["PATH"])
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments],
        env={"PATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def printed(*steps: str, **also: str) -> list[Command]:
    done = ran(*steps, **GIVEN, **also)
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in done.stdout.splitlines() if not line.startswith("#")]


def flags(command: Command) -> dict[str, str]:
    parts = [part.partition("=") for part in command if part.startswith("--")]
    return {name: value for name, _, value in parts}


def deployed(**also: str) -> dict[str, Command]:
    return {command[3]: command for command in printed("services", **also)}


def environment_of(command: Command) -> dict[str, str]:
    text = flags(command)["--set-env-vars"]
    assert text.startswith("^|^")
    return dict(pair.split("=", 1) for pair in text[3:].split("|"))


def test_the_script_is_one_that_bash_can_read() -> None:
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    assert os.access(SCRIPT, os.X_OK)


@pytest.mark.parametrize("missing", ["PROJECT", "IMAGE", "INSTANCE", "HOST_WALLET_ADDRESS"])
def test_what_is_not_given_is_asked_for(missing: str) -> None:
    done = ran(**{name: value for name, value in GIVEN.items() if name != missing})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{missing} is not set; it must ")


@pytest.mark.parametrize(
    ("argument", "message"), [("everything", "there is no step everything"), ("--now", "no option")]
)
def test_unknown_arguments_are_refused(argument: str, message: str) -> None:
    done = ran(argument, **GIVEN)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_the_queues_are_those_of_the_policies() -> None:
    found = {command[4]: flags(command) for command in printed("queues")}
    assert list(found) == [policy.queue for policy in policies.QUEUES]
    for policy in policies.QUEUES:
        backoff = "60s"
        assert policy.backoff == Fixed(60.0)
        assert found[policy.queue] == {
            "--max-dispatches-per-second": f"{policy.rate:g}",
            "--max-concurrent-dispatches": str(policy.concurrency),
            "--max-attempts": "-1",
            "--max-retry-duration": f"{policy.give_up_after_s:.0f}s",
            "--min-backoff": backoff,
            "--max-backoff": backoff,
            "--max-doublings": "0",
            "--location": "us-central1",
            "--project": "shop-1",
        }
        assert policy.max_attempts is None


def test_each_role_is_a_service_of_its_size() -> None:
    found = deployed()
    assert {
        name: (command[5].split(",")[1], flags(command)["--cpu"], flags(command)["--memory"])
        for name, command in found.items()
    } == SERVICES
    assert {f"payouts.{role}" for role in payouts.ROLES} <= {role for role, _, _ in SERVICES.values()}
    assert {hop.role for hop in HOPS} == {role.partition(".")[2] for role, _, _ in SERVICES.values()}
    for name, command in found.items():
        assert command[5] == f"--args=run,{SERVICES[name][0]},--port,{flags(command)['--port']}"
        assert flags(command)["--image"] == GIVEN["IMAGE"]


def test_who_fetches_its_work_itself_is_never_scaled_to_nothing() -> None:
    """No request wakes a role for a queue that is not pushed, and one process must hand over the tasks of all."""
    pushed = {policy.queue for policy in policies.QUEUES}
    found = {SERVICES[name][0].partition(".")[2]: flags(command) for name, command in deployed().items()}
    least = {role: int(each["--min-instances"]) for role, each in found.items()}
    fetching = {role for role, handlers in payouts.ROLES.items() if {each.policy.queue for each in handlers} - pushed}
    assert fetching == {"orchestrator", "hostpay"}
    assert {role for role, count in least.items() if count} == fetching
    assert all("--no-cpu-throttling" in each for each in found.values())
    most = {role: int(each["--max-instances"]) for role, each in found.items()}
    assert most == {"orchestrator": 4, "estimator": 4, "swapper": 4, "hostpay": 1}


def test_a_request_lives_longer_than_any_run() -> None:
    timeouts = {flags(command)["--timeout"] for command in deployed().values()}
    assert timeouts == {"120s"}
    assert all(policy.run_limit_s < 120 for policy in policies.QUEUES)


def test_only_the_webhook_is_open_and_tasks_may_call_the_rest() -> None:
    opened = {name for name, command in deployed().items() if "--allow-unauthenticated" in command}
    closed = {name for name, command in deployed().items() if "--no-allow-unauthenticated" in command}
    assert opened == {"gcsplit1-10-26"}
    assert closed == SERVICES.keys() - opened
    caller = "serviceAccount:payouts-tasks@shop-1.iam.gserviceaccount.com"
    bound = {command[4]: flags(command) for command in printed("access")}
    assert bound.keys() == closed
    assert {(one["--member"], one["--role"]) for one in bound.values()} == {(caller, "roles/run.invoker")}


@pytest.mark.parametrize("chosen", ["cloud-run", "payonce"])
def test_an_open_service_verifies_tokens_itself_and_a_closed_one_leaves_it_to_cloud_run(chosen: str) -> None:
    done = ran("services", "access", **GIVEN, TASKS_VERIFIED_BY=chosen)
    assert done.returncode == 0, done.stderr
    commands = [shlex.split(line) for line in done.stdout.splitlines() if not line.startswith("#")]
    services = {command[3]: command for command in commands if command[2] == "deploy"}
    assert services.keys() == SERVICES.keys()
    for name, command in services.items():
        closed = chosen == "cloud-run" and name != "gcsplit1-10-26"
        assert ("--no-allow-unauthenticated" in command, "--allow-unauthenticated" in command) == (closed, not closed)
        assert environment_of(command)["CLOUD_TASKS_VERIFIED_BY"] == ("cloud-run" if closed else "payonce")
    bound = {command[4] for command in commands if command[3] == "add-iam-policy-binding"}
    assert bound == (SERVICES.keys() - {"gcsplit1-10-26"} if chosen == "cloud-run" else set())


@pytest.mark.parametrize("chosen", ["cloud-run", "payonce"])
def test_nobody_outside_the_project_reaches_a_service_whose_tokens_cloud_run_verifies(chosen: str) -> None:
    """An IAM policy that is opened by mistake would let anybody send unverified tokens. Cloud Tasks of the
    project counts as internal: https://cloud.google.com/run/docs/securing/ingress"""
    for command in deployed(TASKS_VERIFIED_BY=chosen).values():
        by_cloud_run = environment_of(command)["CLOUD_TASKS_VERIFIED_BY"] == "cloud-run"
        assert flags(command)["--ingress"] == ("internal" if by_cloud_run else "all")


def test_another_way_to_verify_is_refused() -> None:
    done = ran("services", **GIVEN, TASKS_VERIFIED_BY="nobody")
    assert (done.returncode, done.stderr) == (2, "TASKS_VERIFIED_BY is nobody; it must be cloud-run or payonce\n")


OF_ROLES = {
    "roles/cloudtasks.enqueuer": {"tasks.create", "tasks.fullView"},
    "roles/cloudtasks.taskDeleter": {"tasks.delete"},
    "roles/cloudtasks.viewer": {"queues.get", "queues.list", "tasks.fullView", "tasks.get", "tasks.list"},
    "roles/cloudtasks.queueAdmin": {
        "queues.create",
        "queues.delete",
        "queues.get",
        "queues.getIamPolicy",
        "queues.list",
        "queues.pause",
        "queues.purge",
        "queues.resume",
        "queues.setIamPolicy",
        "queues.update",
    },
}
"""The permissions for queues and tasks, from https://cloud.google.com/iam/docs/roles-permissions/cloudtasks."""
PERMISSIONS = {
    "create_task": "tasks.create",
    "batch_create_tasks": "tasks.create",
    "get_task": "tasks.get",
    "delete_task": "tasks.delete",
    "get_queue": "queues.get",
    "create_queue": "queues.create",
    "update_queue": "queues.update",
    "pause_queue": "queues.pause",
    "resume_queue": "queues.resume",
    "list_queues": "queues.list",
}
"""The permission that each call of Cloud Tasks needs."""


def test_the_roles_allow_every_call_that_payonce_makes() -> None:
    source = inspect.getsource(client)
    called = set(re.findall(r"\b(\w+_(?:tasks?|queues?))\b", source)) & {*PERMISSIONS, "run_task", "purge_queue"}
    assert {"create_task", "delete_task", "get_task", "pause_queue"} <= called <= PERMISSIONS.keys()
    granted = {flags(command)["--role"] for command in printed("accounts") if "--role" in flags(command)}
    allowed = {permission for role in granted & OF_ROLES.keys() for permission in OF_ROLES[role]}
    assert {PERMISSIONS[call] for call in called} <= allowed


def test_every_variable_is_a_setting_and_every_role_has_the_same() -> None:
    found = [environment_of(command) for command in deployed().values()]
    for one in found:
        one.pop("CLOUD_TASKS_VERIFIED_BY")
    assert all(one == found[0] for one in found)
    assert found[0].keys() <= {*variables(Settings), *variables(CloudSqlSettings), *variables(PayoutsSettings)}
    assert "CLOUD_TASKS_VERIFIED_BY" in variables(AccessSettings)


def test_any_other_setting_is_given_to_every_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment removes manual settings."""
    more = "PAYONCE_LOG_EMOJI=true|CHANGENOW_REQUESTS_PER_S=10"
    for command in deployed(MORE_SETTINGS=more).values():
        settings = settings_of(environment_of(command), monkeypatch)
        assert (settings.log_emoji, settings.of(PayoutsSettings).changenow_per_s) == (True, 10.0)


def test_work_is_put_down_before_cloud_run_kills_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 s after SIGTERM: https://cloud.google.com/run/docs/container-contract. A run that is killed counts as a crash
    of its message; one that is cancelled does not."""
    settings = settings_of(environment_of(deployed()["gcsplit1-10-26"]), monkeypatch)
    assert settings.grace_s + SHUTDOWN_LIMIT_S <= 10


def test_clients_are_told_apart_behind_cloud_runs_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one guesser of passwords delays everybody."""
    settings = settings_of(environment_of(deployed()["gcsplit1-10-26"]), monkeypatch)
    assert settings.trusted_proxies is not None
    assert ip_address("169.254.1.1") in ip_network(settings.trusted_proxies)


@pytest.mark.parametrize("most", ["4", "10"])
def test_the_database_has_room_for_every_process_also_while_revisions_are_replaced(
    most: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = deployed(MAX_INSTANCES=most)
    settings = settings_of(environment_of(found["gcsplit1-10-26"]), monkeypatch)
    processes = 2 * sum(int(flags(command)["--max-instances"]) for command in found.values()) + 1
    [create] = [command for command in printed("database", MAX_INSTANCES=most) if command[2] == "instances"]
    room = int(flags(create)["--database-flags"].removeprefix("max_connections="))
    assert processes * (2 * settings.pool_size + 10) <= room


def test_the_databases_edition_has_its_tier() -> None:
    """From PostgreSQL 16 on the default is ENTERPRISE_PLUS, which refuses custom tiers:
    https://cloud.google.com/sql/docs/postgres/create-instance#machine-types"""
    [create] = [command for command in printed("database") if command[2] == "instances"]
    assert flags(create)["--tier"].startswith("db-custom-")
    assert flags(create)["--edition"] == "ENTERPRISE"


def test_a_migration_that_cloud_run_takes_for_failed_is_tried_again() -> None:
    """https://cloud.google.com/run/docs/known-issues: a task may be marked as retried although its first try succeeded;
    with fewer than three retries that is a failed execution."""
    assert int(flags(printed("migrate")[0])["--max-retries"]) >= 3


def test_every_api_that_the_steps_call_is_enabled() -> None:
    [command] = printed("apis")
    called = {
        "run": "run",
        "tasks": "cloudtasks",
        "secrets": "secretmanager",
        "sql": "sqladmin",
        "iam": "iam",
        "projects": "cloudresourcemanager",
        "services": "serviceusage",
    }
    used = {called[each[1]] for each in printed()} - {"serviceusage"}
    assert used <= {part.removesuffix(".googleapis.com") for part in command}


def test_an_address_of_gchostpay_in_secret_manager_may_be_read() -> None:
    address = "projects/shop-9/secrets/HOSTPAY_URL/versions/latest"
    commands = printed("secrets", PAYOUTS_HOSTPAY="external", HOSTPAY_WEBHOOK_URL=address)
    granted = {(command[3], flags(command)["--project"]) for command in commands if "--role" in flags(command)}
    assert ("HOSTPAY_URL", "shop-9") in granted


def test_each_is_told_where_the_others_are() -> None:
    found = environment_of(deployed()["gcsplit1-10-26"])
    hosts = {name: found[name].removesuffix("-42.us-central1.run.app") for name in found if name.endswith("_URL")}
    assert hosts == {
        "GCSPLIT1_URL": "https://gcsplit1-10-26",
        "GCSPLIT2_URL": "https://gcsplit2-10-26",
        "GCSPLIT3_URL": "https://gcsplit3-10-26",
        "HOSTPAY_WEBHOOK_URL": "https://gchostpay-10-26",
    }


def test_every_secret_that_is_named_is_made_and_may_be_read_by_those_who_are_told_it() -> None:
    commands = printed("secrets")
    created = {command[3] for command in commands if command[2] == "create"}
    read = {(flags(command)["--member"], command[3]) for command in commands if "--member" in flags(command)}
    referenced = {
        (f"serviceAccount:{flags(command)['--service-account']}", value.split("/")[3])
        for command in (*deployed().values(), printed("migrate")[0])
        for value in environment_of(command).values()
        if "/secrets/" in value
    }
    assert read == referenced
    assert created == {name for _, name in referenced}


def test_the_job_that_migrates_alone_has_the_login_and_the_password_of_the_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = printed("migrate")[0]
    migrator, runner = (f"payouts-{name}@shop-1.iam.gserviceaccount.com" for name in ("migrate", "run"))
    assert flags(job)["--service-account"] == migrator
    assert environment_of(job).keys() == {"INSTANCE_CONNECTION_NAME", "DB_NAME", "DB_USER", "DB_PASSWORD"}
    owner = settings_of(environment_of(job), monkeypatch).database_url
    assert owner is not None
    assert owner.get_secret_value().startswith("postgresql://payouts_owner:own%40er@/payouts?")
    for command in deployed().values():
        assert flags(command)["--service-account"] == runner
        assert environment_of(command)["DB_USER"] == "payouts"
        assert "OWNER" not in " ".join(command)
    roles = [flags(command) for command in printed("accounts") if "--role" in flags(command)]
    assert {one["--role"] for one in roles if one["--member"].endswith(migrator)} == {"roles/cloudsql.client"}
    assert {command[4] for command in printed("accounts") if command[3] == "create"} >= {"payouts-migrate"}


def test_one_login_for_the_services_and_the_owner_is_refused() -> None:
    done = ran(**GIVEN, DB_USER="payouts", DB_OWNER="payouts")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("DB_OWNER and DB_USER are both payouts; services refuse to start with the login")
    accepted = printed("migrate", "services", DB_OWNER="payouts", MORE_SETTINGS="PAYONCE_ACCEPT_OWNER=true")
    assert {environment_of(command)["DB_USER"] for command in accepted if command[3] != "execute"} == {"payouts"}


def settings_of(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """As a service reads them, with the secrets in a Secret Manager on this machine."""
    values = {
        "SUCCESS_URL_SIGNING_KEY": "s" * 32,
        "TPS_HOSTPAY_SIGNING_KEY": "h" * 32,
        "TP_FLAT_FEE": "3",
        "CHANGENOW_API_KEY": "c" * 32,
        "DB_PASSWORD": "p@ss",
        "DB_OWNER_PASSWORD": "own@er",
        "PAYONCE_KEYS": f"k1:{'A' * 43}=",
    }
    for name in (*variables(Settings), *variables(CloudSqlSettings), *variables(PayoutsSettings)):
        monkeypatch.delenv(name, raising=False)
    with serving() as manager:
        manager.secrets |= {
            f"projects/shop-1/secrets/{name}/versions/latest": f"{value}\n".encode() for name, value in values.items()
        }
        monkeypatch.setenv("SECRET_MANAGER_ENDPOINT", manager.endpoint)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        settings = load_settings()
        settings.of(PayoutsSettings)
        return settings


OWN_HOSTPAY = {"PAYOUTS_HOSTPAY": "external", "HOSTPAY_WEBHOOK_URL": "https://gchostpay-xyz.run.app"}


def test_with_an_external_hostpay_every_service_that_is_deployed_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = deployed(**OWN_HOSTPAY)
    assert found.keys() == SERVICES.keys() - {"gchostpay-10-26"}
    settings = settings_of(environment_of(found["gcsplit1-10-26"]), monkeypatch)
    assert settings.of(PayoutsSettings).hostpay_url == OWN_HOSTPAY["HOSTPAY_WEBHOOK_URL"]
    for name in found:
        check_roles(settings, [SERVICES[name][0]])
    missing = ran(**GIVEN, PAYOUTS_HOSTPAY="external")
    assert (missing.returncode, "HOSTPAY_WEBHOOK_URL is not set" in missing.stderr) == (2, True)


def test_a_role_lacks_nothing_of_what_it_is_given_but_the_wallet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reference, address and name is one that is taken. A wallet with real money is not there yet, so no role
    starts; beside a chain each would."""
    settings = settings_of(environment_of(deployed()["gcsplit1-10-26"]), monkeypatch)
    for role, _, _ in SERVICES.values():
        with pytest.raises(Invalid, match=r"^CHANGENOW_API_KEY is set and there is no wallet"):
            check_roles(settings, [role])
        chained = settings.of(PayoutsSettings).model_copy(update={"chain_url": "http://chain.internal:8545"})
        check_roles(settings.having(chained), [role])
    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == (
        "postgresql://payouts:p%40ss@/payouts?host=%2Fcloudsql%2Fshop-1%3Aus-central1%3Abooks"
    )
    assert settings.keyring() is not None


def test_applied_it_makes_what_is_missing_and_leaves_the_rest(tmp_path: Path) -> None:
    """A stand-in for gcloud that finds one queue and records its arguments."""
    calls = tmp_path / "calls"
    (tmp_path / "gcloud").write_text(
        f'#!/bin/sh\necho "$*" >> {calls}\ncase "$*" in *describe*estimate-queue*) exit 0;; *describe*) exit 1;; esac\n'
    )
    (tmp_path / "gcloud").chmod(0o755)
    done = ran("--apply", "queues", **GIVEN, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    created = [line.split()[3] for line in calls.read_text().splitlines() if line.startswith("tasks queues create")]
    assert created == [policy.queue for policy in policies.QUEUES[1:]]


def test_a_step_that_fails_ends_it(tmp_path: Path) -> None:
    (tmp_path / "gcloud").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "gcloud").chmod(0o755)
    done = ran("--apply", "apis", "accounts", **GIVEN, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 7
    assert "# accounts" not in done.stdout
