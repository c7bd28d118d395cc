"""Queue depths read without the services, whose modules take longer to import than everything else of the command."""

import hashlib
import os
import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Final

import payonce
from payonce.app import CHOICE, ENTRY_POINTS, SERVICE_MODULES

if TYPE_CHECKING:
    from payonce.engine.database.connections import Database
    from payonce.engine.messages.ports import Depth
    from payonce.settings import Settings

ROOT: Final = Path(payonce.__path__[0])
COMPONENTS: Final = {"engine": ROOT / "engine", "cloudtasks": ROOT / "taskserver"}
"""The folders of the platform that have migrations, by the component that the database records."""
SERVICE_FOLDERS: Final = ("examples", "services")
POLICY_PREFIX: Final = "QUEUE_POLICY__"


async def stored_depths(settings: "Settings") -> "list[Depth] | None":
    """The depths of all queues.

    None if only the whole application can tell: it migrates and declares the queues of a new database, checks the
    variables of policies, asks Redis and task services, and knows installed services.
    """
    if settings.backend != "postgres" or _needs_services():
        return None
    from payonce.app.addresses import find_database
    from payonce.engine.database.connections import Database
    from payonce.engine.database.identity import notice_identity
    from payonce.engine.database.notifier import Notifier
    from payonce.queues.cloudtasks.depths import depth_of as pushed_depth
    from payonce.queues.cloudtasks.names import RELAY
    from payonce.queues.postgres import PostgresAdmin

    addresses = await find_database(settings)
    async with Database.open(addresses.service, work_pool_size=1) as database:
        if not await _is_complete(database):
            return None
        # The migrations are compared already; what is left are the rights and the clocks.
        await database.check(())
        await notice_identity(database, "start of a process")
        admin = PostgresAdmin(database, Notifier(database))
        rows = await database.engine.fetch("select name, backend from payonce.queues order by name")
        return [
            await (pushed_depth(database.engine, row["name"]) if row["backend"] == RELAY else admin.depth(row["name"]))
            for row in rows
        ]


def built_in_components() -> dict[str, Path]:
    """The folder of each component with migrations. A built-in service has the name of its folder."""
    folders = (path.parent for group in SERVICE_FOLDERS for path in sorted((ROOT / group).glob("*/migrations")))
    return {**COMPONENTS, **{folder.name: folder for folder in folders}}


def _needs_services() -> bool:
    """Whether services are chosen or added, or a policy is changed, which only the services can check."""
    named = any(name in (CHOICE, SERVICE_MODULES) or name.startswith(POLICY_PREFIX) for name in os.environ)
    return named or bool(entry_points(group=ENTRY_POINTS))


async def _is_complete(database: "Database") -> bool:
    """Whether the database has exactly the built-in migrations, and queues, none of them in Redis."""
    if not await database.engine.fetchval("select to_regclass('payonce.migrations') is not null"):
        return False
    components = built_in_components()
    rows = await database.engine.fetch(
        "select component, number, checksum from payonce.migrations where component = any($1)", list(components)
    )
    if {(row["component"], row["number"]): row["checksum"] for row in rows} != _checksums(components):
        return False
    stored_here: bool | None = await database.engine.fetchval(
        "select bool_and(backend in ('postgres', 'cloudtasks')) from payonce.queues"
    )
    return stored_here is True


def _checksums(components: dict[str, Path]) -> dict[tuple[str, int], str]:
    found = {}
    for component, folder in components.items():
        for path in (folder / "migrations").iterdir():
            if match := re.fullmatch(r"(\d{4})_\w+\.sql", path.name):
                text = path.read_text(encoding="utf-8")
                found[component, int(match[1])] = hashlib.sha256(text.encode()).hexdigest()
    return found
