"""`db quarantine` and `reconcile` as an operator types them."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from payonce.cli.errors import EXIT_UNEQUAL
from payonce.engine.ledger import Posting, Reference, moved, post
from payonce.kit.money import Amount
from payonce.testing import ScratchDatabase
from tests.cli.conftest import Payonce, ask, until
from tests.engine.bank import EUR, MIRROR, OPENING

ROOT = Path(__file__).parents[2]
Command = Callable[..., Any]


def test_a_restored_database_is_in_quarantine_until_it_is_released(
    payonce: Payonce, database: ScratchDatabase, tmp_path: Path
) -> None:
    assert payonce("db", "quarantine", "--json").json["quarantine"] is None
    dump = str(tmp_path / "all.dump")
    assert payonce("db", "backup", dump).code == 0
    assert "quarantine" in payonce("db", "restore", dump, "--replace", "--yes").stdout
    shown = payonce("db", "quarantine", "--json").json
    assert shown["quarantine"]["reason"] == "restored from a backup"
    assert "in quarantine since" in payonce("db", "quarantine").stdout
    refused = payonce("db", "quarantine", "release")
    assert refused.code == 2
    assert payonce("db", "quarantine", "release", "--by", "ann", "--json").json["by"] == "ann"
    assert payonce("db", "quarantine", "release", "--by", "ann").sentence.startswith(
        "the database is not in quarantine"
    )


def test_a_quarantine_is_begun_and_widened_by_hand(payonce: Payonce, database: ScratchDatabase) -> None:
    begin = ("db", "quarantine", "begin", "--reason", "the disk was set back", "--json", "--lost-since")
    assert "no time zone" in payonce(*begin, "2026-01-31").sentence
    assert "it must not be before" in payonce(*begin, "0001-01-01T00:00Z").sentence
    assert payonce(*begin, "2026-01-31T00:00Z").json["reason"] == "the disk was set back"
    widen = ("db", "quarantine", "widen", "--by", "ann", "--json", "--lost-since")
    assert "not earlier" in payonce(*widen, "2026-02-01T00:00Z").sentence
    assert payonce(*widen, "2026-01-30T00:00Z").json["lost_since"] == "2026-01-30T00:00:00Z"
    [line] = ask(
        database.owner_url, "select array_agg(actor) from payonce.audit_log where location = $1", "quarantine.widen"
    )
    assert line == "ann"


def test_reconcile_refuses_what_it_does_not_know(payonce: Payonce) -> None:
    unread = payonce("reconcile", "run", "bank").stderr.splitlines()[-1]
    assert (
        unread == "error: no service reads a statement of 'bank'; there are: northbank, southbank, changenow, gateway"
    )
    assert "is not an unmatched item" in payonce("reconcile", "explain", "7", "--note", "why").sentence
    unknown = "00000000-0000-7000-8000-000000000001"
    ended = payonce("reconcile", "write-off", unknown, "--account", "losses", "--note", "why")
    assert (ended.code, "there is no unmatched item" in ended.sentence) == (2, True)
    assert payonce("reconcile", "list", "--json").json == {"items": [], "next_after": None}
    assert payonce("reconcile", "list").stdout == "nothing is unmatched between vendors' statements and our effects\n"


@pytest.fixture
def command(payonce: Payonce) -> Command:
    """The command line where one more service reads the statement of a bank."""

    def run(*arguments: str, ends_with: int = 0) -> Any:
        ended = payonce(*arguments, "--json", module="tests.cli.banking")
        assert ended.code == ends_with, ended.stderr
        return ended.json

    return run


def balance_the_books(database: ScratchDatabase) -> None:
    """Posts what we had at the bank before there were books."""

    async def act() -> None:
        connection = await asyncpg.connect(database.owner_url)
        try:
            async with connection.transaction():
                lines = moved(Amount(OPENING, EUR), "equity/opening", MIRROR)
                await post(connection, Posting("opening", Reference("bank", "opening"), lines))
        finally:
            await connection.close()

    asyncio.run(act())


def test_a_statement_is_reconciled_listed_explained_and_written_off(
    command: Command, database: ScratchDatabase
) -> None:
    run = command("reconcile", "run", "bank", ends_with=EXIT_UNEQUAL)
    assert (run["lines"], run["unmatched"], run["state"]) == (3, 3, "finished")
    assert run["books"] == [{"ours": "-1.20 EUR", "theirs": "9998.80 EUR", "suspense": "1.20 EUR", "equal": False}]
    assert command("reconcile", "run", "bank", ends_with=EXIT_UNEQUAL)["unmatched"] == 0
    balance_the_books(database)
    assert command("reconcile", "run", "bank")["books"][0]["equal"] is True
    page = command("reconcile", "list", "--limit", "2")
    rest = command("reconcile", "list", "--vendor", "bank", "--after", page["next_after"])
    items = [*page["items"], *rest["items"]]
    assert [(item["amount"], item["direction"]) for item in items] == [
        ("-0.50", "theirs"),
        ("-0.40", "theirs"),
        ("-0.30", "theirs"),
    ]
    ids = [item["id"] for item in items]
    assert command("reconcile", "explain", *ids[:2], "--note", "fees")["explained"] == ids[:2]
    command("approvals", "threshold", "EUR", "0.35")
    done = command("reconcile", "write-off", ids[2], "--account", "losses/bank", "--note", "a fee", "--by", "ann")
    assert (done["done"], done["amount"], done["account"]) == (True, "-0.30 EUR", "losses/bank")
    asked = command("reconcile", "write-off", ids[1], "--account", "losses/bank", "--note", "a fee", "--by", "ann")
    assert (asked["done"], asked["written_off"], asked["approval"]) == (False, None, 1)
    assert [item["explanation"] for item in command("reconcile", "list")["items"]] == ["fees", "fees"]


def test_a_process_that_serves_makes_its_statements_known(payonce: Payonce, database: ScratchDatabase) -> None:
    """A release asks for them, also where nobody has the vendors' keys."""
    command = [sys.executable, "-m", "tests.cli.banking", "run", "tally.worker"]
    serving = subprocess.Popen(
        command, cwd=ROOT, env=payonce.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        lag = "select lag_s from payonce.statement_sources where vendor = 'bank'"
        assert until(lambda: ask(database.owner_url, lag), "the bank's statement is known") == 60
        assert ask(database.owner_url, "select identity like 'system %' from payonce.served_identity")
    finally:
        serving.kill()
        serving.wait()
