"""What a database knows of the server under it: restored onto another one, promoted, restarted."""

import asyncio
import shutil
from pathlib import Path

import asyncpg
import pytest

from payonce.embedded import Server, backup, backups, restore, start, stop
from payonce.engine.controls.quarantine import open_quarantine
from payonce.engine.database.connections import Database
from payonce.engine.database.identity import notice_identity
from payonce.engine.database.migrate import known_migrations, migrate
from payonce.engine.ledger import Posting, Reference, audit_ledger, moved, post, snapshot_balances
from payonce.engine.messages.transaction import Reader
from payonce.kit.money import Amount, well_known
from tests.embedded.conftest import QUICK, ask

BURN_TRANSACTIONS = """
    do $$ begin for n in 1..5000 loop perform pg_current_xact_id(); commit; end loop; end $$
"""
POSTING = Posting("opening", Reference("bank", "1"), moved(Amount(100, well_known("EUR")), "equity", "bank"))
LATER = Posting("later", Reference("bank", "1"), moved(Amount(1, well_known("EUR")), "bank", "fees"))


async def migrated(url: str, before: str | None = None) -> None:
    """With every migration, or with those before the named one."""
    known = known_migrations(())
    names = [migration.name for migration in known]
    connection = await asyncpg.connect(url)
    try:
        await migrate(connection, known if before is None else known[: names.index(before)])
    finally:
        await connection.close()


async def posted(database: Database, posting: Posting) -> None:
    async with database.transaction() as connection:
        await post(connection, posting)


async def why(database: Database) -> str | None:
    found = await open_quarantine(Reader(database))
    return None if found is None else found.reason


@pytest.fixture
def dump(server: Server, tmp_path: Path) -> Path:
    """A backup of books from a server that has counted many transactions."""

    async def fill() -> None:
        await migrated(server.owner_url)
        connection = await asyncpg.connect(server.owner_url)
        await connection.execute(BURN_TRANSACTIONS)
        await connection.close()
        async with Database.open(server.service_url) as database:
            await notice_identity(database, "test")
            await posted(database, POSTING)
            assert await snapshot_balances(database, lines_wanted=1) == 2

    asyncio.run(fill())
    backup(server.owner_url, tmp_path / "books.dump")
    ask(server.owner_url, "drop schema payonce cascade")
    return tmp_path / "books.dump"


def test_books_restored_onto_a_younger_server_work_and_are_in_quarantine(dump: Path, made_dir: Path) -> None:
    younger = start(made_dir, settings=QUICK, tie_to_parent=True)
    restore(younger.owner_url, dump)

    async def look() -> None:
        async with Database.open(younger.service_url) as database:
            assert not await notice_identity(database, "test"), "the restore has said so already"
            assert await why(database) == "restored from a backup"
            await posted(database, LATER)
            assert await audit_ledger(Reader(database)) == []

    asyncio.run(look())


def test_without_the_last_words_of_a_restore_the_books_refuse(
    dump: Path, made_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "RESTORED_SQL", "")
    younger = start(made_dir, settings=QUICK, tie_to_parent=True)
    restore(younger.owner_url, dump)

    async def look() -> None:
        async with Database.open(younger.service_url) as database:
            with pytest.raises(Exception, match="rebase_ledger"):
                await posted(database, LATER)
            assert await why(database) is None
            assert await notice_identity(database, "test"), "own tools restored it: the first look notices"

    asyncio.run(look())


def test_a_backup_from_before_quarantines_is_in_quarantine_once_it_is_migrated(
    server: Server, made_dir: Path, tmp_path: Path
) -> None:
    asyncio.run(migrated(server.owner_url, before="reconciliation"))
    backup(server.owner_url, tmp_path / "old.dump")
    ask(server.owner_url, "drop schema payonce cascade")
    other = start(made_dir, settings=QUICK, tie_to_parent=True)
    restore(other.owner_url, tmp_path / "old.dump")
    asyncio.run(migrated(other.owner_url))
    assert ask(other.owner_url, "select reason from payonce.quarantines") == "restored from a backup"
    assert ask(other.owner_url, "select to_regclass('payonce.restored')") is None


def test_a_copy_on_the_same_server_is_noticed(server: Server) -> None:
    maintenance_url = server.superuser_url.replace("/payonce?", "/postgres?")
    asyncio.run(migrated(server.owner_url))
    assert not noticed(server.service_url)
    ask(maintenance_url, "create database copied owner payonce_owner template payonce")
    try:
        assert noticed(server.service_url.replace("/payonce?", "/copied?"))
        assert not noticed(server.service_url)
    finally:
        ask(maintenance_url, "drop database copied")
        ask(server.owner_url, "drop schema payonce cascade")


def test_a_restart_is_no_other_server_and_a_promotion_is(made_dir: Path) -> None:
    server = start(made_dir, settings=QUICK, tie_to_parent=True)
    asyncio.run(migrated(server.owner_url))
    assert not noticed(server.service_url)
    stop(server)
    server = start(made_dir, settings=QUICK, tie_to_parent=True)
    assert not noticed(server.service_url)

    cluster = Path(ask(server.superuser_url, "show data_directory"))
    stop(server)
    owner = (cluster / "PG_VERSION").stat()
    (cluster / "standby.signal").touch()
    shutil.chown(cluster / "standby.signal", owner.st_uid, owner.st_gid)
    server = start(made_dir, settings=QUICK, tie_to_parent=True)
    assert ask(server.superuser_url, "select pg_promote()")
    assert noticed(server.service_url)
    assert "timeline 00000002" in ask(server.owner_url, "select reason from payonce.quarantines")


@pytest.mark.parametrize("call", ["pg_control_system", "pg_walfile_name"])
def test_a_server_that_does_not_tell_who_it_is_is_served(server: Server, call: str) -> None:
    arguments = "" if call == "pg_control_system" else "pg_lsn"
    asyncio.run(migrated(server.owner_url))
    try:
        ask(server.superuser_url, f"revoke execute on function {call}({arguments}) from public")
        assert not noticed(server.service_url)
        assert ask(server.owner_url, "select identity from payonce.served_identity") is None
    finally:
        ask(server.superuser_url, f"grant execute on function {call}({arguments}) to public")
        ask(server.owner_url, "drop schema payonce cascade")


def noticed(url: str) -> bool:
    async def notice() -> bool:
        async with Database.open(url) as database:
            return await notice_identity(database, "test")

    return asyncio.run(notice())
