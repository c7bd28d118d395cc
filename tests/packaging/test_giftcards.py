"""A third party's service: both wheels in an empty virtual environment, and every command that the service adds to."""

import json
import re
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any, Final

import pytest

from payonce.kit.ports import reserved_ports
from payonce.testing import eventually
from tests.packaging.conftest import ROOT, Install, Installed, build_wheel, open_folder

GIFTCARDS: Final = ROOT / "examples" / "giftcards"
PATIENCE_S: Final = 60.0
SEEDS: Final = (1, 2, 3)
CARDS: Final = "200"
EVERY: Final = "4"
"""Strikes every fourth point of each site: all of them take a minute."""
MODES: Final = ("--mode", "before", "--mode", "after", "--mode", "late", "--mode", "stopped")
ORDER: Final = {"holder": "ada", "amount": "25.00", "currency": "EUR"}
MISSPELLED: Final = "from payonce import Policy, Polcy\n"


@pytest.fixture(scope="session")
def giftcards_wheel() -> Iterator[Path]:
    with open_folder() as folder:
        yield build_wheel(GIFTCARDS, folder)


@pytest.mark.timeout(600)
async def test_a_service_of_somebody_else_runs_from_its_own_wheel(
    payonce_wheel: Path, giftcards_wheel: Path, install: Install
) -> None:
    payonce = f"payonce[console,embedded] @ {payonce_wheel.as_uri()}"
    theirs = install([payonce, str(giftcards_wheel), "mypy", "pytest"])
    migrated = theirs.json("db", "migrate")
    assert "giftcards 0001_giftcards" in migrated["applied"]
    await cards_are_ordered_over_http(theirs)
    report = theirs.json("audit", "run")
    assert (report["ok"], report["findings"]) == (True, [])
    the_types_are_seen_from_outside(theirs)
    its_own_tests_pass(theirs)
    crashed = theirs.json("crash", "giftcards", "--no-ablations", "--every", EVERY, *MODES)
    assert (crashed["scenarios"], crashed["violations"]) == (1, 0)
    demonstrated(theirs)


async def cards_are_ordered_over_http(theirs: Installed) -> None:
    key = theirs.json("keys", "add", "ada", "--scope", "giftcards:write", "--scope", "giftcards:read")["key"]
    with reserved_ports(1) as [port]:
        process = theirs.start("payonce", "up", "--port", str(port))
        await eventually(
            lambda: "worker_started" in theirs.log() or process.poll() is not None, PATIENCE_S, "it starts"
        )
        assert process.poll() is None, theirs.log()
        cards = f"http://127.0.0.1:{port}/v1/giftcards"
        headers = {"Authorization": f"Bearer {key}", "Idempotency-Key": "first", "Content-Type": "application/json"}
        ordered, again = (answer_of(cards, headers, ORDER) for _ in range(2))
        assert ordered == again
        await eventually(
            lambda: answer_of(f"{cards}/{ordered['id']}", headers)["state"] == "issued",
            PATIENCE_S,
            "the card is issued",
        )
        code = answer_of(f"{cards}/{ordered['id']}", headers)["code"]
        assert code in page_of_the_console(theirs, port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, theirs.log()


def answer_of(url: str, headers: dict[str, str], body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=PATIENCE_S) as answer:  # noqa: S310
        return json.load(answer)


def page_of_the_console(theirs: Installed, port: int) -> str:
    """Opened by the link that `payonce console` prints."""
    [link] = re.findall(r"http://\S+", theirs("payonce", "console", "--port", str(port)))
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    browser.open(link, timeout=PATIENCE_S).close()
    with browser.open(f"http://127.0.0.1:{port}/console/giftcards", timeout=PATIENCE_S) as page:
        return str(page.read().decode())


def the_types_are_seen_from_outside(theirs: Installed) -> None:
    assert "Success" in theirs("mypy", "--strict", "--package", "giftcards")
    (theirs.folder / "misspelled.py").write_text(MISSPELLED)
    assert 'Module "payonce" has no attribute "Polcy"' in theirs("mypy", "--strict", "misspelled.py", code=1)


def its_own_tests_pass(theirs: Installed) -> None:
    tests = shutil.copytree(GIFTCARDS / "tests", theirs.folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    assert re.search(r"\d+ passed", theirs("pytest", "-q", "-p", "no:cacheprovider", str(tests)))


def demonstrated(theirs: Installed) -> None:
    """With another seed where the work was over before enough workers could be killed: that proves nothing."""
    for seed in SEEDS:
        ended = theirs.run("payonce", "demo", "giftcards", "--cards", CARDS, "--seed", str(seed), "--json")
        complaints = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
        if not complaints or not all(line.endswith("the work ended too early") for line in complaints):
            break
    assert ended.returncode == 0, ended.stderr
    figures = json.loads(ended.stdout.splitlines()[-1])
    assert (figures["lost"], figures["doubled"], figures["unexplained"]) == (0, 0, "0")
    assert figures["issued"] + figures["refused"] == int(CARDS)
    assert figures["faults"] > 0
