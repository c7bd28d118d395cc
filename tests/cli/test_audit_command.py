"""`payonce audit`: run, verify, head and log, as an operator uses them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from payonce.app.process import App
from payonce.engine.audit import LedgerSealer, note, seal_notes
from payonce.engine.audit.log import Severity
from payonce.engine.database.connections import Database
from payonce.engine.database.leases import acquire, release
from payonce.engine.ledger import Finding, Posting, Reference, moved, post
from payonce.engine.messages.transaction import Reader
from payonce.kit.money import Amount, well_known
from payonce.service import Service
from payonce.settings import Settings
from payonce.testing import ScratchDatabase, eventually
from tests.cli.conftest import Payonce, until

EURO = Amount(100, well_known("EUR"))


def in_the_database(database: ScratchDatabase, act: Callable[[Database], Coroutine[Any, Any, None]]) -> None:
    async def acting() -> None:
        async with Database.open(database.service_url) as opened:
            await act(opened)

    asyncio.run(acting())


def write_notes(database: ScratchDatabase, *texts: str, reference: str = "bank", severity: str = "INFO") -> None:
    async def act(opened: Database) -> None:
        for text in texts:
            async with opened.transaction() as connection:
                await note(connection, "test", reference, text, actor="ann", severity=Severity(severity))

    in_the_database(database, act)


def seal(database: ScratchDatabase, count: int) -> None:
    async def act(opened: Database) -> None:
        lease = await acquire(opened, "janitors", "tester", 60.0)
        assert lease is not None
        sealed = 0

        async def enough() -> bool:
            nonlocal sealed
            sealed += await seal_notes(opened, lease)
            return sealed >= count

        await eventually(enough)
        await release(opened, lease)

    in_the_database(database, act)


def tamper(database: ScratchDatabase, damage: str) -> None:
    """As one who can do anything does it: no trigger fires."""
    asyncio.run(_tamper(database.superuser_url, damage))


async def _tamper(url: str, damage: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"set session_replication_role = replica; {damage}")
    finally:
        await connection.close()


def test_a_sound_database_passes_and_says_what_it_checked(payonce: Payonce) -> None:
    ended = payonce("audit", "run", "--json")
    assert ended.code == 0
    assert (ended.json["findings"], ended.json["ok"]) == ([], True)
    assert ended.json["checks"] > 15
    told = payonce("audit", "run")
    assert told.code == 0
    assert "nothing found" in told.stdout
    assert f"1/{ended.json['checks']} ledger: unbalanced posting" in told.stderr
    assert "tally: every value is the count of its changes" in told.stderr


def test_findings_end_with_one_and_say_what_to_do(payonce: Payonce, database: ScratchDatabase) -> None:
    tamper(database, "insert into tally.rows (id, value) values (1, 7)")
    ended = payonce("audit", "run", "--json")
    assert ended.code == 1
    [finding] = ended.json["findings"]
    assert finding["check"] == "tally: every value is the count of its changes"
    assert finding["text"] == "id 1, value 7"
    assert finding["way_out"]
    assert ended.json["ok"] is False
    assert "what to do" in payonce("audit", "run").stdout


def test_a_database_that_may_lose_commits_is_found_or_named_where_it_was_accepted(
    payonce: Payonce, database: ScratchDatabase
) -> None:
    tamper(database, "create unlogged table payonce.day (id int)")
    found = payonce("audit", "run", "--json", PAYONCE_ACCEPT_DATA_LOSS="false")
    [finding] = [each for each in found.json["findings"] if "payonce.day" in each["text"]]
    assert (found.code, finding["check"], found.json["accepted"]) == (1, "database: commits survive a crash", [])
    assert "set logged" in finding["way_out"]
    accepted = payonce("audit", "run", "--json", PAYONCE_ACCEPT_DATA_LOSS="true")
    assert (accepted.code, accepted.json["findings"], accepted.json["ok"]) == (0, [], True)
    assert any("payonce.day" in each for each in accepted.json["accepted"])
    told = payonce("audit", "run", PAYONCE_ACCEPT_DATA_LOSS="true")
    assert "accepted by PAYONCE_ACCEPT_DATA_LOSS: unlogged tables" in told.stdout


def test_a_query_that_takes_too_long_is_broken_off_and_told(payonce: Payonce, database: ScratchDatabase) -> None:
    locked = asyncio.run(_audit_beside_a_lock(payonce, database))
    assert locked["ok"] is False
    assert any("could not be checked: " in finding["text"] for finding in locked["findings"])
    assert locked["checks"] > len(locked["findings"]) > 0


async def _audit_beside_a_lock(payonce: Payonce, database: ScratchDatabase) -> Any:
    owner = await asyncpg.connect(database.owner_url)
    try:
        async with owner.transaction():
            await owner.execute("lock table payonce.postings in access exclusive mode")
            ended = await asyncio.to_thread(payonce, "audit", "run", "--statement-limit", "0.2", "--json")
            assert ended.code == 1
            return ended.json
    finally:
        await owner.close()


def test_head_verify_and_an_anchor_kept_elsewhere(payonce: Payonce, database: ScratchDatabase, tmp_path: Path) -> None:
    empty = payonce("audit", "head", "--json").json
    nothing = {"number": 0, "hash": "0" * 64}
    assert empty == {**nothing, "ledger": nothing}
    write_notes(database, "a", "b")
    seal(database, 2)
    first = payonce("audit", "head").stdout.strip()
    write_notes(database, "c")
    seal(database, 1)
    write_notes(database, "d")
    head = payonce("audit", "head", "--json").json
    sound = payonce("audit", "verify", "--head", first, "--json")
    assert sound.code == 0
    assert {**sound.json, "oldest_unsealed_at": None} == {
        **head,
        "notes": 3,
        "unsealed": 1,
        "oldest_unsealed_at": None,
        "heads": 1,
        "findings": [],
        "ok": True,
        "ledger": {**nothing, "postings": 0, "unsealed": 0, "oldest_unsealed_at": None, "heads": 0},
    }
    assert "would not be detected" in payonce("audit", "verify").stdout

    kept = tmp_path / "heads"
    kept.write_text(f"{first}\n{head['number']}:{head['hash']} 2026-01-31T12:00:00+00:00\n")
    assert payonce("audit", "verify", "--head", str(kept), "--json").json["heads"] == 2
    last = head["number"]
    tamper(
        database,
        f"""
        delete from payonce.audit_sealed where seal = {last}; delete from payonce.audit_seals where number = {last};
        delete from payonce.audit_log where text > 'b'
        """,
    )
    assert payonce("audit", "verify").code == 0
    cut = payonce("audit", "verify", "--head", str(kept), "--json")
    assert cut.code == 1
    assert [finding["check"] for finding in cut.json["findings"]] == ["cut chain"]
    by_setting = payonce("audit", "verify", PAYONCE_AUDIT_ANCHOR=str(kept))
    assert by_setting.code == 1
    assert "cut chain" in by_setting.stdout


def test_a_rewritten_note_is_found(payonce: Payonce, database: ScratchDatabase) -> None:
    write_notes(database, "a", "b")
    seal(database, 2)
    tamper(database, "update payonce.audit_log set actor = 'bob' where text = 'b'")
    ended = payonce("audit", "verify", "--json")
    assert ended.code == 1
    assert [finding["check"] for finding in ended.json["findings"]] == ["changed note"]


def post_and_seal(database: ScratchDatabase, *keys: str) -> None:
    async def act(opened: Database) -> None:
        for key in keys:
            async with opened.transaction() as connection:
                await post(connection, Posting(key, Reference("order", key), moved(EURO, "bank", "customers")))
        lease = await acquire(opened, "janitors", "tester", 60.0)
        assert lease is not None
        sealer = LedgerSealer(opened)

        async def all_sealed() -> bool:
            await sealer.seal(lease)
            return sealer.unsealed_ids == 0

        await eventually(all_sealed)
        await release(opened, lease)

    in_the_database(database, act)


def test_lines_rewritten_so_that_they_add_up_are_found(payonce: Payonce, database: ScratchDatabase) -> None:
    post_and_seal(database, "a", "b")
    sound = payonce("audit", "verify", "--json")
    assert sound.code == 0
    assert (sound.json["ledger"]["number"], sound.json["ledger"]["postings"]) == (1, 2)
    tamper(database, "update payonce.posting_lines set minor = minor * 3 where posting_id = 2")
    ended = payonce("audit", "verify", "--json")
    assert ended.code == 1
    assert ended.json["ok"] is False
    [finding] = ended.json["findings"]
    assert finding["check"] == "changed posting"
    assert finding["text"].startswith("posting 2 (b), sealed by ledger seal 1, was changed")
    assert "changed posting" in payonce("audit", "verify").stdout


def test_the_printed_heads_prove_both_chains(payonce: Payonce, database: ScratchDatabase) -> None:
    write_notes(database, "a")
    seal(database, 1)
    post_and_seal(database, "a")
    printed = payonce("audit", "head").stdout.strip()
    sound = payonce("audit", "verify", "--head", printed, "--json")
    assert (sound.code, sound.json["heads"], sound.json["ledger"]["heads"]) == (0, 1, 1)
    tamper(
        database,
        "delete from payonce.ledger_seals; delete from payonce.posting_lines; delete from payonce.postings",
    )
    assert payonce("audit", "verify").code == 0, "only somebody outside can know"
    cut = payonce("audit", "verify", "--head", printed, "--json")
    assert cut.code == 1
    [finding] = cut.json["findings"]
    assert finding["text"].startswith("ledger seal 1 existed when its head was stored elsewhere")


@pytest.mark.full
def test_a_running_process_seals_and_anchors(payonce: Payonce, database: ScratchDatabase, tmp_path: Path) -> None:
    anchor = tmp_path / "heads"
    write_notes(database, "a")
    payonce.start("run", "tally.worker", PAYONCE_AUDIT_ANCHOR=str(anchor))
    until(lambda: anchor.exists() and anchor.read_text().endswith("\n"), "the first head is anchored")
    verified = payonce("audit", "verify", "--json", PAYONCE_AUDIT_ANCHOR=str(anchor)).json
    assert (verified["ok"], verified["notes"], verified["heads"]) == (True, 1, 1)


def test_a_backup_brings_the_chain_back(payonce: Payonce, database: ScratchDatabase, tmp_path: Path) -> None:
    write_notes(database, "a", "b")
    seal(database, 2)
    post_and_seal(database, "a", "b")
    write_notes(database, "c")
    head = payonce("audit", "head").stdout.strip()
    assert payonce("db", "backup", f"{tmp_path}/dump").code == 0
    assert payonce("db", "restore", f"{tmp_path}/dump", "--replace", "--yes").code == 0
    restored = payonce("audit", "verify", "--head", head, "--json").json
    # The second unsealed one is the restore's own, which put the database into quarantine.
    assert (restored["ok"], restored["notes"], restored["unsealed"]) == (True, 2, 2)
    assert (restored["ledger"]["postings"], restored["ledger"]["heads"]) == (2, 1)
    seal(database, 2)
    post_and_seal(database, "c")
    assert payonce("audit", "verify", "--head", head, "--json").json["ok"] is True


def test_the_log_is_listed_newest_first_page_by_page(payonce: Payonce, database: ScratchDatabase) -> None:
    write_notes(database, "a", "b", "c")
    write_notes(database, "api_key=abcdef123456", reference="card", severity="WARNING")
    first = payonce("audit", "log", "--reference", "bank", "--limit", "2", "--json").json
    assert [one["text"] for one in first["notes"]] == ["c", "b"]
    page = ("--reference", "bank", "--limit", "2", "--before", str(first["next_before"]))
    rest = payonce("audit", "log", *page, "--json").json
    assert ([one["text"] for one in rest["notes"]], rest["next_before"]) == (["a"], None)
    shown = payonce("audit", "log", "--severity", "warning", "--since", "2026-01-01T00:00:00Z", "--limit", "1")
    assert "card" in shown.stdout
    assert "abcdef123456" not in shown.stdout
    assert "more: --before" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("verify", "--head", "17"), "NUMBER:HASH"),
        (("verify", "--head", "/"), "cannot be read"),
        (("log", "--since", "yesterday"), "--since is 'yesterday'"),
        (("log", "--severity", "loud"), "INFO, WARNING or ERROR"),
        (("log", "--limit", "0"), "limit is 0"),
    ],
)
def test_bad_input_is_refused_with_the_way_out(payonce: Payonce, arguments: Sequence[str], said: str) -> None:
    ended = payonce("audit", *arguments)
    assert ended.code == 2
    assert said in ended.sentence


def test_an_anchor_without_a_folder_is_refused(payonce: Payonce) -> None:
    ended = payonce("audit", "head", PAYONCE_AUDIT_ANCHOR="/nowhere/heads")
    assert ended.code == 2
    assert "PAYONCE_AUDIT_ANCHOR is '/nowhere/heads'; it must name a file" in ended.sentence


class Vendor:
    name = "simulated"


@asynccontextmanager
async def vendors(settings: Settings, database: Database) -> AsyncIterator[Sequence[object]]:
    yield [Vendor()]


async def statement_equals_ours(read: Reader, resources: Sequence[object]) -> list[Finding]:
    [vendor] = [each for each in resources if isinstance(each, Vendor)]
    return [Finding("statement", f"{vendor.name} shows {await read.fetchval('select 1')} charge more", "ask them")]


async def broken(read: Reader, resources: Sequence[object]) -> list[Finding]:
    raise OSError("vendor is away")


async def test_a_services_own_audits_get_a_reader_and_its_resources(
    database: ScratchDatabase,
) -> None:
    shop = Service("shop", "payonce.examples.tally", {}, resources=vendors, audits=(broken, statement_equals_ours))
    settings = Settings(DATABASE_URL=database.service_url, DATABASE_OWNER_URL=database.owner_url)  # type: ignore[call-arg]
    async with App.open(settings) as app:
        app.services.append(shop)
        report = await app.audit()
    away, found = [each for each in report.findings if each.check.startswith("shop: ")]
    assert (found.check, found.text, found.way_out) == (
        "shop: statement equals ours",
        "simulated shows 1 charge more",
        "ask them",
    )
    assert away.text == "could not be checked: OSError: vendor is away"
