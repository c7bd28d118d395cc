"""A private PostgreSQL for use without DATABASE_URL, and backups of any PostgreSQL."""

from payonce.embedded.backups import backup, check_backup, client_environment, psql_command, restore
from payonce.embedded.binaries import Installation, choose_installation, find_installations
from payonce.embedded.postgres import Server, reset, start, stop, trim_log

__all__ = [
    "Installation",
    "Server",
    "backup",
    "check_backup",
    "choose_installation",
    "client_environment",
    "find_installations",
    "psql_command",
    "reset",
    "restore",
    "start",
    "stop",
    "trim_log",
]
