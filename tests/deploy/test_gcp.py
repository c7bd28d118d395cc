"""What deploy/gcp prints is what policies, settings and roles say; applied, it makes only what is missing."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from payonce.engine.policy import Fixed
from payonce.kit.outcomes import Invalid
from payonce.services import payouts
from payonce.services.payouts import policies
from payonce.services.payouts.tokens import HOPS
from payonce.settings import Settings, load_settings
from payonce.settings.payouts import PayoutsSettings
from payonce.settings.variables import variables
from tests.cli.secret_manager import serving
from tests.deploy.documents import DEPLOY

SCRIPT = DEPLOY / "gcp/payouts.sh"
GIVEN = {
    "PROJECT": "shop-1", "IMAGE": "registry.example/payonce:1", "INSTANCE": "books", "PROJECT_NUMBER": "42",
    "HOST_WALLET_ADDRESS": "0x" + "e3" * 20,
}  # fmt: skip
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


def printed(*steps: str) -> list[Command]:
    done = ran(*steps, **GIVEN)
    assert done.returncode == 0, done.stderr
    return [shlex.split(line) for line in done.stdout.splitlines() if not line.startswith("#")]


def flags(command: Command) -> dict[str, str]:
    parts = [part.partition("=") for part in command if part.startswith("--")]
    return {name: value for name, _, value in parts}


def deployed() -> dict[str, Command]:
    return {command[3]: command for command in printed("services")}


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


@pytest.mark.parametrize(("argument", "said"), [("everything", "there is no step everything"), ("--now", "no option")])
def test_what_it_does_not_know_it_refuses(argument: str, said: str) -> None:
    done = ran(argument, **GIVEN)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_the_queues_are_those_of_the_policies() -> None:
    found = {command[4]: flags(command) for command in printed("queues")}
    assert list(found) == [policy.queue for policy in policies.QUEUES]
    for policy in policies.QUEUES:
        backoff = "60s"
        assert policy.backoff == Fixed(60.0)
        assert found[policy.queue] == {
            "--max-dispatches-per-second": f"{policy.rate:g}", "--max-concurrent-dispatches": str(policy.concurrency),
            "--max-attempts": "-1", "--max-retry-duration": f"{policy.give_up_after_s:.0f}s", "--min-backoff": backoff,
            "--max-backoff": backoff, "--max-doublings": "0", "--location": "us-central1", "--project": "shop-1",
        }  # fmt: skip
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
    """No request wakes a role for a queue that is not pushed; and somebody has to hand over the tasks of all."""
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


def test_every_variable_is_a_setting_and_every_role_has_the_same() -> None:
    found = [environment_of(command) for command in deployed().values()]
    assert all(one == found[0] for one in found)
    assert found[0].keys() <= {*variables(Settings), *variables(PayoutsSettings)}
    assert found[0] == environment_of(printed("migrate")[0])


def test_each_is_told_where_the_others_are() -> None:
    found = environment_of(deployed()["gcsplit1-10-26"])
    hosts = {name: found[name].removesuffix("-42.us-central1.run.app") for name in found if name.endswith("_URL")}
    assert hosts == {
        "GCSPLIT1_URL": "https://gcsplit1-10-26", "GCSPLIT2_URL": "https://gcsplit2-10-26",
        "GCSPLIT3_URL": "https://gcsplit3-10-26", "HOSTPAY_WEBHOOK_URL": "https://gchostpay-10-26",
    }  # fmt: skip


def test_every_secret_that_is_named_is_made_and_may_be_read() -> None:
    named = {value for value in environment_of(deployed()["gcsplit1-10-26"]).values() if "/secrets/" in value}
    commands = printed("secrets")
    made = {f"projects/shop-1/secrets/{command[3]}/versions/latest" for command in commands if command[2] == "create"}
    read = {command[3] for command in commands if command[2] == "add-iam-policy-binding"}
    assert named == made
    assert {name.split("/")[3] for name in named} == read


def test_a_role_lacks_nothing_of_what_it_is_given_but_the_wallet(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the secrets in a Secret Manager on this machine: every reference, address and name is one that is taken. A
    wallet with real money is not there yet, so no role starts; beside a chain each would."""
    values = {
        "SUCCESS_URL_SIGNING_KEY": "s" * 32, "TPS_HOSTPAY_SIGNING_KEY": "h" * 32, "TP_FLAT_FEE": "3",
        "CHANGENOW_API_KEY": "c" * 32, "DB_PASSWORD": "p@ss", "PAYONCE_KEYS": f"k1:{'A' * 43}=",
    }  # fmt: skip
    for name in (*variables(Settings), *variables(PayoutsSettings)):
        monkeypatch.delenv(name, raising=False)
    with serving() as manager:
        manager.secrets |= {
            f"projects/shop-1/secrets/{name}/versions/latest": f"{value}\n".encode() for name, value in values.items()
        }
        monkeypatch.setenv("SECRET_MANAGER_ENDPOINT", manager.endpoint)
        for name, value in environment_of(deployed()["gcsplit1-10-26"]).items():
            monkeypatch.setenv(name, value)
        settings = load_settings()
    for role, _, _ in SERVICES.values():
        with pytest.raises(Invalid, match=r"^CHANGENOW_API_KEY is set and there is no wallet"):
            settings.check_roles([role])
        settings.model_copy(update={"chain_url": "http://chain.internal:8545"}).check_roles([role])
    assert settings.database_url is not None
    assert settings.database_url.get_secret_value() == (
        "postgresql://payouts:p%40ss@/payouts?host=%2Fcloudsql%2Fshop-1%3Aus-central1%3Abooks"
    )
    assert settings.keyring() is not None


def test_applied_it_makes_what_is_missing_and_leaves_the_rest(tmp_path: Path) -> None:
    """A stand-in for gcloud that finds one queue and writes down what it is told."""
    told = tmp_path / "told"
    (tmp_path / "gcloud").write_text(
        f'#!/bin/sh\necho "$*" >> {told}\ncase "$*" in *describe*estimate-queue*) exit 0;; *describe*) exit 1;; esac\n'
    )
    (tmp_path / "gcloud").chmod(0o755)
    done = ran("--apply", "queues", **GIVEN, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    made = [line.split()[3] for line in told.read_text().splitlines() if line.startswith("tasks queues create")]
    assert made == [policy.queue for policy in policies.QUEUES[1:]]


def test_a_step_that_fails_ends_it(tmp_path: Path) -> None:
    (tmp_path / "gcloud").write_text("#!/bin/sh\nexit 7\n")
    (tmp_path / "gcloud").chmod(0o755)
    done = ran("--apply", "apis", "accounts", **GIVEN, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 7
    assert "# accounts" not in done.stdout
