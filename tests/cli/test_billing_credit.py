"""Credit from the command line: seen, adjusted, paid out, and left to a second person."""

from payonce.testing import ScratchDatabase
from tests.cli.conftest import Payonce, ask

ADA = "ada@example.com"


def registered(database: ScratchDatabase) -> None:
    ask(
        database.owner_url,
        "insert into subscriptions.accounts (id, email, password_hash) values ('acc-1', $1, 'none')",
        ADA,
    )


def test_credit_is_added_shown_removed_and_paid_out_by_hand(payonce: Payonce, database: ScratchDatabase) -> None:
    registered(database)
    assert payonce("billing", "credit", "show", ADA, "--json").json == {
        "account": "acc-1",
        "balances": [],
        "entries": [],
    }
    how = ("--yes", "--json", "--by", "ann")
    added = payonce("billing", "credit", "add", ADA, "50.00", "AED", "--why", "an outage", *how)
    assert added.json["credit"] == {"account": "acc-1", "balance": "50.00", "currency": "AED", "payout": None}
    payonce("billing", "credit", "remove", "acc-1", "5.00", "AED", "--why", "added twice", *how)
    payonce("billing", "credit", "remove", "acc-1", "1.00", "AED", "--expired", "--why", "after a year", *how)
    paid = payonce("billing", "credit", "pay-out", ADA, "40.00", "AED", "--by-hand", "--why", "transfer 4711", *how)
    assert (paid.json["credit"]["balance"], paid.json["credit"]["payout"] is not None) == ("4.00", True)
    shown = payonce("billing", "credit", "show", ADA, "--json").json
    assert [each["amount"] for each in shown["balances"]] == ["4.00"]
    assert [(each["kind"], each["amount"]["amount"], each["actor"]) for each in shown["entries"]] == [
        ("paid_out", "-40.00", "ann"),
        ("expired", "-1.00", "ann"),
        ("adjusted", "-5.00", "ann"),
        ("adjusted", "50.00", "ann"),
    ]
    assert "transfer 4711" in payonce("billing", "credit", "show", ADA).stdout


def test_a_slip_is_refused_with_the_way_out(payonce: Payonce, database: ScratchDatabase) -> None:
    registered(database)
    given = ("--why", "x", "--yes")
    assert "the account's id or e-mail" in payonce("billing", "credit", "show", "bob").sentence
    short = payonce("billing", "credit", "remove", ADA, "1.00", "AED", *given)
    assert (short.code, "has 0.00 AED of credit" in short.sentence) == (2, True)
    payonce("billing", "credit", "add", ADA, "5.00", "AED", *given)
    no_charge = payonce("billing", "credit", "pay-out", ADA, "5.00", "AED", *given)
    assert "or pay out by hand" in no_charge.sentence
    both = payonce("billing", "credit", "pay-out", ADA, "5.00", "AED", "--by-hand", "--invoice", "INV-1", *given)
    assert "--invoice selects" in both.sentence
    assert "add --yes" in payonce("billing", "credit", "add", ADA, "5.00", "AED", "--why", "x").sentence


def test_above_the_threshold_it_waits_for_a_second_person(payonce: Payonce, database: ScratchDatabase) -> None:
    registered(database)
    payonce("approvals", "threshold", "AED", "10")
    how = ("--why", "an outage", "--yes", "--json", "--by", "ann")
    waits = payonce("billing", "credit", "add", ADA, "11.00", "AED", *how)
    assert payonce("billing", "credit", "show", ADA, "--json").json["entries"] == []
    granted = payonce("approvals", "grant", str(waits.json["approval"]), "--yes", "--json", "--by", "bob")
    assert granted.json["approval"]["state"] == "granted"
    [entry] = payonce("billing", "credit", "show", ADA, "--json").json["entries"]
    assert (entry["amount"]["amount"], entry["actor"]) == ("11.00", "ann, granted by bob")


def test_credit_is_not_looked_for_in_the_database_of_payments(payonce: Payonce) -> None:
    refused = payonce("billing", "credit", "show", ADA, BILLING_DATABASE="payments")
    assert refused.code != 0
    assert "billing.subscriptions has a database of its own" in refused.stderr
