"""Worker processes: draining on a signal, health over HTTP."""

import http.client
import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from payonce.testing import ScratchDatabase
from tests.cli.conftest import PATIENCE_S, QUEUE, UNHURRIED, Payonce, ask, message_count, until

NEVER_MS = 250_000
"""Longer than any test."""
HELD = """
    do $all$ begin
        create table tally.held (); insert into tally.held default values; grant select on tally.held to public;
        create function tally.hold() returns trigger language plpgsql as $$
        begin
            while exists (select from tally.held) loop perform pg_sleep(0.02); end loop;
            return new;
        end $$;
        create trigger hold before update on tally.rows for each row execute function tally.hold();
    end $all$
"""
"""Whoever changes a row stands still inside its statement until the table is empty. Not a lock: a wait for one ends."""


def lines_until(process: "subprocess.Popen[str]", event: str) -> list[str]:
    """What it logs up to the line that says so."""
    assert process.stderr is not None
    lines = []
    while line := process.stderr.readline():
        lines.append(line)
        if json.loads(line)["event"] == event:
            return lines
    raise AssertionError(f"the process ended without saying {event}: {lines}")


def started(process: "subprocess.Popen[str]", event: str = "worker_started") -> dict[str, Any]:
    """The log line that says so."""
    said: dict[str, Any] = json.loads(lines_until(process, event)[-1])
    return said


def put_change(payonce: Payonce, database: ScratchDatabase, takes_ms: int = 0) -> None:
    ask(database.owner_url, "insert into tally.rows (id) values (1)")
    payonce("queues", "put", QUEUE, f'{{"row_id": 1, "takes_ms": {takes_ms}}}')


@pytest.mark.parametrize(("told", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_drains_running_work(
    payonce: Payonce, database: ScratchDatabase, told: signal.Signals, code: int
) -> None:
    put_change(payonce, database)
    ask(database.owner_url, HELD)
    worker = payonce.start("run", "tally.worker", "--json", **UNHURRIED)
    until(lambda: message_count(database, "leased") == 1, "the message is in work")
    worker.send_signal(told)
    before = lines_until(worker, "worker_draining")
    ask(database.owner_url, "delete from tally.held")
    stdout, stderr = worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == code, stderr
    assert json.loads(stdout) == {"roles": ["tally.worker"], "stopped_by": told.name}
    assert "Traceback" not in "".join(before) + stderr
    assert ask(database.owner_url, "select value from tally.rows") == 1
    assert ask(database.owner_url, "select count(*) from payonce.messages where queue = $1", QUEUE) == 0


def test_work_that_outlives_the_grace_is_given_back_by_its_lease(payonce: Payonce, database: ScratchDatabase) -> None:
    put_change(payonce, database, takes_ms=NEVER_MS)
    worker = payonce.start("run", "tally.worker", PAYONCE_GRACE_S="0.1", **UNHURRIED)
    until(lambda: message_count(database, "leased") == 1, "the message is in work")
    worker.terminate()
    worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 0
    assert ask(database.owner_url, "select value from tally.rows") == 0
    assert ask(database.owner_url, "select count(*) from payonce.messages where queue = $1", QUEUE) == 1


def test_a_second_signal_ends_at_once(payonce: Payonce, database: ScratchDatabase) -> None:
    put_change(payonce, database, takes_ms=NEVER_MS)
    worker = payonce.start("run", "tally.worker", PAYONCE_GRACE_S="100", **UNHURRIED)
    until(lambda: message_count(database, "leased") == 1, "the message is in work")
    worker.terminate()
    started(worker, "worker_draining")
    worker.terminate()
    worker.communicate(timeout=PATIENCE_S)
    assert worker.returncode == 128 + signal.SIGTERM
    assert message_count(database, "leased") == 1


def test_health_readiness_queues_and_metrics_are_served(payonce: Payonce, database: ScratchDatabase) -> None:
    process = payonce.start("up", "--port", "0")
    port = int(started(process, "listening")["url"].rpartition(":")[2])
    started(process)
    assert get(port, "/healthz") == (200, {"status": "alive"})
    loops = ["backend", "cloudtasks.server", "janitors", "task service", "web", "worker"]
    assert good(port, "/readyz") == {"status": "ready", "loops": loops}
    payonce("queues", "pause", QUEUE)
    payonce("queues", "put", QUEUE, "{}")
    [depth] = [each for each in good(port, "/v1/health/queues")["queues"] if each["queue"] == QUEUE]
    assert (depth["ready"], depth["paused"]) == (1, True)
    assert depth["oldest_ready_s"] >= 0
    assert "payonce_claims_total" in fetch(port, "/metrics")[1]
    code, problem = get(port, "/nowhere")
    assert (code, problem["status"], problem["title"]) == (404, 404, "Not Found")


def test_the_consoles_link_is_printed_at_a_terminal_kept_over_a_restart_and_printed_again(payonce: Payonce) -> None:
    tokens = set()
    for _ in range(2):
        with payonce.start_at_terminal("up", "--port", "0") as (process, screen):
            port = int(started(process, "listening")["url"].rpartition(":")[2])
            started(process)
            assert fetch(port, "/console/")[0] == 403
            process.terminate()
            _, logged = process.communicate(timeout=PATIENCE_S)
            said = os.read(screen, 65_536).decode()
        [link] = [word for word in said.split() if word.startswith(f"http://127.0.0.1:{port}/console?token=")]
        tokens.add(link.partition("token=")[2])
        assert link.partition("token=")[2] not in logged
    assert len(tokens) == 1
    again = payonce("console", "--port", "9000", "--json").json
    assert again == {"url": f"http://127.0.0.1:9000/console?token={tokens.pop()}", "login": False}


def test_the_consoles_link_is_not_printed_into_a_pipe(payonce: Payonce) -> None:
    """It may be a container's log."""
    process = payonce.start("up", "--port", "0")
    port = int(started(process, "listening")["url"].rpartition(":")[2])
    assert started(process, "console_ready")["print_its_link_with"] == f"payonce console --port {port}"
    process.terminate()
    said, logged = process.communicate(timeout=PATIENCE_S)
    assert "token=" not in said + logged
    token = payonce("console", "--port", str(port), "--json").json["url"].partition("token=")[2]
    assert token
    assert token not in said + logged


def test_the_console_command_prints_no_link_that_admits_nobody(payonce: Payonce) -> None:
    refused = payonce("console", "--json", PAYONCE_HOST="0.0.0.0", PAYONCE_PORT="8080")
    assert refused.code == 1
    assert "listens at 0.0.0.0" in refused.stderr
    assert "payonce users add NAME --role approver" in refused.stderr
    assert "token=" not in refused.stdout


def test_the_console_command_knows_the_port_on_which_a_process_listens(payonce: Payonce) -> None:
    process = payonce.start("run", "tally.worker", "--port", "0")
    port = int(started(process, "listening")["url"].rpartition(":")[2])
    started(process)
    assert payonce("console", "--json").json["url"].startswith(f"http://127.0.0.1:{port}/console?token=")
    other = payonce.start("run", "tally.worker", "--port", "0")
    second = int(started(other, "listening")["url"].rpartition(":")[2])
    started(other)
    several = payonce("console", "--json")
    assert several.json["url"].startswith(f"http://127.0.0.1:{min(port, second)}/")
    assert "choose one with --port" in several.stderr
    assert payonce("console", "--port", str(second), "--json").json["url"].startswith(f"http://127.0.0.1:{second}/")
    for each in (process, other):
        each.kill()
        each.communicate(timeout=PATIENCE_S)
    nobody = payonce("console", "--json")
    assert "is listening" in nobody.stderr, "a process that was killed holds no port"


def test_a_process_on_a_foreign_schema_is_alive_and_not_ready(payonce: Payonce, database: ScratchDatabase) -> None:
    process = payonce.start("run", "tally.worker", "--port", "0")
    port = int(started(process, "listening")["url"].rpartition(":")[2])
    ask(database.owner_url, "update payonce.migrations set checksum = 'other' where component = 'tally'")

    def refused() -> bool:
        code, problem = get(port, "/readyz")
        assert (code, problem["status"]) == (503, 503)
        return "was changed after it was applied" in problem["detail"]

    until(refused, "the reason is told")
    assert get(port, "/healthz")[0] == 200


def test_bad_requests_are_never_a_server_error(payonce: Payonce) -> None:
    process = payonce.start("up", "--port", "0")
    port = int(started(process, "listening")["url"].rpartition(":")[2])
    for raw in (
        b"\x00\x01\r\n\r\n",
        b"GET /%ff%00 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"POST /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
            connection.sendall(raw)
            assert connection.recv(12).startswith(b"HTTP/1.1 4"), raw


def test_a_taken_port_is_named(payonce: Payonce) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = payonce("run", "tally.worker", "--port", str(port))
    assert ended.code == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in ended.sentence


def get(port: int, path: str) -> tuple[int, Any]:
    code, body = fetch(port, path)
    return code, json.loads(body)


def good(port: int, path: str) -> Any:
    """A process whose store has not answered in time is not ready, and is asked again."""

    def answer() -> Any:
        code, body = get(port, path)
        assert code in (200, 503), body
        return body if code == 200 else None

    return until(answer, f"{path} is good")


def fetch(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_each_service_of_billing_listens_where_it_is_expected_and_a_second_process_only_works(
    payonce: Payonce, tmp_path: Path
) -> None:
    first = payonce.start("run", "billing.subscriptions", PAYONCE_PORT="0", PAYONCE_LOG="json")
    port = started(first, "listening")["url"].rpartition(":")[2]
    elsewhere = {"PAYONCE_PORT": port, "PAYONCE_LOG": "json", "PAYONCE_DATA_DIR": str(tmp_path / "other")}
    second = payonce.start("run", "billing.subscriptions", **elsewhere)
    assert started(second, "http_port_taken")["wanted"] == int(port)
    assert started(second)["roles"] == ["billing.subscriptions"]
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=PATIENCE_S)
    connection.request("GET", "/v1/plans")
    plans = json.loads(connection.getresponse().read())["plans"]
    connection.close()
    assert [plan["price"]["amount"] for plan in plans] == ["1.00", "29.00", "99.00", "299.00", "999.00"]
