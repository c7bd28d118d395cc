"""`payonce keys`: a key is shown once, opens its scopes over a real port, and can be taken away."""

import http.client

import pytest

from tests.cli.conftest import PATIENCE_S, Payonce
from tests.cli.test_serve import started


def status(port: int, path: str, key: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_key_opens_until_it_is_revoked(payonce: Payonce) -> None:
    process = payonce.start("up", "--port", "0")
    port = int(started(process, "listening")["url"].rpartition(":")[2])
    made = payonce("keys", "add", "ada", "--scope", "queues:read", "--by", "root", "--json").json
    assert (made["holder"], made["scopes"], made["made_by"]) == ("ada", ["queues:read"], "root")
    assert made["key"].startswith(f"sk_{made['prefix']}_")
    assert (status(port, "/v1/queues", made["key"]), status(port, "/v1/jobs", made["key"])) == (200, 403)
    listed = payonce("keys", "list", "--json")
    assert [key["prefix"] for key in listed.json["keys"]] == [made["prefix"]]
    assert made["key"] not in listed.stdout
    assert payonce("keys", "revoke", made["prefix"], "--why", "was in a log").code == 0
    assert status(port, "/v1/queues", made["key"]) == 401
    assert payonce("keys", "list", "--json").json == {"keys": []}
    [ended] = payonce("keys", "list", "--all", "--json").json["keys"]
    assert ended["revoked_why"] == "was in a log"


def test_for_people_the_key_is_all_that_is_on_stdout(payonce: Payonce) -> None:
    made = payonce("keys", "add", "shop", "--tenant", "acme", "--scope", "transfers:write", "--expires-in", "never")
    assert made.stdout.strip().startswith("sk_")
    assert len(made.stdout.split()) == 1
    assert "not shown again" in made.stderr
    table = payonce("keys", "list").stdout
    assert "acme" in table
    assert made.stdout.strip() not in table
    assert "transfers:write" in payonce("keys", "scopes").stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("add", "ada", "--scope", "queues:own"), "there is no scope 'queues:own'; known are: queues:read"),
        (("add", "ada", "--scope", "queues:read", "--tenant", "acme"), "gives access to every tenant's data"),
        (("add", "ada", "--scope", "billing:read", "--tenant", "acme"), "billing has no tenants"),
        (("add", "ada", "--scope", "billing:charge", "--tenant", "acme"), "create the key without a tenant"),
        (("add", "ada", "--scope", "payouts:read", "--tenant", "acme"), "a tenant's key can have: transfers:read"),
        (("add", "ada", "--scope", "queues:read", "--expires-in", "soon"), "--expires-in is 'soon'"),
        (("add", " ", "--scope", "queues:read"), "the holder is ' '"),
        (("revoke", "nothing", "--why", "x"), "there is no key 'nothing'"),
        (("revoke", "nothing", "--why", " "), "the reason is empty"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(payonce: Payonce, arguments: tuple[str, ...], sentence: str) -> None:
    ended = payonce("keys", *arguments)
    assert ended.code == 2
    assert sentence in ended.sentence
