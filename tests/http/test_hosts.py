"""The header Host, on every route: a name that somebody else points at this machine opens nothing."""

import pytest

from payonce.http.hosts import Hosts
from payonce.http.kit.problems import Problem
from payonce.kit.outcomes import Invalid
from payonce.settings import load_settings
from tests.http.conftest import OpenWeb

EVIL = "rebound.example:8080"


@pytest.mark.parametrize(
    ("listens_on", "allowed", "host", "answers"),
    [
        ("127.0.0.1", None, "127.0.0.1:8080", True),
        ("127.0.0.1", None, "localhost", True),
        ("127.0.0.1", None, "payonce.localhost:8080", True),
        ("::1", None, "[::1]:8080", True),
        ("127.0.0.1", None, EVIL, False),
        ("127.0.0.1", None, "127.0.0.1.rebound.example", False),
        ("127.0.0.1", None, "", False),
        ("127.0.0.1", None, "[::1", False),
        ("127.0.0.1", "pay.example.com, other.example", "Pay.Example.com.:443", True),
        ("127.0.0.1", "pay.example.com", EVIL, False),
        ("127.0.0.1", "pay.example.com", "localhost:8080", True),
        ("0.0.0.0", None, EVIL, True),
        ("0.0.0.0", "pay.example.com", EVIL, False),
        ("0.0.0.0", "pay.example.com", "pay.example.com", True),
        ("0.0.0.0", "pay.example.com", "127.0.0.1:8080", True),
    ],
)
def test_a_process_answers_to_names_of_its_own(listens_on: str, allowed: str | None, host: str, answers: bool) -> None:
    hosts = Hosts(listens_on, allowed)
    hosts.check(None)
    if answers:
        hosts.check(host.encode())
    else:
        with pytest.raises(Problem, match="PAYONCE_ALLOWED_HOSTS"):
            hosts.check(host.encode())


async def test_every_route_refuses_a_foreign_name(web: OpenWeb) -> None:
    async with web() as ask:
        described = (await ask.get("/openapi.json")).json
        asked = [(method.upper(), path) for path, methods in described["paths"].items() for method in methods]
        more = [("GET", path) for path in ("/openapi.json", "/console/", "/console/static/none", "/nowhere")]
        assert len(asked) > 50
        for method, path in [*asked, *more]:
            answer = await ask(method, path, headers={"host": EVIL})
            assert (method, path, answer.status) == (method, path, 421)
        assert (await ask.get("/healthz", host="localhost:8080")).status == 200


def test_what_is_no_name_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYONCE_ALLOWED_HOSTS", "https://pay.example.com")
    with pytest.raises(Invalid, match=r"PAYONCE_ALLOWED_HOSTS is .*; it must be names"):
        load_settings()
