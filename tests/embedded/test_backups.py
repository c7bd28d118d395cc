"""A backup is whole or absent; a restore is whole or changes nothing."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from payonce.embedded import Server, backup, client_environment, find_installations, psql_command, reset, restore, start
from payonce.embedded.backups import _without_password
from payonce.kit.outcomes import Invalid, Unavailable
from tests.embedded.conftest import QUICK, ask


@pytest.fixture
def filled(server: Server) -> Iterator[str]:
    """The url of a database with rows, a grant and row-level security in it."""
    ask(server.owner_url, "create schema shop")
    ask(
        server.owner_url,
        "create table shop.item as select n as id, md5(n::text) as name from generate_series(1, 5000) n",
    )
    ask(server.owner_url, "alter table shop.item enable row level security")
    ask(server.owner_url, "grant usage on schema shop to payonce_service")
    yield server.owner_url
    ask(server.owner_url, "drop schema shop cascade")


@pytest.fixture
def empty(server: Server) -> Iterator[str]:
    maintenance_url = server.superuser_url.replace("/payonce?", "/postgres?")
    ask(maintenance_url, "create database other owner payonce_owner template template0")
    yield server.owner_url.replace("/payonce?", "/other?")
    ask(maintenance_url, "drop database other")


def test_round_trip(filled: str, empty: str, tmp_path: Path) -> None:
    backup(filled, tmp_path / "shop.dump")
    assert [path.name for path in tmp_path.iterdir()] == ["shop.dump"]
    assert (tmp_path / "shop.dump").stat().st_mode & 0o777 == 0o600
    restore(empty, tmp_path / "shop.dump")
    digest = "select md5(string_agg(item::text, ',' order by id)) from shop.item"
    assert ask(empty, digest) == ask(filled, digest)
    assert ask(empty, "select has_schema_privilege('payonce_service', 'shop', 'usage')")
    assert ask(empty, "select relrowsecurity from pg_class where relname = 'item'")


def test_restore_into_a_used_database_needs_the_word(filled: str, empty: str, tmp_path: Path) -> None:
    backup(filled, tmp_path / "shop.dump")
    ask(empty, "create table kept (id int)")
    with pytest.raises(Invalid, match=r"the database holds \d+ objects already: restore into an empty one"):
        restore(empty, tmp_path / "shop.dump")
    assert ask(empty, "select to_regclass('kept')") == "kept"
    restore(empty, tmp_path / "shop.dump", replace=True)
    assert ask(empty, "select to_regclass('kept')") is None
    assert ask(empty, "select count(*) from shop.item") == 5000
    restore(empty, tmp_path / "shop.dump", replace=True)
    assert ask(empty, "select count(*) from shop.item") == 5000


def test_truncated_backup_changes_nothing(filled: str, empty: str, tmp_path: Path) -> None:
    backup(filled, tmp_path / "shop.dump")
    whole = (tmp_path / "shop.dump").read_bytes()
    (tmp_path / "cut.dump").write_bytes(whole[: len(whole) * 2 // 3])
    ask(empty, "create table kept (id int)")
    with pytest.raises(Invalid, match=r"cut.dump is not a whole backup, nothing was restored"):
        restore(empty, tmp_path / "cut.dump", replace=True)
    assert ask(empty, "select to_regclass('kept')") == "kept"
    assert ask(empty, "select to_regclass('shop.item')") is None


def test_restore_that_the_server_refuses_changes_nothing(
    filled: str, server: Server, empty: str, tmp_path: Path
) -> None:
    ask(server.superuser_url, "create role passing")
    ask(filled, "grant select on shop.item to passing")
    backup(filled, tmp_path / "shop.dump")
    ask(filled, "revoke select on shop.item from passing")
    ask(server.superuser_url, "drop role passing")
    with pytest.raises(Unavailable, match=r'nothing was changed: .*role "passing" does not exist'):
        restore(empty, tmp_path / "shop.dump")
    assert ask(empty, "select to_regclass('shop.item')") is None


def test_file_that_is_no_backup_is_refused(empty: str, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(Invalid, match=r"letter.txt is not a backup"):
        restore(empty, tmp_path / "letter.txt")
    with pytest.raises(Invalid, match=r"none.dump cannot be read: No such file"):
        restore(empty, tmp_path / "none.dump")


def test_backup_never_overwrites_and_a_failed_one_leaves_nothing(filled: str, server: Server, tmp_path: Path) -> None:
    (tmp_path / "old.dump").write_text("precious")
    with pytest.raises(Invalid, match=r"old.dump exists already"):
        backup(filled, tmp_path / "old.dump")
    with pytest.raises(Unavailable, match=r"the backup failed and left no file: .*permission denied"):
        backup(server.service_url, tmp_path / "new.dump")
    assert [path.name for path in tmp_path.iterdir()] == ["old.dump"]


def test_silent_server_gives_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="does not respond"):
        backup(f"postgresql://somebody:secret@/payonce?host={tmp_path}", tmp_path / "x.dump")


def test_older_server_is_backed_up_with_its_own_programs(data_dir: Path, tmp_path: Path) -> None:
    oldest = min(find_installations(), key=lambda found: found.major)
    server = start(data_dir, binaries=oldest, settings=QUICK, tie_to_parent=True)
    ask(server.owner_url, "create table item (id int)")
    backup(server.owner_url, tmp_path / "old.dump")
    restore(server.owner_url, tmp_path / "old.dump", replace=True)
    assert ask(server.owner_url, "select to_regclass('item')") == "item"
    assert Path(psql_command(server.owner_url)[0]).parent == oldest.bin
    reset(data_dir)


def test_psql_command_connects(server: Server) -> None:
    command = [*psql_command(server.owner_url), "-XAtc", "select current_user"]
    answer = subprocess.run(
        command, capture_output=True, text=True, check=True, env=client_environment(server.owner_url)
    )
    assert answer.stdout.strip() == "payonce_owner"


def test_password_is_not_on_the_command_line() -> None:
    url = "postgresql://owner:p%40ss@db.example:5433/payonce?sslmode=require"
    assert _without_password(url) == "postgresql://owner@db.example:5433/payonce?sslmode=require"
    assert client_environment(url)["PGPASSWORD"] == "p@ss"


def test_a_password_in_the_query_is_not_on_the_command_line_either() -> None:
    url = "postgresql://owner@db.example/payonce?sslmode=require&password=p%40ss&connect_timeout=5"
    assert _without_password(url) == "postgresql://owner@db.example/payonce?sslmode=require&connect_timeout=5"
    assert client_environment(url)["PGPASSWORD"] == "p@ss"
    assert (
        _without_password("postgresql://owner@db.example/payonce?pass%77ord=x")
        == "postgresql://owner@db.example/payonce"
    )
    with pytest.raises(Invalid, match="sslpassword"):
        _without_password("postgresql://owner@db.example/payonce?sslpassword=x")
