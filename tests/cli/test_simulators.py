"""`payonce simulators` as a process: what it prints lets roles share exchange, chain and card gateway."""

import json
import re
import signal
import socket
import subprocess
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from tests.cli.conftest import PATIENCE_S, Payonce

PRINTED = (
    "CHANGENOW_API_KEY",
    "CHANGENOW_URL",
    "PAYONCE_CHAIN_URL",
    "GATEWAY_API_KEY",
    "GATEWAY_URL",
    "GATEWAY_WEBHOOK_SECRET",
)
FREE_PORTS = ("--exchange-port", "0", "--chain-port", "0", "--gateway-port", "0")
WHICH_CHAIN = {"jsonrpc": "2.0", "id": 1, "method": "eth_chainId", "params": []}
ROLES = ("payouts.orchestrator", "payouts.hostpay")


def printed(process: "subprocess.Popen[str]") -> dict[str, str]:
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in PRINTED]
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
    simulators = payonce.start("simulators", *FREE_PORTS)
    environment = printed(simulators)
    assert tuple(environment) == PRINTED
    roles = [payonce.start("run", role, "--port", "0", **environment) for role in ROLES]
    for role in roles:
        assert "wallet_without_limits" in said_before_work(role)
    simulators.send_signal(signal.SIGTERM)
    simulators.communicate(timeout=PATIENCE_S)
    assert simulators.returncode == 0


def asked(url: str, document: object = None, **headers: str) -> Any:
    body = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"} | headers)  # noqa: S310
    with urllib.request.urlopen(request) as answer:  # noqa: S310
        return json.load(answer)


@pytest.mark.full
def test_the_books_outlive_the_process_and_the_gateway_tells_of_what_is_in_them(payonce: Payonce) -> None:
    told: list[tuple[dict[str, str], bytes]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        receiver.timeout = PATIENCE_S
        to = f"http://127.0.0.1:{receiver.server_port}/v1/webhooks/gateway"
        process = payonce.start("simulators", *FREE_PORTS, "--gateway-webhooks", to)
        environment = printed(process)
        chain = asked(environment["PAYONCE_CHAIN_URL"], WHICH_CHAIN)
        url, key = environment["GATEWAY_URL"], f"Bearer {environment['GATEWAY_API_KEY']}"
        card = {"number": "4242424242424242", "exp_month": 12, "exp_year": 2099, "cvc": "123"}
        token = asked(f"{url}/v1/tokens", card)["id"]
        order = {"amount": 2900, "currency": "AED", "payment_method": token, "reference": "inv-1:1"}
        headers = {"Authorization": key, "Idempotency-Key": "inv-1:1"}
        first = asked(f"{url}/v1/charges", order, **headers)
        receiver.handle_request()
        process.kill()
        process.communicate()
    [(signed, body)] = told
    assert Webhook(environment["GATEWAY_WEBHOOK_SECRET"]).verify(body, {k.lower(): v for k, v in signed.items()})
    again = payonce.start("simulators", *FREE_PORTS)
    environment = printed(again)
    url = environment["GATEWAY_URL"]
    assert asked(environment["PAYONCE_CHAIN_URL"], WHICH_CHAIN)["result"] == chain["result"]
    assert asked(f"{url}/v1/charges", order, **headers) == first
    assert asked(f"{url}/simulator/books")["captured"] == {"AED": 2900}
    again.kill()
    again.communicate()


def test_an_address_for_webhooks_that_is_none_is_refused_in_one_sentence(payonce: Payonce) -> None:
    ended = payonce("simulators", *FREE_PORTS, "--gateway-webhooks", "127.0.0.1:8002")
    assert ended.code == 2
    assert "--gateway-webhooks is '127.0.0.1:8002'; it must be a URL such as http://" in ended.stderr


def test_a_taken_port_is_refused_in_one_sentence(payonce: Payonce) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = payonce("simulators", "--exchange-port", str(port))
    assert ended.code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in ended.stderr.splitlines()[-1]
