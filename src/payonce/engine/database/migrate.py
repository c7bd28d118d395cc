"""Forward-only SQL migrations: numbered files, checksums, one transaction under one lock."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

import asyncpg

from payonce.kit.outcomes import Unavailable

VERSION_FLOOR: Final = 15
LOCK_KEY: Final = 0x7061796F6E6365
"""'payonce' in ASCII: the advisory lock under which one process migrates while others wait."""

SERVICE_ROLE: Final = "payonce_service"


@dataclass(frozen=True)
class Migration:
    component: str
    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.component} {self.number:04d}_{self.name}"


@dataclass(frozen=True)
class Status:
    applied: tuple[str, ...]
    pending: tuple[Migration, ...]


def migrations_in(component: str, package: str) -> list[Migration]:
    """The numbered .sql files of a package, in order."""
    found = []
    for entry in files(package).joinpath("migrations").iterdir():
        if match := re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name):
            found.append(Migration(component, int(match[1]), match[2], entry.read_text(encoding="utf-8")))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise Unavailable(f"migrations of {component} are not numbered 1, 2, 3, …; the installation is damaged")
    return found


def migrations_of(component: str, texts: Sequence[str]) -> list[Migration]:
    """The migrations of a component that declares them as texts instead of files."""
    return [Migration(component, number, "declared", sql) for number, sql in enumerate(texts, start=1)]


ENGINE: Final = ("engine", "payonce.engine")


def known_migrations(components: Iterable[tuple[str, str]]) -> list[Migration]:
    """The engine's migrations first, then those of each component."""
    return [
        migration for component, package in (ENGINE, *components) for migration in migrations_in(component, package)
    ]


async def migrate(connection: asyncpg.Connection, known: Sequence[Migration]) -> list[Migration]:
    """Applies the missing migrations, all or none; returns those applied."""
    await check_server(connection)
    async with connection.transaction():
        await connection.execute("select pg_advisory_xact_lock($1)", LOCK_KEY)
        await _prepare(connection)
        pending = (await _compare(connection, known)).pending
        for migration in pending:
            await connection.execute(migration.sql)
            await connection.execute(
                """
                insert into payonce.migrations (component, number, name, checksum, applied_at)
                values ($1, $2, $3, $4, payonce.due_now())
                """,
                migration.component,
                migration.number,
                migration.name,
                migration.checksum,
            )
    return list(pending)


async def status(connection: asyncpg.Connection, known: Sequence[Migration]) -> Status:
    """Applied and pending migrations. Raises Unavailable if the database is newer than this code or was altered."""
    await check_server(connection)
    if not await connection.fetchval("select to_regclass('payonce.migrations') is not null"):
        return Status((), tuple(known))
    return await _compare(connection, known)


async def check_server(connection: asyncpg.Connection) -> None:
    version = connection.get_server_version()
    if version.major < VERSION_FLOOR:
        raise Unavailable(
            f"PostgreSQL {version.major}.{version.minor} is too old; payonce needs {VERSION_FLOOR} or newer: "
            "point DATABASE_URL at a newer server"
        )


async def _compare(connection: asyncpg.Connection, known: Sequence[Migration]) -> Status:
    rows = await connection.fetch("select component, number, name, checksum from payonce.migrations order by 1, 2")
    by_key = {(migration.component, migration.number): migration for migration in known}
    components = {migration.component for migration in known}
    for row in rows:
        migration = by_key.get((row["component"], row["number"]))
        label = f"{row['component']} {row['number']:04d}_{row['name']}"
        if migration is None and row["component"] in components:
            raise Unavailable(f"the database has migration {label}, which this version does not know; upgrade payonce")
        if migration is not None and migration.checksum != row["checksum"]:
            raise Unavailable(f"migration {label} was changed after it was applied; install an unmodified payonce")
    applied = {(row["component"], row["number"]) for row in rows}
    pending = tuple(migration for migration in known if (migration.component, migration.number) not in applied)
    return Status(tuple(f"{row['component']} {row['number']:04d}_{row['name']}" for row in rows), pending)


async def _prepare(connection: asyncpg.Connection) -> None:
    """Creates the schema, the table of migrations, and the role that services run as."""
    if not await connection.fetchval("select exists (select from pg_roles where rolname = $1)", SERVICE_ROLE):
        try:
            await connection.execute(f"create role {SERVICE_ROLE} nologin")
            await connection.execute(f"grant {SERVICE_ROLE} to current_user")
        except asyncpg.InsufficientPrivilegeError as error:
            raise Unavailable(
                f"the role {SERVICE_ROLE} is missing and this login may not create it; as an administrator run: "
                f"create role {SERVICE_ROLE} nologin; grant {SERVICE_ROLE} to current_user"
            ) from error
    await connection.execute(
        f"""
        create schema if not exists payonce;
        grant usage on schema payonce to {SERVICE_ROLE};
        create table if not exists payonce.migrations (
            component text not null,
            number integer not null,
            name text not null,
            checksum text not null,
            applied_at timestamptz not null,
            primary key (component, number)
        );
        grant select on payonce.migrations to {SERVICE_ROLE};
        """
    )
