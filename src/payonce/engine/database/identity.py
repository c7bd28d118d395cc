"""Recognises when another server serves this database."""

from payonce.engine.database.connections import Database
from payonce.kit.log import get_logger

log = get_logger(__name__)


async def notice_identity(database: Database, by: str) -> bool:
    """Remembers the server, and begins a quarantine when it has changed. Returns whether it has.

    Called when a process starts and every few seconds after that: a failover changes the server under open pools.
    """
    began: bool = await database.engine.fetchval("select payonce.notice_identity($1)", by)
    if began:
        log.error("quarantine_began", reason="another server serves the database", see="payonce db quarantine")
    return began
