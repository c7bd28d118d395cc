"""Where the database of a process is."""

import asyncio
from dataclasses import dataclass

from payonce import embedded
from payonce.kit.log import get_logger
from payonce.settings import Settings

log = get_logger(__name__)


@dataclass(frozen=True)
class Addresses:
    """Where the database is, for the services and for the one who migrates."""

    service: str
    owner: str


async def find_database(settings: Settings) -> Addresses:
    """The database that the environment names, or the private one, which is started if need be."""
    if settings.database_url is not None:
        owner = settings.database_owner_url or settings.database_url
        return Addresses(settings.database_url.get_secret_value(), owner.get_secret_value())
    server = await asyncio.to_thread(embedded.start, settings.server_dir)
    if server.started:
        log.info("private_postgresql_started", folder=str(server.data_dir), stop_with="payonce db stop")
    return Addresses(server.service_url, server.owner_url)
