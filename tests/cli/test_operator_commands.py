"""An operator's day: look, put, pause, resume, redrive, purge, trace."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from payonce.testing import ScratchDatabase
from tests.cli.conftest import QUEUE, UNHURRIED, Payonce, ask, depth_of, message_count, until

ONE_TRY = {**UNHURRIED, "QUEUE_POLICY__TALLY_CHANGES__MAX_ATTEMPTS": "1"}


@contextmanager
def connected_as_payonce(database: ScratchDatabase) -> Iterator[None]:
    """A process of payonce that works on the database, as far as the server can tell."""
    with asyncio.Runner() as runner:
        settings = {"application_name": "payonce"}
        connection = runner.run(asyncpg.connect(database.service_url, server_settings=settings))
        yield
        runner.run(connection.close())


def test_put_answers_with_the_id_and_a_repeated_key_with_the_first(payonce: Payonce, database: ScratchDatabase) -> None:
    first = payonce("queues", "put", QUEUE, '{"row_id": 1}', "--key", "one", "--json").json
    again = payonce("queues", "put", QUEUE, "-", "--key", "one", "--json", stdin='{"row_id": 2}').json
    assert first == {"queue": QUEUE, "id": first["id"], "accepted": True}
    assert again == {**first, "accepted": False}
    payonce("queues", "put", QUEUE, '{"row_id": 1}', "--delay", "3600", "--action", "later")
    payonce("queues", "put", QUEUE, '{"row_id": 1}', "--delay", "3600", "--action", "later")
    depth = depth_of(payonce)
    assert (depth["ready"], depth["delayed"], depth["paused"]) == (1, 2, False)


def test_an_envelope_keeps_its_id_and_unknown_fields(payonce: Payonce, database: ScratchDatabase) -> None:
    message_id = "0199a3c4-7d1e-7c3b-9a1f-2f6f1f0e8a11"
    envelope = f'{{"id": "{message_id}", "action": "add", "colour": "red", "payload": {{"row_id": 7}}}}'
    assert payonce("queues", "put", QUEUE, envelope, "--json").json["id"] == message_id
    assert ask(database.owner_url, "select extra->>'colour' from payonce.messages where action = 'add'") == "red"


def test_peek_goes_page_by_page_and_hides_secrets(payonce: Payonce) -> None:
    assert payonce("queues", "peek", QUEUE).stdout == f"no message of {QUEUE} is ready\n"
    for row_id in range(3):
        payonce("queues", "put", QUEUE, f'{{"row_id": {row_id}, "api_key": "hunter2"}}')
    first = payonce("queues", "peek", QUEUE, "--limit", "2", "--json")
    assert [message["payload"]["row_id"] for message in first.json["messages"]] == [0, 1]
    second = payonce("queues", "peek", QUEUE, "--limit", "2", "--after", first.json["next_after"], "--json")
    assert [message["payload"]["row_id"] for message in second.json["messages"]] == [2]
    assert second.json["next_after"] is None
    assert "hunter2" not in first.stdout + payonce("queues", "peek", QUEUE).stdout


def test_pause_is_shown_with_its_reason_and_survives_a_start(payonce: Payonce) -> None:
    assert payonce("queues", "pause", QUEUE, "--reason", "vendor is down", "--json").json["paused"] is True
    shown = payonce("queues", "show", QUEUE, "--json").json
    assert (shown["paused"], shown["paused_reason"]) == (True, "vendor is down")
    assert shown["policy"]["lease_s"] == 2.0
    assert payonce("queues", "resume", QUEUE, "--by", "ada", "--json").json["paused"] is False
    noted = payonce("audit", "log", "--reference", QUEUE, "--json").json["notes"]
    assert [one["text"] for one in noted] == ["resumed", "paused: vendor is down"]
    assert noted[0]["actor"] == "ada"
    assert payonce("queues", "show", QUEUE, "--json").json["paused_reason"] is None


def test_a_paused_queue_is_worked_on_after_resume(payonce: Payonce, database: ScratchDatabase) -> None:
    payonce("queues", "pause", QUEUE)
    payonce("queues", "put", QUEUE, '{"row_id": 404}')
    worker = payonce.start("run", "tally.worker", **ONE_TRY)
    until(lambda: "worker_started" in (worker.stderr.readline() if worker.stderr else ""), "the worker starts")
    assert message_count(database, "ready") == 1
    payonce("queues", "resume", QUEUE)
    until(lambda: message_count(database, "parked") == 1, "the message is worked on and parked")


def test_redrive_and_purge_touch_what_the_filter_says(payonce: Payonce, database: ScratchDatabase) -> None:
    parked = [payonce("queues", "put", QUEUE, f'{{"row_id": {row}}}', "--json").json["id"] for row in (1, 2, 3)]
    payonce.start("run", "tally.worker", **ONE_TRY)
    until(lambda: message_count(database, "parked") == 3, "all are parked")
    payonce("queues", "pause", QUEUE)

    for verb in ("redrive", "purge"):
        assert "add --yes" in payonce("queues", verb, QUEUE, "--json").sentence
    declined = payonce.at_terminal("queues", "purge", QUEUE, typed="n\n")
    assert (declined.code, declined.stderr) == (1, "nothing was changed\n")
    assert parked[0] in declined.stdout, "what the question is about"
    nothing = payonce("queues", "redrive", QUEUE, "--error-contains", "no such text", "--yes", "--json")
    assert nothing.json["redriven"] == 0
    too_early = payonce("queues", "redrive", QUEUE, "--before", "2020-01-01T00:00:00Z", "--yes", "--json")
    assert too_early.json["redriven"] == 0
    one = payonce("queues", "redrive", QUEUE, "--id", parked[0], "--yes", "--json")
    assert (one.json["redriven"], message_count(database, "ready"), message_count(database, "parked")) == (1, 1, 2)
    by_error = payonce("queues", "purge", QUEUE, "--error-contains", "row 2 is not there", "--yes", "--json")
    assert by_error.json["purged"] == 1
    assert "purged by" in str(payonce("trace", parked[1], "--json").json["entries"][-1]["last_error"])
    rest = payonce("queues", "purge", QUEUE, "--state", "ready", "--yes", "--json")
    assert (rest.json["purged"], message_count(database, "parked")) == (1, 1)


def test_trace_tells_the_life_of_a_message(payonce: Payonce, database: ScratchDatabase) -> None:
    message_id = payonce("queues", "put", QUEUE, '{"row_id": 5}', "--key", "five", "--json").json["id"]
    assert [entry["status"] for entry in payonce("trace", message_id, "--json").json["entries"]] == ["received"]
    payonce.start("run", "tally.worker", **{**ONE_TRY, "QUEUE_POLICY__TALLY_CHANGES__MAX_ATTEMPTS": "2"})
    until(lambda: message_count(database, "parked") == 1, "it is parked")
    statuses = [entry["status"] for entry in payonce("trace", "five", "--json").json["entries"]]
    assert statuses[:2] == ["retry", "parked"]
    said = "update payonce.job_logs set status = 'success', info = 'nothing to add' where status = 'retry' returning 1"
    assert ask(database.owner_url, said) == 1
    shown = payonce("trace", message_id).stdout
    assert "row 5 is not there yet" in shown
    assert "nothing to add" in shown


def test_trace_of_nothing_fails_and_still_prints_its_object(payonce: Payonce) -> None:
    ended = payonce("trace", "nobody", "--json")
    assert (ended.code, ended.json["entries"]) == (1, [])
    assert "nothing was found for 'nobody'" in ended.stderr
    assert payonce("trace", "nobody").stdout == "", "no empty table"


def test_backup_and_restore_bring_the_messages_back(
    payonce: Payonce, database: ScratchDatabase, tmp_path: object
) -> None:
    payonce("queues", "put", QUEUE, '{"row_id": 1}')
    file = f"{tmp_path}/before.dump"
    assert payonce("db", "backup", file, "--json").json["bytes"] > 0
    assert "exists already" in payonce("db", "backup", file).sentence
    assert payonce("queues", "purge", QUEUE, "--state", "ready", "--yes", "--json").json["purged"] == 1
    assert "--replace" in payonce("db", "restore", file).sentence
    assert "add --yes" in payonce("db", "restore", file, "--replace").sentence
    with connected_as_payonce(database):
        assert "1 connections of payonce are open" in payonce("db", "restore", file, "--replace", "--yes").sentence
    assert message_count(database, "ready") == 0
    assert payonce("db", "restore", file, "--replace", "--yes", "--json").code == 0
    assert message_count(database, "ready") == 1


def test_more_than_one_transaction_changes_is_redriven_and_purged_in_batches(
    payonce: Payonce, database: ScratchDatabase
) -> None:
    many = 50_001
    payonce("queues", "put", QUEUE, '{"row_id": 1}')
    ask(
        database.owner_url,
        f"""
        with made as (
            insert into payonce.messages (id, queue, action, state, payload, last_error, attempts)
            select gen_random_uuid(), '{QUEUE}', '', 'parked', '{{"row_id": 1}}', 'not there', 1
            from generate_series(1, {many}) returning 1)
        select count(*) from made
        """,
    )
    redriven = payonce("queues", "redrive", QUEUE, "--yes", "--json")
    assert (redriven.json["redriven"], redriven.json["status"]) == (many, "done")
    assert f"of {many:,} messages of {QUEUE} redriven (running)" in redriven.stderr
    assert message_count(database, "ready") == many + 1
    purged = payonce("queues", "purge", QUEUE, "--state", "ready", "--yes", "--json")
    assert purged.json["purged"] == many + 1
    listed = payonce("queues", "operations", QUEUE, "--json").json["operations"]
    assert [(each["kind"], each["status"], each["changed"]) for each in listed] == [
        ("purge", "done", many + 1),
        ("redrive", "done", many),
    ]
    assert "there is no operation 404" in payonce("queues", "stop", "404", "--json").sentence
    assert "there is no queue 'nobody'" in payonce("queues", "operations", "nobody", "--json").sentence
