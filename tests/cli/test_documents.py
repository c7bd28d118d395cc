"""The documents' commands for operators, run in order against one database."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from payonce.kit.ports import reserved_ports
from payonce.kit.webhooks import Secret, signed_headers
from payonce.testing import ScratchDatabase
from tests.cli.conftest import Ended, Payonce, ask, until
from tests.cli.test_controls_commands import an_effect, state_of
from tests.cli.test_webhooks import KEYS
from tests.docs.documents import ROOT, SHELLS, blocks, simple_commands
from tests.docs.test_commands import COMMANDS
from tests.docs.test_payouts_pages import answers

WHO = "ID"
PASSWORD = "correct horse battery\n"
EXAMPLES = "src/payonce/examples"
AT = "2026-01-31T12:00:00Z"
"""The moment in a command of the page on webhooks."""

Replaced = Callable[[tuple[str, ...]], Sequence[str]]


def lines(page: str) -> Iterator[tuple[str, ...]]:
    """The words of each command in the page's blocks, without `payonce`."""
    for block in blocks((ROOT / page).read_text(encoding="utf-8"), *SHELLS):
        for line in block.replace("\\\n", " ").splitlines():
            yield from (words[1:] for words in simple_commands(line) if words[0] == "payonce")


def typed(payonce: Payonce, page: str, replaced: Replaced, stdin: str = "") -> dict[tuple[str, ...], Ended]:
    """What each command of the page came to, by the page's words; `replaced` does what is left to the reader."""
    ends = {}
    for words in lines(page):
        asked = [*replaced(words), *(["--yes"] if asks(words) else [])]
        ends[words] = ended = payonce(*asked, stdin=stdin)
        assert ended.code == 0, f"{' '.join(asked)}: {ended.stderr}"
    return ends


def asks(words: Sequence[str]) -> bool:
    """Whether the command asks a person at a terminal first."""
    command: Any = COMMANDS
    for word in words:
        if not hasattr(command, "commands"):
            break
        command = command.commands[word]
    return any("--yes" in parameter.opts for parameter in command.params)


def test_the_brakes_are_pulled_and_let_go(payonce: Payonce, database: ScratchDatabase) -> None:
    effects = [an_effect(database, number) for number in (1, 2, 3)]
    unanswered = iter(effects)

    def replaced(words: tuple[str, ...]) -> Sequence[str]:
        match words:
            case ("freeze", "lift", _, *rest):
                return ("freeze", "lift", "1", *rest)
            case ("effects", "show", _):
                return ("effects", "show", effects[0])
            case ("effects", "answer", _, *rest):
                return ("effects", "answer", next(unanswered), *rest, "--revision", "1")
            case ("approvals", "grant", _, *rest):
                return ("approvals", "grant", "1", *rest, "--by", "bob")
            case ("approvals", "deny", _, *rest):
                for more in (("5",), ("--remove", "--why", "closed")):
                    assert payonce("approvals", "threshold", "EUR", *more).code == 0
                return ("approvals", "deny", "2", *rest, "--by", "bob")
        return words

    ends = typed(payonce, "docs/controls.md", replaced)
    assert [state_of(database, effect) for effect in effects] == ["abandoned", "performed", "review"]
    assert {words[:2] for words in ends} >= {("freeze", "lift"), ("limits", "remove"), ("approvals", "deny")}
    assert len(payonce("limits", "list", "--json").json["limits"]) == 1
    verdicts = "select string_agg(state, ' ' order by id) from payonce.approvals"
    assert ask(database.owner_url, verdicts) == "granted denied"


def test_people_are_given_logins(payonce: Payonce) -> None:
    def replaced(words: tuple[str, ...]) -> Sequence[str]:
        return (*words, "--password-stdin") if words[1] in ("add", "passwd") else words

    ends = typed(payonce, "docs/console.md", replaced, PASSWORD)
    assert [words[1] for words in ends] == ["add", "list", "role", "passwd", "remove"]
    assert payonce("users", "list", "--json").json == {"users": []}


def test_webhooks_are_sent_looked_at_and_sent_again(
    payonce: Payonce, database: ScratchDatabase, tmp_path: Path
) -> None:
    secret, body = "a-shared-secret-of-ours", b'{"id":"evt_1"}'
    moment = datetime.fromisoformat(AT).astimezone(UTC)
    (tmp_path / "body.json").write_bytes(body)
    headers = signed_headers([Secret(secret)], "evt_1", moment, body)
    (tmp_path / "headers.txt").write_text("".join(f"{name}: {value}\n" for name, value in headers.items()))
    payonce.environment |= {"PAYONCE_KEYS": KEYS, "WEBHOOK_SIGNING_SECRET": secret}

    def endpoint() -> str:
        found = ask(database.owner_url, "select id::text from payonce.webhook_endpoints where state <> 'removed'")
        if found is None:
            added = payonce("webhooks", "endpoints", "add", "https://shop.example/hook", "--event", "*", "--json")
            found = added.json["endpoint"]["id"]
        return str(found)

    def delivery() -> str:
        query = "select id::text from payonce.webhook_deliveries where endpoint_id = $1::text::uuid"
        if ask(database.owner_url, query, here := endpoint()) is None:
            assert payonce("webhooks", "endpoints", "ping", here).code == 0
        return str(ask(database.owner_url, query, here))

    def replaced(words: tuple[str, ...]) -> Sequence[str]:
        about = endpoint if "endpoints" in words or "--endpoint" in words else delivery
        files = {name: str(tmp_path / name) for name in ("body.json", "headers.txt")}
        return [about() if word == WHO else files.get(word, word) for word in words]

    ends = typed(payonce, "docs/webhooks.md", replaced)
    assert [words[2] for words in ends if words[1] == "endpoints"] == [
        "add",
        "list",
        "ping",
        "disable",
        "enable",
        "remove",
        "rotate",
        "rotate",
    ]
    [verified] = [ended for words, ended in ends.items() if words[1] == "verify"]
    assert "verified" in verified.stdout


def test_the_examples_are_tried_by_hand(payonce: Payonce, database: ScratchDatabase) -> None:
    payonce.environment |= {"PAYONCE_PORT": "0"}

    def replaced(words: tuple[str, ...]) -> Sequence[str]:
        """Looked at when it has been done: the role works beside these commands."""
        if words[:2] == ("queues", "peek"):
            parked = "select count(*) from payonce.messages where queue = 'tally-changes' and state = 'parked'"
            until(lambda: ask(database.owner_url, parked), "the message is parked")
        if words[0] == "trace":
            paid = "select count(*) from transfers.transfers where state = 'paid'"
            until(lambda: ask(database.owner_url, paid), "the transfer arrives")
        return words

    for example, said in (("tally", "row 1 is not there yet"), ("transfers", "transfers-pay-in")):
        page = f"{EXAMPLES}/{example}/README.md"
        run, *others = lines(page)
        assert run == ("run", f"{example}.worker")
        worker = payonce.start(*run)
        ends = [payonce(*replaced(words)) for words in others]
        assert [ended.code for ended in ends] == [0, 0], [ended.stderr for ended in ends]
        assert said in " ".join(ends[-1].stdout.split())
        worker.terminate()
        worker.wait()


@pytest.mark.timeout(240)
def test_keys_are_made_and_a_transfer_is_ordered_with_curl(payonce: Payonce, tmp_path: Path) -> None:
    """The page's lines as they stand, in a shell: they hand keys from one command to the next."""
    page = (ROOT / "docs/http.md").read_text(encoding="utf-8")
    with reserved_ports(1) as [port]:
        script = "\n".join(["set -eu", *blocks(page, "sh")]).replace(":8080", f":{port}")
        of_ada = '"$(echo "$KEY" | cut -d_ -f2)"'
        assert " abcd2345 " in script
        script = script.replace(" abcd2345 ", f" {of_ada} ").replace("curl ", "curl -sS --fail-with-body ")
        worker = payonce.start("run", "transfers.worker", "--port", str(port))
        until(lambda: answers(f"http://127.0.0.1:{port}/readyz"), "the role is ready")
        path = f"{Path(sys.executable).parent}:{payonce.environment['PATH']}"
        ran = subprocess.run(
            ["sh", "-c", script],
            env={**payonce.environment, "PATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert worker.poll() is None
    assert '{"queues":[' in ran.stdout
    assert '"source":"ann"' in ran.stdout
