"""`payonce simulators` as a process: what it prints lets roles of payouts share exchange and chain."""

import json
import re
import signal
import socket
import subprocess
import urllib.request

from tests.cli.conftest import Payonce

ROLES = ("payouts.orchestrator", "payouts.hostpay")


def printed(process: "subprocess.Popen[str]") -> dict[str, str]:
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    return dict(re.fullmatch(r"export (\w+)=(\S+)\n", line).groups() for line in lines)  # type: ignore[union-attr,misc]


def said_before_work(process: "subprocess.Popen[str]") -> list[str]:
    assert process.stderr is not None
    said = []
    for line in iter(process.stderr.readline, ""):
        said.append(json.loads(line)["event"])
        if said[-1] == "worker_started":
            return said
    raise AssertionError(f"it ended without working: {said}")


def test_the_printed_lines_let_two_roles_share_exchange_and_chain(payonce: Payonce) -> None:
    simulators = payonce.start("simulators", "--exchange-port", "0", "--chain-port", "0")
    environment = printed(simulators)
    assert set(environment) == {"CHANGENOW_API_KEY", "CHANGENOW_URL", "PAYONCE_CHAIN_URL"}
    roles = [payonce.start("run", role, "--port", "0", **environment) for role in ROLES]
    for role in roles:
        assert "wallet_without_limits" in said_before_work(role)
    simulators.send_signal(signal.SIGTERM)
    simulators.communicate(timeout=30)
    assert simulators.returncode == 0


def test_the_books_outlive_the_process(payonce: Payonce) -> None:
    for _ in range(2):
        process = payonce.start("simulators", "--exchange-port", "0", "--chain-port", "0")
        url = printed(process)["PAYONCE_CHAIN_URL"]
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}).encode()
        with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})) as answer:  # noqa: S310
            assert "result" in json.load(answer)
        process.kill()
        process.communicate()


def test_a_taken_port_is_refused_in_one_sentence(payonce: Payonce) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = payonce("simulators", "--exchange-port", str(port))
    assert ended.code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr.splitlines()[-1]
