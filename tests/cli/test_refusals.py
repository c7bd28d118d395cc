"""Bad input, bad settings and a database that will not do: one sentence, a code other than 0, nothing written."""

import os
from pathlib import Path

import pytest

from payonce.engine.messages.model import PAYLOAD_MAX_BYTES
from payonce.testing import ScratchDatabase, Servers
from tests.cli.conftest import QUEUE, Payonce, ask

OVERSIZED = '{"text": "' + "x" * PAYLOAD_MAX_BYTES + '"}'

# What is typed, what comes in by standard input, and a piece of the sentence that refuses it.
REFUSED_MESSAGES = {
    "oversized payload": ([QUEUE, "-"], OVERSIZED, "the limit is 262,144"),
    "far oversized input": ([QUEUE, "-"], "x" * 2_000_000, "standard input has more than"),
    "invalid JSON": ([QUEUE, '{"row_id": 1'], "", "is not JSON"),
    "nothing": ([QUEUE, "-"], "", "is not JSON"),
    "no object": ([QUEUE, "[1]"], "", "must be a JSON object, not list"),
    "not text": ([QUEUE, b"\xff\xfe".decode(errors="surrogateescape")], "", "is not JSON"),
    "malformed envelope": ([QUEUE, '{"id": 5, "payload": {}}'], "", "envelope for tally-changes is malformed"),
    "huge number": ([QUEUE, '{"attempts": 99999999999, "payload": {}}'], "", "attempts is 99999999999"),
    "negative delay": ([QUEUE, "{}", "--delay", "-1"], "", "delay_s is -1.0; it must be between 0 and"),
    "no number as delay": ([QUEUE, "{}", "--delay", "nan"], "", "delay_s is nan"),
    "long key": ([QUEUE, "{}", "--key", "k" * 201], "", "must be at most 200 characters"),
    "nesting": ([QUEUE, '{"a":' * 65 + "1" + "}" * 65], "", "is nested more than 64 deep"),
    "no key": ([QUEUE, "{}", "--key", ""], "", "idempotency_key is empty"),
    "far future": (
        [QUEUE, '{"payload": {}, "not_before": "9999-12-31T23:59:59Z"}'],
        "",
        "is not between 1970 and 2200",
    ),
    "far past": ([QUEUE, '{"payload": {}, "created_at": "0001-01-01T00:00:00+14:00"}'], "", "is not between 1970 and"),
    "no attempts": ([QUEUE, '{"payload": {}, "max_attempts": 0}'], "", "max_attempts is 0"),
    "unknown queue": (["nowhere", "{}"], "", "there is no queue 'nowhere'"),
    "missing argument": ([QUEUE], "", "Missing argument"),
}


def test_a_refused_message_writes_nothing(payonce: Payonce, database: ScratchDatabase) -> None:
    for name, (arguments, stdin, piece) in REFUSED_MESSAGES.items():
        ended = payonce("queues", "put", *arguments, "--json", stdin=stdin)
        assert (ended.code, ended.stdout) == (2, ""), (name, ended)
        assert piece in ended.sentence, name
    assert ask(database.owner_url, "select count(*) from payonce.messages") == 0
    assert ask(database.owner_url, "select count(*) from payonce.idempotency_keys") == 0


REFUSED_COMMANDS = {
    "unknown role": (["run", "tally.nobody"], {}, "there is no role 'tally.nobody'; known are: tally.worker"),
    "no real wallet yet": (
        ["run", "payouts.hostpay", "--port", "0"],
        {"CHANGENOW_API_KEY": "real"},
        "set and there is no wallet: this",
    ),
    "nobody who could pay": (
        ["run", "payouts.orchestrator", "--port", "0"],
        {"CHANGENOW_API_KEY": "real"},
        "be taken and never paid; unset",
    ),
    "unknown command": (["queues", "empty"], {}, "No such command 'empty'"),
    "unknown demonstration": (["demo", "opera"], {}, "there is no demonstration 'opera'"),
    "months of another demonstration": (["demo", "queue", "--months", "3"], {}, "are of the demonstration billing"),
    "unknown state": (["queues", "peek", QUEUE, "--state", "lost"], {}, "there is no state 'lost'"),
    "no id": (["queues", "peek", QUEUE, "--after", "first"], {}, "'first' is not a message id"),
    "limit too high": (["queues", "peek", QUEUE, "--limit", "1001"], {}, "limit is 1001"),
    "unknown queue": (["queues", "pause", "nowhere"], {}, "there is no queue 'nowhere'; known are: "),
    "time without zone": (["queues", "redrive", QUEUE, "--after", "2026-01-01"], {}, "has no time zone"),
    "redrive of no queue": (["queues", "redrive", "nowhere"], {}, "there is no queue 'nowhere'"),
    "purge of no queue": (["queues", "purge", "nowhere"], {}, "there is no queue 'nowhere'"),
    "purge of running work": (["queues", "purge", QUEUE, "--state", "leased", "--yes"], {}, "cannot be purged"),
    "reset of a named database": (["db", "reset", "--yes"], {}, "the database of DATABASE_URL"),
    "stop of a named database": (["db", "stop"], {}, "the database of DATABASE_URL"),
    "no backup": (["db", "restore", "/etc/hostname"], {}, "is not a backup"),
    "replace by no backup": (["db", "restore", "/etc/hostname", "--replace"], {}, "is not a backup"),
    "number in words": (["queues", "list"], {"PAYONCE_SLOTS": "many"}, "PAYONCE_SLOTS is 'many'; it must be a whole"),
    "port out of range": (["up"], {"PORT": "70000"}, "PORT is '70000'; it must be a whole number"),
    "unknown policy field": (
        ["run", "tally.worker"],
        {"QUEUE_POLICY__TALLY_CHANGES__MAX_TRIES": "3"},
        "policy of tally-changes has no field 'max_tries'",
    ),
    "bad policy value": (
        ["run", "tally.worker"],
        {"QUEUE_POLICY__TALLY_CHANGES__LEASE_S": "0"},
        "lease_s is 0.0; it must be above 0",
    ),
    "policy of no queue": (
        ["run", "tally.worker"],
        {"QUEUE_POLICY__TALLY__MAX_RETRIES": "3"},
        "QUEUE_POLICY__TALLY__MAX_RETRIES names no field of a queue",
    ),
    "owner alone": (["db", "status"], {"DATABASE_URL": ""}, "DATABASE_OWNER_URL is set and DATABASE_URL is not"),
}


REFUSED_BENCHMARKS = {
    "no backend": (["queues", "--backend", "tape"], "there are: postgres, redis, both"),
    "no system": (["queues", "--system", "tape"], "no system 'tape' for both; there are: arq"),
    "no durability": (["queues", "--durability", "never"], "'never' is not one of"),
}


@pytest.mark.parametrize("name", REFUSED_BENCHMARKS)
def test_a_refused_benchmark_says_what_to_do(payonce: Payonce, name: str) -> None:
    arguments, piece = REFUSED_BENCHMARKS[name]
    ended = payonce(*arguments, module="bench.command")
    assert (ended.code, ended.stdout) == (2, "")
    assert piece in ended.sentence


@pytest.mark.parametrize("name", REFUSED_COMMANDS)
def test_a_refused_command_says_what_to_do(payonce: Payonce, name: str) -> None:
    arguments, variables, piece = REFUSED_COMMANDS[name]
    ended = payonce(*arguments, **variables)
    assert (ended.code, ended.stdout) == (2, "")
    assert piece in ended.sentence


def test_a_password_is_never_shown(payonce: Payonce) -> None:
    for url in ("mysql://someone:hunter2@host/x", "postgresql://someone:hunter2@127.0.0.1:1/x"):
        ended = payonce("queues", "list", DATABASE_URL=url)
        assert ended.code != 0
        assert "DATABASE_URL" in ended.sentence
        assert "hunter2" not in ended.stderr


def test_an_unreachable_database_is_named(payonce: Payonce) -> None:
    ended = payonce("run", "tally.worker", DATABASE_URL="postgresql://someone@127.0.0.1:1/payments")
    assert ended.code == 1
    assert "cannot connect to PostgreSQL at 127.0.0.1:1/payments" in ended.sentence


def test_a_database_that_is_newer_than_the_code_is_left_alone(payonce: Payonce, database: ScratchDatabase) -> None:
    insert = """
        insert into payonce.migrations (component, number, name, checksum, applied_at)
        values ('engine', 9999, 'from_the_future', 'x', payonce.due_now())
    """
    ask(database.owner_url, insert)
    for command in (["run", "tally.worker"], ["queues", "list"], ["db", "migrate"], ["queues", "put", QUEUE, "{}"]):
        ended = payonce(*command)
        assert ended.code == 1
        assert "9999_from_the_future, which this version does not know; upgrade payonce" in ended.sentence
    assert ask(database.owner_url, "select count(*) from payonce.messages") == 0


def test_a_database_without_migrations_names_the_command_that_adds_them(payonce: Payonce, servers: Servers) -> None:
    server = servers.of()
    empty = server.empty_database()
    try:
        urls = {"DATABASE_URL": empty.service_url, "DATABASE_OWNER_URL": empty.owner_url}
        assert payonce("queues", "list", **urls).sentence.endswith("run: payonce db migrate")
        migrated = payonce("db", "migrate", "--json", **urls)
        assert "tally 0001_tally" in migrated.json["applied"]
        assert payonce("db", "status", "--json", **urls).json["pending"] == []
    finally:
        server.drop(empty)


def test_a_data_folder_that_cannot_be_written_is_named(private_payonce: Payonce, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    # Permissions do not hold root up, but /proc does.
    folder = Path("/proc/payonce") if os.geteuid() == 0 else tmp_path / "data"
    ended = private_payonce("queues", "list", PAYONCE_DATA_DIR=str(folder))
    tmp_path.chmod(0o700)
    assert ended.code == 1
    assert f"data folder {folder}/postgres cannot be written" in ended.sentence


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3/cret@pw@127.0.0.1:1/db",
        "postgresql://u:cret@pw@127.0.0.1:99999/db",
        "postgresql://u:cret@pw@127.0.0.1:port/db",
        "postgresql://u:cret%40pw@127.0.0.1:1/db",
    ],
)
def test_an_address_that_cannot_be_read_or_reached_does_not_give_its_password_away(payonce: Payonce, url: str) -> None:
    ended = payonce("queues", "list", DATABASE_URL=url)
    assert ended.code != 0
    assert ended.sentence
    assert "cret" not in ended.stderr
    assert "s3" not in ended.stderr
