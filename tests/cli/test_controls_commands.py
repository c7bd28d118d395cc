"""An operator's hand on the brakes: freeze, limit, look at what is unknown, answer, and have a second person agree."""

import asyncio
import re
from pathlib import Path

import pytest

from payonce.app.process import App
from payonce.engine.controls import CHECKS
from payonce.engine.controls.checks import SEND_CHECKS
from payonce.engine.controls.quarantine import refuse_in_quarantine
from payonce.settings import load_settings
from payonce.testing import ScratchDatabase, eventually
from tests.cli.conftest import QUEUE, Ended, Payonce, ask

EFFECT = "0199a3c4-7d1e-7c3b-9a1f-{:012x}"
MESSAGE = "0199a3c4-0000-7c3b-9a1f-{:012x}"


def an_effect(database: ScratchDatabase, number: int, state: str = "review", minor: int = 12_345) -> str:
    """An effect that moves euros, and its parked message."""
    ask(
        database.owner_url,
        """
        with message as (
            insert into payonce.messages (id, queue, state, action, payload)
            values ($2::text::uuid, $6, 'parked', '', '{}')
        )
        insert into payonce.effects (
            id, kind, key, version, safety, state, request, outcome, reason, review_cause, first_attempt_at, sent_until,
            message_id, trace_id, service, asset, exponent, amount_minor)
        values ($1::text::uuid, 'bank.pay', 'payout-' || $3, 1, 'blind', $4, '{"iban": "XX", "api_key": "hunter2"}',
                case $4 when 'performed' then '{"number": "n-1"}'::json end, 'no answer within 20 s',
                case $4 when 'review' then 'blind' end, payonce.due_now(), payonce.due_now(), $2::text::uuid, 't-1',
                'tally', 'EUR', 2, $5)
        """,
        EFFECT.format(number),
        MESSAGE.format(number),
        str(number),
        state,
        minor,
        QUEUE,
    )
    return EFFECT.format(number)


def answered(payonce: Payonce, effect: str, *more: str, said: str = "did_not", revision: str = "1") -> Ended:
    options = ("--note", "not in their statement", "--revision", revision, "--yes", "--json")
    return payonce("effects", "answer", effect, said, *options, *more)


def state_of(database: ScratchDatabase, effect: str) -> str:
    found: str = ask(database.owner_url, "select state from payonce.effects where id = $1::text::uuid", effect)
    return found


def test_a_freeze_is_added_listed_and_lifted(payonce: Payonce, database: ScratchDatabase) -> None:
    made = payonce(
        "freeze",
        "add",
        "--vendor",
        "bank",
        "--asset",
        "EUR",
        "--for",
        "2h",
        "--reason",
        "pays twice",
        "--by",
        "ada",
        "--json",
    )
    freeze = made.json["freeze"]
    assert (freeze["id"], freeze["what"], freeze["frozen_by"], freeze["in_force"]) == (
        1,
        "vendor bank, asset EUR",
        "ada",
        True,
    )
    assert len(made.json["doubts"]) == 2, "nothing was ever sent to that vendor: a slip of the pen is pointed out"
    assert "is it spelled correctly?" in made.stderr
    assert [each["id"] for each in payonce("freeze", "list", "--json").json["freezes"]] == [1]
    assert "pays twice" in payonce("freeze", "list").stdout
    assert "add --yes" in payonce("freeze", "lift", "1", "--why", "mended").sentence
    declined = payonce.at_terminal("freeze", "lift", "1", "--why", "mended", typed="n\n")
    assert (declined.code, declined.stderr) == (1, "nothing was changed\n")
    assert "pays twice" in declined.stdout, "what the question is about"
    lifted = payonce("freeze", "lift", "1", "--why", "mended", "--yes", "--json").json["freeze"]
    assert (lifted["in_force"], lifted["lifted_why"]) == (False, "mended")
    assert payonce("freeze", "list", "--json").json == {"freezes": [], "next_before": None}
    assert len(payonce("freeze", "list", "--all", "--json").json["freezes"]) == 1
    assert ask(database.owner_url, "select count(*) from payonce.audit_log where location = 'brakes.freeze'") == 2


def test_everything_is_frozen_with_one_word_and_by_the_login_name(payonce: Payonce) -> None:
    made = payonce("freeze", "add", "--everything", "--reason", "look first", "--json", LOGNAME="grace").json
    assert (made["freeze"]["what"], made["freeze"]["frozen_by"], made["doubts"]) == ("everything", "grace", [])


def test_a_freeze_says_which_sends_may_still_go_out(payonce: Payonce, database: ScratchDatabase) -> None:
    an_effect(database, 1, "unknown")
    ask(database.owner_url, "update payonce.effects set busy_until = payonce.due_now() + interval '1 hour'")
    at_once = payonce("freeze", "add", "--vendor", "bank", "--reason", "look", "--no-wait", "--json").json
    assert at_once["begun_before"] == at_once["still_under_way"]
    assert (at_once["still_under_way"]["count"], at_once["still_under_way"]["amounts"][0]["amount"]) == (1, "123.45")
    said = payonce("freeze", "add", "--vendor", "bank", "--reason", "look", "--no-wait").stdout
    assert "is in force; sends may still go out: 1 begun before (123.45 EUR), the last until" in " ".join(said.split())


async def test_a_freeze_is_in_force_and_then_waits_for_sends_that_had_begun(
    payonce: Payonce, database: ScratchDatabase
) -> None:
    async def asked(statement: str) -> object:
        return await asyncio.to_thread(ask, database.owner_url, statement)

    await asyncio.to_thread(an_effect, database, 1, "unknown")
    await asked("update payonce.effects set busy_until = payonce.due_now() + interval '1 hour'")
    freezing = asyncio.create_task(
        asyncio.to_thread(payonce, "freeze", "add", "--vendor", "bank", "--reason", "look", "--json")
    )
    await eventually(lambda: asked("select exists (select from payonce.freezes)"), 60)
    await asked("update payonce.effects set state = 'refused', busy_until = null")
    ended = await freezing
    assert (ended.json["begun_before"]["count"], ended.json["still_under_way"]["count"]) == (1, 0)
    assert "is in force; waiting for sends: 1 begun before (123.45 EUR)" in ended.stderr


def test_limits_are_set_listed_with_what_is_used_and_removed(payonce: Payonce, database: ScratchDatabase) -> None:
    an_effect(database, 1)
    payonce("limits", "set", "EUR", "500", "--json")
    [found] = payonce("limits", "list", "--json").json["limits"]
    assert (found["most"]["amount"], found["used"]["amount"], found["window_s"]) == ("500.00", "123.45", 3600)
    payonce("limits", "set", "POINTS", "7", "--exponent", "0", "--window", "1d", "--vendor", "shop")
    assert "POINTS" in payonce("limits", "list").stdout
    assert payonce("limits", "remove", "1", "--json").json["removed"]["id"] == 1
    assert [each["vendor"] for each in payonce("limits", "list", "--json").json["limits"]] == ["shop"]


def test_open_effects_are_listed_in_pages_and_shown_without_secrets(
    payonce: Payonce, database: ScratchDatabase
) -> None:
    ids = [an_effect(database, number, state) for number, state in enumerate(("review", "unknown", "performed"), 1)]
    first = payonce("effects", "list", "--limit", "1", "--json").json
    second = payonce("effects", "list", "--limit", "1", "--after", first["next_after"], "--json").json
    third = payonce("effects", "list", "--limit", "1", "--after", second["next_after"], "--json").json
    assert [each["id"] for each in first["effects"] + second["effects"] + third["effects"]] == ids[:2]
    assert first["effects"][0]["amount"]["amount"] == "123.45"
    assert [each["id"] for each in payonce("effects", "list", "--state", "performed", "--json").json["effects"]] == (
        ids[2:]
    )
    shown = payonce("effects", "show", ids[0], "--json")
    assert shown.json["question"].startswith("Did bank.pay for payout-1 (generation 1) happen?")
    assert (shown.json["answers"], shown.json["revision"]) == (["did_not", "happened"], 1)
    assert shown.json["example_outcome"] == {"number": "n-1"}
    assert (shown.json["queue"], shown.json["message_state"]) == (QUEUE, "parked")
    people = payonce("effects", "show", ids[0]).stdout
    assert "Safe answers: did_not, happened." in people
    assert "hunter2" not in people + shown.stdout


def test_an_answer_is_taken_at_once_and_its_message_goes_on(payonce: Payonce, database: ScratchDatabase) -> None:
    effect = an_effect(database, 1)
    assert answered(payonce, effect).json == {
        "done": True,
        "effect": effect,
        "state": "abandoned",
        "message": MESSAGE.format(1),
        "redriven": True,
        "gone": False,
    }
    assert ask(database.owner_url, "select state from payonce.messages") == "ready"
    again = answered(payonce, effect)
    assert (again.code, again.stdout) == (1, "")
    assert "has changed since it was shown; look again" in again.sentence


def test_an_outcome_is_stated_exactly(payonce: Payonce, database: ScratchDatabase) -> None:
    effect = an_effect(database, 1)
    document = '{"wei": 123456789012345678901234567890, "rate": 1.25}'
    assert answered(payonce, effect, "--outcome", document, said="happened").json["state"] == "performed"
    assert ask(database.owner_url, "select outcome->>'wei' from payonce.effects") == "123456789012345678901234567890"


def test_an_outcome_that_the_service_could_not_read_is_refused_with_its_fields(
    payonce: Payonce, database: ScratchDatabase
) -> None:
    effect = an_effect(database, 1)
    ask(database.owner_url, "update payonce.effects set kind = 'southbank.pay_in'")
    refused = answered(payonce, effect, "--outcome", '{"paymentid": "p-1"}', said="happened")
    assert "missing required field" in refused.sentence
    assert "PaymentReceipt has the fields payment_id" in refused.sentence
    assert state_of(database, effect) == "review"


def test_above_the_threshold_a_second_person_agrees_from_the_command_line(
    payonce: Payonce, database: ScratchDatabase
) -> None:
    effect = an_effect(database, 1)
    [threshold] = payonce("approvals", "threshold", "EUR", "100", "--json").json["thresholds"]
    assert threshold["above"]["amount"] == "100.00"
    waiting = answered(payonce, effect, "--by", "ada").json
    assert (waiting["done"], waiting["approval"], state_of(database, effect)) == (False, 1, "review")
    [listed] = payonce("approvals", "list", "--json").json["approvals"]
    assert listed["text"] == "answer did_not for bank.pay payout-1:1 (123.45 EUR)"
    assert "requested by ada" in payonce("approvals", "grant", "1", "--by", "Ada", "--yes").sentence
    granted = payonce("approvals", "grant", "1", "--by", "bob", "--yes", "--json").json["approval"]
    assert (granted["state"], granted["result"]["state"]) == ("granted", "abandoned")
    assert state_of(database, effect) == "abandoned"
    assert payonce("approvals", "list", "--json").json["approvals"] == []


def test_to_raise_or_remove_a_threshold_needs_a_second_person(payonce: Payonce) -> None:
    for amount in ("200", "100"):
        [threshold] = payonce("approvals", "threshold", "EUR", amount, "--by", "ada", "--json").json["thresholds"]
        assert threshold["above"]["amount"] == f"{amount}.00"
    asked = payonce("approvals", "threshold", "EUR", "150", "--by", "ada", "--why", "we grow", "--json").json
    assert (asked["approval"], asked["thresholds"][0]["above"]["amount"]) == (1, "100.00")
    assert "requested by ada" in payonce("approvals", "grant", "1", "--by", "ada", "--yes").sentence
    payonce("approvals", "grant", "1", "--by", "bob", "--yes")
    gone = payonce("approvals", "threshold", "EUR", "--remove", "--by", "bob")
    assert "a second person must run: payonce approvals grant 2" in " ".join(gone.stdout.split())
    payonce("approvals", "grant", "2", "--by", "ada", "--yes")
    assert payonce("approvals", "threshold", "--json").json == {"thresholds": []}


def test_a_grant_that_comes_too_late_fails_and_says_so(payonce: Payonce, database: ScratchDatabase) -> None:
    effect = an_effect(database, 1)
    payonce("approvals", "threshold", "EUR", "100")
    answered(payonce, effect, "--by", "ada")
    ask(database.owner_url, "update payonce.effects set revision = revision + 1")
    late = payonce("approvals", "grant", "1", "--by", "bob", "--yes", "--json")
    assert (late.code, late.json["approval"]["state"]) == (1, "denied")
    assert "has changed since it was shown; look again; submit a new request" in late.sentence
    assert state_of(database, effect) == "review"


def test_a_denial_is_kept_with_its_reason(payonce: Payonce, database: ScratchDatabase) -> None:
    payonce("approvals", "threshold", "EUR", "0")
    answered(payonce, an_effect(database, 1), "--by", "ada")
    denied = payonce("approvals", "deny", "1", "--why", "it is booked", "--by", "bob", "--json").json["approval"]
    assert (denied["state"], denied["decided_why"]) == ("denied", "it is booked")
    assert "it is booked" in str(payonce("approvals", "list", "--state", "denied", "--json").json)


def test_a_redrive_of_much_money_shows_its_amounts_and_waits(payonce: Payonce, database: ScratchDatabase) -> None:
    for number in (1, 2):
        an_effect(database, number)
    payonce("approvals", "threshold", "EUR", "200")
    waiting = payonce("queues", "redrive", QUEUE, "--by", "ada", "--yes", "--json").json
    assert (waiting["redriven"], waiting["matching"], waiting["approval"]) == (0, 2, 1)
    assert [amount["amount"] for amount in waiting["amounts"]] == ["246.90"]
    granted = payonce("approvals", "grant", "1", "--by", "bob", "--yes", "--json").json["approval"]
    assert granted["result"] == {"queue": QUEUE, "redriven": 2}


def test_a_small_redrive_is_done_at_once(payonce: Payonce, database: ScratchDatabase) -> None:
    for number in (1, 2):
        an_effect(database, number)
    payonce("approvals", "threshold", "EUR", "200")
    done = payonce("queues", "redrive", QUEUE, "--id", MESSAGE.format(2), "--yes", "--json").json
    assert (done["redriven"], done["matching"], done["amounts"][0]["amount"]) == (1, 1, "123.45")


def test_a_redrive_names_messages_whose_effects_wait_for_a_person_and_the_way_to_answer(
    payonce: Payonce, database: ScratchDatabase
) -> None:
    for number, state in ((1, "review"), (2, "review"), (3, "performed")):
        an_effect(database, number, state)
    declined = payonce.at_terminal("queues", "redrive", QUEUE, typed="n\n")
    said = " ".join(declined.stdout.split())
    assert "2 of them have effects in review, which a redrive does not resolve" in said
    assert f"payonce effects list --state review --queue {QUEUE}" in said
    listed = payonce("effects", "list", "--state", "review", "--queue", QUEUE, "--json").json["effects"]
    assert {each["id"] for each in listed} == {EFFECT.format(1), EFFECT.format(2)}
    done = payonce("queues", "redrive", QUEUE, "--yes", "--json").json
    assert (done["matching"], done["in_review"]) == (3, 2)


def test_a_purge_says_what_it_keeps_and_why(payonce: Payonce, database: ScratchDatabase) -> None:
    for number, state in ((1, "unknown"), (2, "performed")):
        an_effect(database, number, state)
    ended = payonce("queues", "purge", QUEUE, "--yes", "--json")
    assert ended.json == {"queue": QUEUE, "purged": 1, "matching": 2, "kept": 1}
    assert ended.stderr == "1 of them are kept because they have open effects; see: payonce effects list\n"


def test_the_list_of_what_is_asked_has_the_quarantine_and_every_brake() -> None:
    assert (refuse_in_quarantine, *CHECKS) == SEND_CHECKS


async def test_a_started_process_asks_the_brakes_before_it_sends(
    database: ScratchDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database.service_url)
    async with App.open(load_settings(), ["tally.worker"]) as app:
        app.start()
        assert app._worker is not None
        assert [server.checks for server in app._worker._servers] == [SEND_CHECKS]
        await app.stop()


REFUSED = {
    "freeze of nothing": (["freeze", "add", "--reason", "x"], "name what to freeze"),
    "freeze without a reason": (["freeze", "add", "--everything", "--reason", " "], "the reason is empty"),
    "freeze with two ends": (
        ["freeze", "add", "--everything", "--reason", "x", "--for", "1h", "--until", "2200-01-01T00:00:00Z"],
        "give --until or --for",
    ),
    "freeze that is over": (
        ["freeze", "add", "--everything", "--reason", "x", "--until", "2020-01-01T00:00:00Z"],
        "which is in the past",
    ),
    "freeze for ages": (
        ["freeze", "add", "--everything", "--reason", "x", "--for", "99999999d"],
        "more than ten years",
    ),
    "odd duration": (["freeze", "add", "--everything", "--reason", "x", "--for", "soon"], "--for is 'soon'"),
    "no such freeze": (["freeze", "lift", "7", "--why", "x", "--yes"], "there is no freeze 7"),
    "no such freeze, before a confirmation": (["freeze", "lift", "7", "--why", "x"], "there is no freeze 7"),
    "asset in small letters": (
        ["freeze", "add", "--asset", "eur", "--reason", "x"],
        "there is no asset 'eur'; did you mean EUR?",
    ),
    "freeze of an unknown asset": (
        ["freeze", "add", "--asset", "POINTS", "--reason", "x"],
        "there is no asset 'POINTS'; known are: AED, AFN, ALL",
    ),
    "freeze in words": (["freeze", "lift", "seven", "--why", "x", "--yes"], "'seven' is not the number of a freeze"),
    "unknown asset": (["limits", "set", "POINTS", "5"], "add --exponent"),
    "negative limit": (["limits", "set", "EUR", "-5"], "'-5' is below zero; amounts and numbers are written without"),
    "no amount": (["limits", "set", "EUR", "much"], "'much' is not a decimal number"),
    "too many decimals": (["limits", "set", "EUR", "1.001"], "more than the 2 decimals of EUR"),
    "long window": (["limits", "set", "EUR", "1", "--window", "40d"], "the window is 3456000 s"),
    "no such limit": (["limits", "remove", "7"], "there is no limit 7"),
    "no such approval": (["approvals", "grant", "7", "--yes"], "there is no approval 7"),
    "no such approval, before a confirmation": (["approvals", "grant", "7"], "there is no approval 7"),
    "negative threshold": (["approvals", "threshold", "EUR", "-0.5"], "'-0.5' is below zero"),
    "half a threshold": (["approvals", "threshold", "EUR"], "give an asset and an amount"),
    "unknown verdict": (["approvals", "list", "--state", "maybe"], "there is no state 'maybe'"),
    "unknown state of an effect": (["effects", "list", "--state", "lost"], "there is no state 'lost'"),
    "no effect id": (["effects", "show", "first"], "'first' is not the id of an effect"),
    "no such effect": (["effects", "show", EFFECT.format(9)], "there is no effect"),
    "unknown answer": (["effects", "answer", EFFECT.format(9), "maybe", "--note", "x"], "there is no answer 'maybe'"),
    "no such effect, before a confirmation": (
        ["effects", "answer", EFFECT.format(9), "did_not", "--note", "x"],
        "there is no effect",
    ),
    "unseen answer": (["effects", "answer", EFFECT.format(9), "did_not", "--note", "x", "--yes"], "needs --revision"),
    "outcome of nothing": (
        ["effects", "answer", EFFECT.format(9), "did_not", "--note", "x", "--outcome", "{}"],
        "--outcome goes with happened",
    ),
    "outcome that is no JSON": (
        ["effects", "answer", EFFECT.format(9), "happened", "--note", "x", "--outcome", "{"],
        "not usable JSON",
    ),
    "outcome of too many digits": (
        [
            "effects",
            "answer",
            EFFECT.format(9),
            "happened",
            "--note",
            "x",
            "--outcome",
            '{"a": 0.12345678901234567}',
        ],
        "write it as text",
    ),
}


@pytest.mark.parametrize("group", ["freeze", "limits", "approvals", "effects"])
def test_a_refused_command_says_what_to_do_and_changes_nothing(
    payonce: Payonce, database: ScratchDatabase, group: str
) -> None:
    for name, (arguments, piece) in REFUSED.items():
        if arguments[0] != group:
            continue
        ended = payonce(*arguments)
        assert (ended.code, ended.stdout) == (2, ""), (name, ended)
        assert piece in ended.sentence, name
    assert ask(database.owner_url, "select count(*) from payonce.audit_log") == 0


def test_the_page_about_the_brakes_names_only_commands_that_exist(payonce: Payonce) -> None:
    page = (Path(__file__).parents[2] / "docs" / "controls.md").read_text(encoding="utf-8")
    for group in ("effects", "freeze", "limits", "approvals"):
        words = payonce(group, "--help").stdout
        used = set(re.findall(rf"payonce {group} (\w+)", page))
        assert used
        assert [command for command in used if f"  {command}" not in words] == []
