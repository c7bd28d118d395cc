"""A start from nothing, what the server then is, and how it is shared, stopped and deleted."""

import asyncio
import os
import stat
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from payonce.embedded import Installation, Server, find_installations, postgres, reset, start, stop, trim_log
from payonce.kit.outcomes import Invalid, Unavailable
from tests.embedded.conftest import QUICK, Run, ask, eventually

INSTALLATIONS = {found.major: found for found in reversed(find_installations())}

HOLD_A_SERVER = """
import sys
from pathlib import Path
from payonce.embedded import start
print(start(Path(sys.argv[1]), settings={"fsync": "off"}, tie_to_parent=sys.argv[2] == "tied").pid, flush=True)
sys.stdin.read()
"""


def socket_folder(server: Server) -> Path:
    return Path(parse_qs(urlsplit(server.owner_url).query)["host"][0])


@pytest.mark.parametrize("installation", INSTALLATIONS.values(), ids=[f"postgres{major}" for major in INSTALLATIONS])
def test_every_installed_version_starts_adopts_and_stops(data_dir: Path, installation: Installation) -> None:
    first = start(data_dir, binaries=installation, settings=QUICK, tie_to_parent=True)
    assert first.started
    assert ask(first.owner_url, "show server_version").startswith(installation.label)
    second = start(data_dir)
    assert (second.started, second.pid, second.owner_url) == (False, first.pid, first.owner_url)
    assert stop(first)
    assert not stop(first)
    # Without a wish, the version that made the data runs it.
    again = start(data_dir, settings=QUICK, tie_to_parent=True)
    assert again.started
    assert ask(again.owner_url, "show server_version").startswith(installation.label)


def test_another_major_version_is_refused(data_dir: Path) -> None:
    assert len(INSTALLATIONS) > 1, "a second PostgreSQL version is needed: the wheel brings two"
    older, newer = list(INSTALLATIONS.values())[:2]
    stop(start(data_dir, binaries=older, settings=QUICK))
    with pytest.raises(Invalid, match=f"was made by PostgreSQL {older.major}, not {newer.major}"):
        start(data_dir, binaries=newer.bin)


def test_roles_are_plain_and_the_owner_owns(server: Server) -> None:
    for url, role in ((server.owner_url, "payonce_owner"), (server.service_url, "payonce_service")):
        assert ask(url, "select current_user") == role
        assert not ask(
            url, "select rolsuper or rolcreaterole or rolcreatedb from pg_roles where rolname = current_user"
        )
    described = """
        select (pg_get_userbyid(datdba), pg_encoding_to_char(encoding), datcollate, datctype)::text
        from pg_database where datname = current_database()
    """
    assert ask(server.owner_url, described) == "(payonce_owner,UTF8,C,C)"
    assert ask(server.superuser_url, "select rolsuper from pg_roles where rolname = current_user")
    ask(server.owner_url, "create table owned (id int)")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        ask(server.service_url, "create table not_mine (id int)")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        ask(server.service_url, "select id from owned")


def test_missing_role_and_database_are_made_again(made_dir: Path) -> None:
    first = start(made_dir, settings=QUICK, tie_to_parent=True)
    maintenance_url = first.superuser_url.replace("/payonce?", "/postgres?")
    ask(maintenance_url, "drop database payonce")
    ask(maintenance_url, "drop role payonce_service")
    assert ask(start(made_dir).service_url, "select current_user") == "payonce_service"


def test_server_is_private_and_durable(data_dir: Path) -> None:
    server = start(data_dir, tie_to_parent=True)
    assert ask(server.owner_url, "show listen_addresses") == ""
    assert ask(server.owner_url, "show fsync") == ask(server.owner_url, "show synchronous_commit") == "on"
    assert ask(server.owner_url, "show max_connections") == "200"
    cluster, sockets = data_dir / "cluster", socket_folder(server)
    assert stat.S_IMODE(cluster.stat().st_mode) == stat.S_IMODE(sockets.stat().st_mode) == 0o700
    # Root's own folder lets the server's account pass through, and nobody list it.
    assert stat.S_IMODE(data_dir.stat().st_mode) == (0o711 if os.geteuid() == 0 else 0o700)
    assert stat.S_IMODE(server.log_path.stat().st_mode) == 0o600
    assert stat.S_IMODE((sockets / ".s.PGSQL.5432").stat().st_mode) == 0o700


def test_row_values_do_not_reach_the_log(server: Server) -> None:
    ask(server.owner_url, "create table card (number text primary key)")
    ask(server.owner_url, "insert into card values ('4242-secret')")
    with pytest.raises(asyncpg.UniqueViolationError):
        ask(server.owner_url, "insert into card values ('4242-secret')")
    log = server.log_path.read_text()
    assert "card_pkey" in log
    assert "4242-secret" not in log


@pytest.mark.parametrize("name", ["listen_addresses", "hba_file", "unix_socket_directories"])
def test_settings_that_would_open_the_server_are_refused(data_dir: Path, name: str) -> None:
    with pytest.raises(Invalid, match=f"server setting '{name}' keeps the embedded server private"):
        start(data_dir, settings={name: "*"})
    assert not data_dir.exists()


def test_refused_setting_shows_the_servers_own_words(made_dir: Path) -> None:
    with pytest.raises(
        Unavailable, match=r"did not start in .*unrecognized configuration parameter \"no_such_setting\""
    ):
        start(made_dir, settings={"no_such_setting": "1"})
    assert start(made_dir, settings=QUICK, tie_to_parent=True).started


def test_deep_data_folder_still_has_a_short_socket(place: Path) -> None:
    deep = place.joinpath(*(["a-rather-long-folder-name"] * 6), "pg")
    server = start(deep, settings=QUICK, tie_to_parent=True)
    try:
        assert len(str(socket_folder(server) / ".s.PGSQL.5432")) < 108
        assert ask(server.owner_url, "select 1") == 1
    finally:
        reset(deep)


def test_start_inside_a_running_event_loop(server: Server) -> None:
    async def adopt() -> bool:
        return start(server.data_dir).started

    assert not asyncio.run(adopt())


def test_folder_with_other_files_is_refused_and_untouched(place: Path) -> None:
    (place / "letter.txt").write_text("dear")
    with pytest.raises(Invalid, match=r"holds other files \(letter.txt\): name an empty folder"):
        start(place)
    reset(place)
    assert [path.name for path in place.iterdir()] == ["letter.txt"]


def test_reset_leaves_nothing(made_dir: Path) -> None:
    server = start(made_dir, settings=QUICK)
    ask(server.owner_url, "create table gone (id int)")
    reset(made_dir)
    assert not made_dir.exists()
    assert not socket_folder(server).exists()
    fresh = start(made_dir, settings=QUICK, tie_to_parent=True)
    assert ask(fresh.owner_url, "select to_regclass('gone')") is None


def test_server_outlives_its_killed_starter(made_dir: Path, run_python: Run) -> None:
    starter = run_python(HOLD_A_SERVER, made_dir, "free")
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    starter.kill()
    starter.wait()
    adopted = start(made_dir)
    assert (adopted.started, adopted.pid) == (False, pid)


def test_tied_server_dies_with_its_killed_starter(made_dir: Path, run_python: Run) -> None:
    starter = run_python(HOLD_A_SERVER, made_dir, "tied")
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    starter.kill()
    starter.wait()
    eventually(lambda: not (made_dir / "cluster" / "postmaster.pid").exists())
    eventually(lambda: not Path(f"/proc/{pid}/cwd").exists())


def test_log_is_trimmed_while_the_server_writes(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "LOG_LIMIT_BYTES", 1000)
    with server.log_path.open("ab") as log:
        log.write(b"x" * 5000)
    trim_log(server.log_path)
    assert server.log_path.stat().st_size == 0
    assert server.log_path.with_name("server.log.1").stat().st_size == 1000
    with pytest.raises(asyncpg.UndefinedTableError):
        ask(server.owner_url, "select 1 from no_such_table")
    assert server.log_path.read_text().count("no_such_table") == 1


def test_socket_folder_of_somebody_else_is_not_used(made_dir: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a folder for somebody else")
    first = start(made_dir, settings=QUICK)
    stop(first)
    taken = socket_folder(first)
    taken.mkdir()
    os.chown(taken, 12345, 12345)
    try:
        second = start(made_dir, settings=QUICK, tie_to_parent=True)
        assert socket_folder(second) != taken
        assert ask(second.owner_url, "select 1") == 1
    finally:
        taken.rmdir()


def test_vanished_socket_gives_a_sentence(made_dir: Path) -> None:
    server = start(made_dir, settings=QUICK, tie_to_parent=True)
    (socket_folder(server) / ".s.PGSQL.5432").unlink()
    with pytest.raises(Unavailable, match="is gone: stop it and start again"):
        start(made_dir)
    assert stop(made_dir)
    assert start(made_dir, settings=QUICK, tie_to_parent=True).started


def test_no_network_port_is_opened(server: Server) -> None:
    inodes = {line.split()[9] for line in Path(f"/proc/{server.pid}/net/tcp").read_text().splitlines()[1:]}
    ours = {os.readlink(handle.path) for handle in os.scandir(f"/proc/{server.pid}/fd")}
    assert not {f"socket:[{inode}]" for inode in inodes} & ours
