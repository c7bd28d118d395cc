"""`payonce cloudtasks` as a process: what it prints connects Google's client, and a signal drains it."""

import json
import signal
import socket
import subprocess
from typing import Any

import pytest
from google.api_core.exceptions import Unauthenticated

from payonce.testing import ScratchDatabase
from tests.cli.conftest import PATIENCE_S, Payonce, ask
from tests.cli.test_serve import fetch, good

LOCATION = "projects/p/locations/l"


def listening(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """Where gRPC is served, and where HTTP."""
    assert process.stderr is not None
    while line := process.stderr.readline():
        said = json.loads(line)
        if said["event"] == "cloudtasks_listening":
            return str(said["address"]), str(said["http"])
    raise AssertionError("the process ended without listening")


def test_the_printed_lines_connect_googles_client_and_a_signal_drains(
    payonce: Payonce, database: ScratchDatabase
) -> None:
    process = payonce.start("cloudtasks", "--port", "0")
    address, http = listening(process)
    assert process.stdout is not None
    printed = [process.stdout.readline() for _ in range(6)]
    assert address in printed[1]
    names: dict[str, Any] = {}
    exec("".join(printed[3:6]), names)  # noqa: S102 - what the command tells people to type
    client, metadata = names["client"], names["metadata"]
    with pytest.raises(Unauthenticated, match="cloudtasks-token"):
        client.create_queue(parent=LOCATION, queue={"name": f"{LOCATION}/queues/q"})
    queue = client.create_queue(parent=LOCATION, queue={"name": f"{LOCATION}/queues/q"}, metadata=metadata)
    client.pause_queue(name=queue.name, metadata=metadata)
    task = {"http_request": {"url": "http://127.0.0.1:9/"}}
    client.create_task(parent=queue.name, task=task, metadata=metadata)
    [(_, value)] = metadata
    assert value.removeprefix("Bearer ") not in "".join(printed), "a terminal is no place for it"
    client.transport.close()
    port = int(http.rpartition(":")[2])
    assert good(port, "/readyz")
    assert [fetch(port, path)[0] for path in ("/healthz", "/nothing")] == [200, 404]
    assert 'payonce_cloudtasks_created_total{queue="q"} 1.0' in fetch(port, "/metrics")[1]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert ask(database.owner_url, "select count(*) from cloudtasks.tasks") == 1


def test_a_taken_port_is_refused_in_one_sentence(payonce: Payonce) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = payonce("cloudtasks", "--port", str(port))
        in_vain = payonce("cloudtasks", "--port", "0", "--http-port", str(port))
    assert (ended.code, in_vain.code) == (1, 1)
    assert f"127.0.0.1:{port}" in ended.stderr.splitlines()[-1]
    assert "Address already in use" not in ended.stderr, "what gRPC says by itself is no line of a log"
    assert f"127.0.0.1 port {port}" in in_vain.stderr.splitlines()[-1]
    assert "--http-port" in in_vain.stderr.splitlines()[-1]
