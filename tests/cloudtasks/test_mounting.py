"""Where a process answers the task service, and what it needs to be told for that."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from payonce.app import registry, resources
from payonce.app.process import App
from payonce.app.resources import cloud_tasks, open_task_server, told_address
from payonce.engine.database.notifier import Notifier
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Policy
from payonce.engine.outbox import declare_relays
from payonce.examples import tally
from payonce.examples.tally import CHANGES
from payonce.http.application import build_web
from payonce.http.guard import BODY_MAX_BYTES
from payonce.kit.outcomes import Invalid, Unavailable
from payonce.queues.cloudtasks.client import TaskService
from payonce.queues.cloudtasks.feed import CloudTasksFeed
from payonce.queues.cloudtasks.relay import CloudTasksRelay
from payonce.service import Service
from payonce.settings import Settings, load_settings
from payonce.testing import OpenStage, ScratchDatabase
from tests.cloudtasks import pushing
from tests.http.client import Answer, send_request


@pytest.fixture
def settings(scratch: ScratchDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(registry, "SERVICES", pushing.SERVICES)
    monkeypatch.setenv("DATABASE_URL", scratch.service_url)
    monkeypatch.setenv("PAYONCE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("CLOUD_TASKS_ENDPOINT", "127.0.0.1:9")
    return load_settings()


@asynccontextmanager
async def web_of(settings: Settings, *roles: str) -> AsyncIterator[Any]:
    async with App.open(settings, roles) as opened:
        if opened.backend.pushes is not None:
            opened.backend.pushes.address = "http://127.0.0.1:8080"
        yield build_web(opened)


async def posted(web: Any, path: str) -> Answer:
    return await send_request(web, "POST", path, [b"{}"], {"content-type": "application/json"})


async def test_a_process_of_one_role_answers_at_the_bare_path_too(settings: Settings) -> None:
    async with web_of(settings, "tally.worker") as web:
        for path in ("/", "/tally/worker/", "/?added=by-a-proxy"):
            answer = await posted(web, path)
            assert (answer.status, answer.json) == (401, {"outcome": "unauthorized"}), path
        assert (await send_request(web, "GET", "/healthz", [b""], {})).status == 200
        assert (await send_request(web, "GET", "/tally/worker/", [b""], {})).status == 405


async def test_a_door_is_guarded_as_everything_is(settings: Settings) -> None:
    async with web_of(settings, "tally.worker") as web:
        assert "trace-id" in (await posted(web, "/tally/worker/")).headers
        assert (await send_request(web, "POST", "/tally/worker/", [b"x" * BODY_MAX_BYTES, b"x"], {})).status == 413


async def test_a_process_of_several_roles_of_a_service_answers_at_the_long_path_alone(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = Service(
        "tally", "payonce.examples.tally", {"worker": tally.ROLES["worker"], "other": ()}, pushes=pushing.pushes
    )
    monkeypatch.setattr(registry, "SERVICES", (two, pushing.SERVICES[1]))
    async with web_of(settings, "tally.worker", "tally.other") as web:
        assert (await posted(web, "/tally/worker/")).status == 401
        assert (await posted(web, "/")).status in (404, 405)


async def test_a_process_without_pushed_roles_has_no_door(settings: Settings) -> None:
    async with web_of(settings) as web:
        assert (await posted(web, "/tally/worker/")).status == 404
        described = web.openapi()
        assert not [path for path in described["paths"] if "tally" in path]


async def test_messages_from_before_a_queue_was_pushed_stop_the_start(settings: Settings, stage: OpenStage) -> None:
    async with stage() as s:
        await s.queue(CHANGES)
        await s.feed.put([Message(queue=CHANGES.queue, payload={"row_id": 1})])
        with pytest.raises(Invalid, match="1 messages of queue tally-changes wait to be claimed"):
            async with App.open(settings, ["tally.worker"]):
                pass


async def test_messages_of_a_queue_that_is_no_longer_pushed_stop_the_start(
    settings: Settings, stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage() as s:
        feed = CloudTasksFeed(s.database, s.notifier)
        await declare_relays(s.database, [CloudTasksRelay.__new__(CloudTasksRelay)])
        await feed.declare([CHANGES])
        await feed.put([Message(queue=CHANGES.queue, payload={"row_id": 1})])
    monkeypatch.setattr(registry, "SERVICES", (replace(pushing.SERVICES[0], pushes=None), pushing.SERVICES[1]))
    with pytest.raises(Invalid, match="1 messages of queue tally-changes wait for a task service"):
        async with App.open(settings, ["tally.worker"]):
            pass


async def test_a_queue_that_google_could_not_name_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = replace(pushing.pushes(settings)[0], called="under_score")
    service = replace(pushing.SERVICES[0], pushes=lambda _: [target])
    monkeypatch.setattr(registry, "SERVICES", (service, pushing.SERVICES[1]))
    with pytest.raises(Invalid, match="letters, digits and '-'"):
        async with App.open(settings):
            pass


async def test_a_pushed_queue_without_a_role_is_refused(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    target = replace(pushing.pushes(settings)[0], queue="nobodys")
    service = replace(pushing.SERVICES[0], pushes=lambda _: [target])
    monkeypatch.setattr(registry, "SERVICES", (service, pushing.SERVICES[1]))
    with pytest.raises(Invalid, match="has 0 roles that serve it"):
        async with App.open(settings):
            pass


async def test_tuned_numbers_stand_in_place_of_the_policys(settings: Settings, stage: OpenStage) -> None:
    async with stage() as s, App.open(settings):
        await s.owner.execute("update payonce.queues set tuned_rate = 24, tuned_concurrency = 29")
    async with App.open(settings, ["tally.worker"]) as opened:
        assert opened.backend.pushes is not None
        policy: Policy = opened.backend.pushes.pushed[CHANGES.queue].policy
        assert (policy.rate, policy.concurrency) == (24.0, 29)


def test_commands_find_our_own_server_at_whichever_port_it_got(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLOUD_TASKS_ENDPOINT")
    settings = load_settings()
    assert cloud_tasks(settings).endpoint == "127.0.0.1:8123"
    with told_address(settings, "127.0.0.1:40001"):
        assert cloud_tasks(load_settings()).endpoint == "127.0.0.1:40001"
        assert cloud_tasks(settings, "127.0.0.1:5").endpoint == "127.0.0.1:5"
    assert cloud_tasks(settings).endpoint == "127.0.0.1:8123"
    with told_address(settings, "127.0.0.1:40001"):
        settings.task_server_file.write_text("127.0.0.1:40002\n")
    assert cloud_tasks(settings).endpoint == "127.0.0.1:40002", "another server's word is left"


async def test_a_server_on_another_port_than_usual_is_found_while_it_runs(
    settings: Settings, stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLOUD_TASKS_ENDPOINT")
    settings = load_settings()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(resources, "TASK_SERVER_PORT", taken.getsockname()[1])
        async with (
            stage() as s,
            Notifier.open(s.database) as notifier,
            open_task_server(settings, s.database, notifier) as server,
        ):
            assert server is not None
            assert not server.address.endswith(f":{taken.getsockname()[1]}")
            assert cloud_tasks(settings).endpoint == server.address


@pytest.mark.parametrize("taken", [False, True], ids=["usual port", "another port"])
async def test_the_server_beside_the_roles_lets_in_only_holders_of_the_token(
    settings: Settings, stage: OpenStage, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    """As `payonce up` runs it, for every process of the data folder and for no other."""
    monkeypatch.delenv("CLOUD_TASKS_ENDPOINT")
    settings = load_settings()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(resources, "TASK_SERVER_PORT", listener.getsockname()[1] if taken else 0)
        async with (
            stage() as s,
            Notifier.open(s.database) as notifier,
            open_task_server(settings, s.database, notifier),
        ):
            config = cloud_tasks(load_settings())
            ours, strangers = TaskService(config), TaskService(replace(config, token=None))
            try:
                assert await ours.installation() == await s.database.installation()
                with pytest.raises(Unavailable, match="UNAUTHENTICATED"):
                    await strangers.queue("q")
            finally:
                await ours.close()
                await strangers.close()


def test_google_needs_the_account_it_signs_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOUD_TASKS_ENDPOINT", raising=False)
    monkeypatch.setenv("CLOUD_TASKS_PROJECT_ID", "my-project-123")
    with pytest.raises(Invalid, match="CLOUD_TASKS_SERVICE_ACCOUNT is not; name the account"):
        cloud_tasks(load_settings())
    monkeypatch.setenv("CLOUD_TASKS_SERVICE_ACCOUNT", "tasks@my-project-123.iam.gserviceaccount.com")
    config = cloud_tasks(load_settings())
    assert (config.local, config.location.parent) == (False, "projects/my-project-123/locations/us-central1")


async def test_cloud_runs_check_is_trusted_on_cloud_run_alone(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLOUD_TASKS_ENDPOINT", raising=False)
    for name in ("K_SERVICE", "K_REVISION", "K_CONFIGURATION", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUD_TASKS_VERIFIED_BY", "cloud-run")
    with pytest.raises(Invalid, match=r"this is no Cloud Run service \(K_SERVICE is not set\)"):
        async with App.open(load_settings(), ["tally.worker"]):
            pass
    for name in ("K_SERVICE", "K_REVISION", "K_CONFIGURATION"):
        monkeypatch.setenv(name, "gcsplit2")
    with pytest.raises(Invalid, match="CLOUD_TASKS_PROJECT_ID is not set; only tasks of Google's"):
        async with App.open(load_settings(), ["tally.worker"]):
            pass
    monkeypatch.setenv("CLOUD_TASKS_PROJECT_ID", "my-project-123")
    monkeypatch.setenv("CLOUD_TASKS_SERVICE_ACCOUNT", "tasks@my-project-123.iam.gserviceaccount.com")
    assert cloud_tasks(load_settings()).verified_by_platform
    load_settings().access.check_platform("my-project-123")
    monkeypatch.delenv("CLOUD_TASKS_VERIFIED_BY")
    assert not cloud_tasks(load_settings()).verified_by_platform


def test_knative_is_not_taken_for_cloud_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("K_SERVICE", "K_REVISION", "K_CONFIGURATION"):
        monkeypatch.setenv(name, "gcsplit2")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    load_settings().access.check_platform("my-project-123")
    monkeypatch.setenv("CLOUD_TASKS_VERIFIED_BY", "cloud-run")
    with pytest.raises(
        Invalid, match=r"this runs in Kubernetes \(KUBERNETES_SERVICE_HOST is set\).*leave it unset here"
    ):
        load_settings().access.check_platform("my-project-123")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("CLOUD_TASKS_VERIFIED_BY", "google"),
        ("CLOUD_TASKS_PROJECT_ID", "My Project"),
        ("CLOUD_TASKS_LOCATION", "US Central"),
        ("CLOUD_TASKS_ENDPOINT", "http://here"),
        ("CLOUD_TASKS_SERVICE_ACCOUNT", "nobody"),
    ],
)
def test_a_bad_setting_is_refused_with_its_value(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(Invalid, match=f"{variable} is '{value}'; it must be"):
        load_settings()
