"""`payonce queues list` on a database in use: it loads no service and shows what the whole application would."""

import json
import os
import subprocess
import sys
from pathlib import Path

import payonce as package
from payonce.app.registry import SERVICES
from payonce.cli.queue_depths import COMPONENTS, built_in_components
from payonce.testing import ScratchDatabase
from tests.cli.conftest import QUEUE, Payonce, ask

LOADED = """
import sys
from payonce.cli.application import run_command
assert run_command(["queues", "list", "--json"]) == 0
heavy = ("payonce.services.", "payonce.examples.", "payonce.app.process", "payonce.app.registry", "payonce.console",
         "payonce.http", "payonce.vendors", "fastapi", "starlette", "prometheus_client", "grpc", "redis", "uvicorn")
print(sorted(name for name in sys.modules if name.startswith(heavy)), file=sys.stderr)
"""
WHOLE_APPLICATION = {"QUEUE_POLICY__TALLY_CHANGES__MAX_ATTEMPTS": "5"}
"""A policy in the environment has to be checked, which takes the services."""


def test_a_list_of_queues_loads_no_service(payonce: Payonce) -> None:
    assert payonce("queues", "put", QUEUE, "{}").code == 0
    environment = {**os.environ, **payonce.environment}
    ended = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, env=environment)
    assert ended.stderr == "[]\n"
    [ready] = [each["ready"] for each in json.loads(ended.stdout)["queues"] if each["queue"] == QUEUE]
    assert ready == 1


def test_it_shows_what_the_whole_application_would(payonce: Payonce) -> None:
    for number in range(3):
        assert payonce("queues", "put", QUEUE, f'{{"row_id": {number}}}', "--delay", "600").code == 0
    assert payonce("queues", "pause", QUEUE).code == 0
    listed = payonce("queues", "list", "--json").json
    assert listed == payonce("queues", "list", "--json", **WHOLE_APPLICATION).json
    assert {each["queue"] for each in listed["queues"] if each["paused"]} == {QUEUE}


def test_a_database_without_queues_or_with_other_migrations_is_left_to_the_whole_application(
    payonce: Payonce, database: ScratchDatabase
) -> None:
    assert payonce("queues", "list", "--json").json["queues"], "the first command declares the queues"
    ask(database.owner_url, "update payonce.migrations set checksum = 'another' where component = 'tally' returning 1")
    ended = payonce("queues", "list")
    assert (ended.code, "was changed after it was applied" in ended.sentence) == (1, True)


def test_the_folders_with_migrations_are_those_that_the_services_declare() -> None:
    root = Path(package.__path__[0])
    declared = {each.name: root.joinpath(*each.package.split(".")[1:]) for each in SERVICES if each.package is not None}
    assert built_in_components() == {**declared, "engine": COMPONENTS["engine"]}
