"""Who may log in to the console, from the command line."""

from payonce.testing import ScratchDatabase
from tests.cli.conftest import Payonce, until

PASSWORD = "correct horse battery\n"


def test_a_person_is_added_listed_changed_and_removed(payonce: Payonce, database: ScratchDatabase) -> None:
    assert payonce("users", "list", "--json").json == {"users": []}
    added = payonce("users", "add", "Ann", "--role", "operator", "--password-stdin", "--json", stdin=PASSWORD)
    assert added.json == {"name": "ann", "role": "operator"}
    assert payonce("users", "role", "ann", "approver", "--by", "boss", "--json").json["role"] == "approver"
    changed = payonce("users", "passwd", "ann", "--password-stdin", "--json", stdin="another long password\n")
    assert changed.code == 0
    [listed] = payonce("users", "list", "--json").json["users"]
    assert (listed["name"], listed["role"], listed["seen_at"]) == ("ann", "approver", None)
    assert payonce("users", "remove", "ann", "--json").json == {"name": "ann"}
    noted = payonce("audit", "log", "--reference", "ann", "--json").json["notes"]
    assert [one["text"] for one in reversed(noted)] == [
        "added as operator",
        "is now approver",
        "password changed",
        "removed",
    ]
    assert [one["actor"] for one in noted if one["text"] == "is now approver"] == ["boss"]


def test_a_password_is_never_an_argument_and_never_shown(payonce: Payonce, database: ScratchDatabase) -> None:
    refused = payonce("users", "add", "ann")
    assert refused.code == 2
    assert "--password-stdin" in refused.sentence
    short = payonce("users", "add", "ann", "--password-stdin", stdin="tooshort\n")
    assert short.code == 2
    assert "tooshort" not in short.stderr
    assert payonce("users", "list", "--json").json == {"users": []}


def test_a_slip_is_refused_with_what_is_known(payonce: Payonce, database: ScratchDatabase) -> None:
    payonce("users", "add", "ann", "--password-stdin", stdin=PASSWORD)
    assert "viewer, operator, approver" in payonce("users", "role", "ann", "admin").sentence
    assert "known are: ann" in payonce("users", "remove", "bob").sentence
    assert "already exists" in payonce("users", "add", "ANN", "--password-stdin", stdin=PASSWORD).sentence


def test_a_start_beyond_this_machine_says_how_to_add_the_first_login(
    payonce: Payonce, database: ScratchDatabase
) -> None:
    worker = payonce.start("run", "tally.worker", "--port", "0", PAYONCE_HOST="0.0.0.0")
    said: list[str] = []

    def told() -> bool:
        said.append(worker.stderr.readline() if worker.stderr else "")
        return "console_has_no_logins" in said[-1]

    until(told, "the start tells of logins")
    assert "payonce users add NAME --role approver" in said[-1]
