"""An operator's day with the outbox: how far behind it is, what was given up, and what to do about it."""

import asyncio
from typing import Any, cast
from uuid import UUID

import asyncpg
import pytest

from payonce.engine.messages.model import Message
from payonce.engine.outbox import put_out
from payonce.testing import ScratchDatabase
from tests.cli.conftest import Payonce, ask, until

PARK = "update payonce.outbox set state = 'parked', last_error = 'unknown topic', try_at = payonce.due_now()"


def put(database: ScratchDatabase, count: int) -> list[UUID]:
    """What a service's transaction would put; the command has declared the relay by then."""

    async def act() -> list[UUID]:
        connection = await asyncpg.connect(database.owner_url)
        try:
            messages = [Message(queue="escrow.settled", payload={"n": n, "api_key": "hunter2"}) for n in range(count)]
            return await put_out(connection, "events", messages)
        finally:
            await connection.close()

    return asyncio.run(act())


def events(payonce: Payonce) -> dict[str, Any]:
    """What is told of the relay of events."""
    [told] = [each for each in payonce("outbox", "list", "--json").json["relays"] if each["relay"] == "events"]
    return cast("dict[str, Any]", told)


def test_the_outbox_is_shown_and_steered(payonce: Payonce, database: ScratchDatabase) -> None:
    assert payonce("outbox", "parked", "events").stdout == "no entry of events is parked\n"
    empty = events(payonce)
    assert (empty["waiting"], empty["oldest_s"]) == (0, 0)
    ids = list(map(str, put(database, 3)))
    assert events(payonce)["waiting"] == 3
    ask(database.owner_url, PARK)
    first = payonce("outbox", "parked", "events", "--limit", "2", "--json")
    rest = payonce("outbox", "parked", "events", "--limit", "2", "--after", first.json["next_after"], "--json").json
    shown = first.json["entries"] + rest["entries"]
    assert sorted(each["id"] for each in shown) == sorted(ids)
    assert {each["last_error"] for each in shown} == {"unknown topic"}
    assert "hunter2" not in first.stdout + payonce("outbox", "parked", "events").stdout
    gone = payonce("outbox", "discard", "events", "--id", ids[0], "--why", "the shop closed", "--yes", "--json").json
    assert gone == {"relay": "events", "discarded": 1}
    declined = payonce.at_terminal("outbox", "redrive", "events", typed="n\n")
    assert (declined.code, declined.stderr) == (1, "nothing was changed\n")
    assert "unknown topic" in declined.stdout, "what the question is about"
    assert payonce("outbox", "redrive", "events", "--yes", "--json").json == {"relay": "events", "redriven": 2}
    written = "select array_agg(location order by id) from payonce.audit_log"
    assert ask(database.owner_url, written) == ["outbox.discard", "outbox.redrive"]


def test_a_paused_relay_delivers_after_resume(payonce: Payonce, database: ScratchDatabase) -> None:
    assert payonce("outbox", "pause", "events", "--reason", "look", "--json").json["paused"] is True
    put(database, 1)
    payonce.start("run", "tally.worker")
    shown = events(payonce)
    assert (shown["paused"], shown["paused_reason"], shown["waiting"]) == (True, "look", 1)
    assert payonce("outbox", "resume", "events", "--json").json["paused"] is False
    until(lambda: ask(database.owner_url, "select count(*) = 0 from payonce.outbox"), "the event is delivered")


@pytest.mark.parametrize(
    ("arguments", "piece"),
    [
        (["parked", "brokr"], "there is no relay 'brokr'; known are: cloudtasks, events"),
        (["parked", "events", "--after", "first"], "'first' is not a message id"),
        (["redrive", "events"], "add --yes"),
        (["redrive", "brokr"], "there is no relay 'brokr'"),
        (["discard", "brokr", "--why", "x"], "there is no relay 'brokr'"),
        (["discard", "events", "--yes", "--why", "x"], "name 1 to 100"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(payonce: Payonce, arguments: list[str], piece: str) -> None:
    ended = payonce("outbox", *arguments, "--json")
    assert ended.code == 2
    assert piece in ended.sentence
