"""Backups: the whole database in one file, made and restored whole or not at all.

PostgreSQL's own programs do it, of the server's major version where they are installed.
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
# A worker that still holds locks makes a replace fail rather than hang.
REPLACE_SQL = "set local lock_timeout = '10s';\ndrop owned by current_user cascade;\n"

# A restored database has forgotten what happened after its backup: its own schema says what follows from that, in the
# same transaction. A schema that is too old for it gets a mark, which the next migration finds.
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

# What makes a database non-empty: relations, functions and types of its own; extensions bring theirs along.
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
    """What was asked of the server before its database is touched."""

    installation: Installation
    object_count: int


def backup(url: str, path: Path) -> None:
    """Write the database to a new file. It appears under its name only when complete."""
    if path.exists():
        raise Invalid(f"backup file {path} exists already: name another")
    target = _look_at(url)
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
    """Fill the database from a backup, in one transaction; `replace` drops, in the same one, what the role owns.

    A database of payonce is in quarantine afterwards.
    """
    check_backup(path)
    target = _look_at(url)
    if target.object_count and not replace:
        raise Invalid(
            f"the database holds {target.object_count} objects already: restore into an empty one, or add --replace"
        )
    _pour(target.installation, url, path, first=REPLACE_SQL if replace else "", last=RESTORED_SQL)


def check_backup(path: Path) -> None:
    """Refuses what is no backup by its first bytes; whether it is whole shows when it is poured."""
    try:
        with path.open("rb") as file:
            if file.read(len(DUMP_MAGIC)) != DUMP_MAGIC:
                raise Invalid(f"{path} is not a backup: name a file that `payonce db backup` made")
    except OSError as problem:
        raise Invalid(f"backup file {path} cannot be read: {problem.strerror}") from problem


def psql_command(url: str) -> list[str]:
    """The command line of an interactive psql; run it with `client_environment` so that no password shows in it."""
    return [str(_look_at(url).installation.program("psql")), "-d", _without_password(url)]


def client_environment(url: str) -> dict[str, str]:
    """The process environment, with the url's password where PostgreSQL's programs look for it."""
    parts = urlsplit(url)
    password = unquote(parts.password) if parts.password else dict(parse_qsl(parts.query)).get("password")
    return {**os.environ, **({"PGPASSWORD": password} if password else {})}


def _pour(installation: Installation, url: str, path: Path, *, first: str, last: str) -> None:
    """Feed pg_restore's script to one psql transaction, which is broken off unless the script arrives whole.

    Not pg_restore's own --single-transaction, because the drop of a replace must be in the same transaction.
    """
    read_command: list[str | Path] = [installation.program("pg_restore"), "--no-owner", "-f", "-", path]
    write_command: list[str | Path] = [installation.program("psql"), "-Xqw", "-v", "ON_ERROR_STOP=1", "-1", "-f", "-"]
    write_command += ["-d", _without_password(url)]
    # Complaints go to files: two programs and four pipes in one thread could wait for each other.
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
    """Copy all the reader says to the writer. False when the reader failed; the writer is then killed uncommitted."""
    assert reader.stdout is not None and writer.stdin is not None
    try:
        writer.stdin.write(first)
        shutil.copyfileobj(reader.stdout, writer.stdin)
        writer.stdin.flush()
        if reader.wait() != 0:
            # psql commits at the end of its input, which must therefore not come.
            writer.kill()
            return False
        writer.stdin.write(last)
        writer.stdin.flush()
    except BrokenPipeError:
        # The writer met an error and left; its exit code tells, the reader's is only an echo of that.
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


def _look_at(url: str) -> _Target:
    # In a thread of its own, because the caller may stand inside a running event loop.
    with ThreadPoolExecutor(1, thread_name_prefix="payonce-embedded") as thread:
        major, object_count = thread.submit(asyncio.run, _ask(url)).result()
    return _Target(choose_for_server(major), object_count)


async def _ask(url: str) -> tuple[int, int]:
    try:
        connection = await asyncpg.connect(url, timeout=CONNECT_LIMIT_S)
    except (OSError, TimeoutError, asyncpg.PostgresError) as problem:
        raise Unavailable(f"the database {_without_password(url)} does not answer: {problem}") from problem
    try:
        return connection.get_server_version().major, await connection.fetchval(COUNT_OBJECTS)
    finally:
        await connection.close()


def _without_password(url: str) -> str:
    """As it may stand in a command line, which every user of the machine can read."""
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


def _join_lines(said: bytes) -> str:
    return " / ".join(said.decode(errors="replace").strip().splitlines()[-SHOWN_LINES:])
