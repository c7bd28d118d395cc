"""Backups: the whole database in one file, written and restored completely or not at all.

Uses PostgreSQL's own programs, of the server's major version where installed.
"""

import asyncio
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import asyncpg

from payonce.embedded.binaries import Installation, choose_for_server
from payonce.embedded.home import sync_folder
from payonce.kit.outcomes import Invalid, Unavailable

DUMP_MAGIC = b"PGDMP"
CONNECT_LIMIT_S = 10.0
LOCK_WAIT_LIMIT_MS = 60_000
SHOWN_LINES = 4
# A worker that still holds locks makes a replace fail instead of hang.
REPLACE_SQL = "set local lock_timeout = '10s';\ndrop owned by current_user cascade;\n"

# A restored database lacks what happened after its backup: its own schema handles that, in the same transaction. A
# schema too old for that gets a marker table, which the next migration finds.
RESTORED_SQL = """
do $$
begin
    if to_regprocedure('payonce.after_restore()') is not null then
        perform payonce.after_restore();
    elsif to_regnamespace('payonce') is not null then
        create table if not exists payonce.restored ();
    end if;
end
$$;
"""

# Objects that make a database non-empty: relations, functions and types, except those of extensions.
COUNT_OBJECTS = """
    select count(*)
    from (
        select oid, relnamespace as namespace from pg_class
        union all
        select oid, pronamespace from pg_proc
        union all
        select oid, typnamespace from pg_type
    ) as object
    join pg_namespace on pg_namespace.oid = object.namespace
    where nspname <> 'information_schema'
      and nspname not like 'pg\\_%'
      and not exists (select from pg_depend where objid = object.oid and deptype = 'e')
"""


@dataclass(frozen=True, slots=True)
class _Target:
    """The server's properties, read before its database is changed."""

    installation: Installation
    object_count: int


def backup(url: str, path: Path) -> None:
    """Writes the database to a new file, which appears under its name only when complete."""
    if path.exists():
        raise Invalid(f"backup file {path} exists already: choose another name")
    target = _inspect(url)
    try:
        handle, partial = tempfile.mkstemp(prefix=f".{path.name}.partial-", dir=path.parent)
    except OSError as problem:
        raise Unavailable(f"backup file {path} cannot be written: {problem.strerror}") from problem
    try:
        with os.fdopen(handle, "wb") as file:
            _dump(target.installation, url, file)
            os.fsync(handle)
        os.rename(partial, path)
        sync_folder(path.parent)
    except OSError as problem:
        raise Unavailable(f"backup file {path} cannot be written: {problem.strerror}") from problem
    finally:
        Path(partial).unlink(missing_ok=True)


def restore(url: str, path: Path, *, replace: bool = False) -> None:
    """Restores a backup in one transaction; `replace` first drops, in the same transaction, everything the role owns.

    A payonce database is in quarantine afterwards.
    """
    check_backup(path)
    target = _inspect(url)
    if target.object_count and not replace:
        raise Invalid(
            f"the database holds {target.object_count} objects already: restore into an empty one, or add --replace"
        )
    _restore(target.installation, url, path, first=REPLACE_SQL if replace else "", last=RESTORED_SQL)


def check_backup(path: Path) -> None:
    """Raises Invalid if the first bytes are not a backup's; whether it is complete shows during the restore."""
    try:
        with path.open("rb") as file:
            if file.read(len(DUMP_MAGIC)) != DUMP_MAGIC:
                raise Invalid(f"{path} is not a backup: name a file that `payonce db backup` made")
    except OSError as problem:
        raise Invalid(f"backup file {path} cannot be read: {problem.strerror}") from problem


def psql_command(url: str) -> list[str]:
    """The command line of an interactive psql; run it with `client_environment`, so that it shows no password."""
    return [str(_inspect(url).installation.program("psql")), "-d", _without_password(url)]


def client_environment(url: str) -> dict[str, str]:
    """The process environment, with the URL's password where PostgreSQL's programs expect it."""
    parts = urlsplit(url)
    password = unquote(parts.password) if parts.password else dict(parse_qsl(parts.query)).get("password")
    return {**os.environ, **({"PGPASSWORD": password} if password else {})}


def _restore(installation: Installation, url: str, path: Path, *, first: str, last: str) -> None:
    """Pipes pg_restore's script into one psql transaction, which is aborted unless the script is complete.

    The option --single-transaction of pg_restore would exclude the drop of a replace from the transaction.
    """
    read_command: list[str | Path] = [installation.program("pg_restore"), "--no-owner", "-f", "-", path]
    write_command: list[str | Path] = [installation.program("psql"), "-Xqw", "-v", "ON_ERROR_STOP=1", "-1", "-f", "-"]
    write_command += ["-d", _without_password(url)]
    # Errors go to files: two programs and four pipes in one thread could deadlock.
    with tempfile.TemporaryFile() as read_errors, tempfile.TemporaryFile() as write_errors:
        with (
            subprocess.Popen(read_command, stdout=subprocess.PIPE, stderr=read_errors) as reader,
            subprocess.Popen(
                write_command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=write_errors,
                env=client_environment(url),
            ) as writer,
        ):
            arrived_whole = _stream(reader, writer, first.encode(), last.encode())
        if not arrived_whole:
            raise Invalid(f"{path} is not a whole backup, nothing was restored: {_last_lines(read_errors)}")
        if writer.returncode != 0:
            raise Unavailable(f"{path} could not be restored, nothing was changed: {_last_lines(write_errors)}")


def _stream(reader: "subprocess.Popen[bytes]", writer: "subprocess.Popen[bytes]", first: bytes, last: bytes) -> bool:
    """Copies the reader's output to the writer. Returns False if the reader failed; the writer is then killed before
    its commit."""
    assert reader.stdout is not None and writer.stdin is not None
    try:
        writer.stdin.write(first)
        shutil.copyfileobj(reader.stdout, writer.stdin)
        writer.stdin.flush()
        if reader.wait() != 0:
            # psql commits at the end of its input, which it must not reach.
            writer.kill()
            return False
        writer.stdin.write(last)
        writer.stdin.flush()
    except BrokenPipeError:
        # The writer failed: its exit code counts; the reader's is only a consequence.
        reader.kill()
    except BaseException:
        writer.kill()
        raise
    return True


def _dump(installation: Installation, url: str, file: IO[bytes]) -> None:
    command: list[str | Path] = [
        installation.program("pg_dump"),
        "-Fc",
        "--no-password",
        f"--lock-wait-timeout={LOCK_WAIT_LIMIT_MS}",
        "-d",
        _without_password(url),
    ]
    done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, env=client_environment(url), check=False)
    if done.returncode != 0:
        raise Unavailable(f"the backup failed and left no file: {_join_lines(done.stderr)}")


def _inspect(url: str) -> _Target:
    # In a separate thread, because the caller may be inside a running event loop.
    with ThreadPoolExecutor(1, thread_name_prefix="payonce-embedded") as thread:
        major, object_count = thread.submit(asyncio.run, _ask(url)).result()
    return _Target(choose_for_server(major), object_count)


async def _ask(url: str) -> tuple[int, int]:
    try:
        connection = await asyncpg.connect(url, timeout=CONNECT_LIMIT_S)
    except (OSError, TimeoutError, asyncpg.PostgresError) as problem:
        raise Unavailable(f"the database {_without_password(url)} does not respond: {problem}") from problem
    try:
        return connection.get_server_version().major, await connection.fetchval(COUNT_OBJECTS)
    finally:
        await connection.close()


def _without_password(url: str) -> str:
    """The URL for a command line, which every user of the machine can read."""
    parts = urlsplit(url)
    login, at, host = parts.netloc.rpartition("@")
    query = [pair for pair in parts.query.split("&") if unquote(pair.partition("=")[0]) != "password"]
    if any(unquote(pair.partition("=")[0]) == "sslpassword" for pair in query):
        raise Invalid(
            "DATABASE_URL has sslpassword, which PostgreSQL's programs take on their command line alone, where every "
            "user of the machine could read it; use a key without a passphrase that only its owner can read"
        )
    return urlunsplit(parts._replace(netloc=f"{login.partition(':')[0]}{at}{host}", query="&".join(query)))


def _last_lines(file: IO[bytes]) -> str:
    file.seek(0)
    return _join_lines(file.read())


def _join_lines(output: bytes) -> str:
    return " / ".join(output.decode(errors="replace").strip().splitlines()[-SHOWN_LINES:])
