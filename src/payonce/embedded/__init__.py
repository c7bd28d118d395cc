"""A private PostgreSQL for use without DATABASE_URL, and backups of any PostgreSQL.

A name is imported when it is used.
"""

from typing import TYPE_CHECKING, Final

from payonce.kit.lazy import lazy_names

if TYPE_CHECKING:
    from payonce.embedded.backups import backup, check_backup, client_environment, psql_command, restore
    from payonce.embedded.binaries import Installation, choose_installation, find_installations
    from payonce.embedded.postgres import Server, reset, start, stop, trim_log

_HOMES: Final = {
    "payonce.embedded.backups": "backup check_backup client_environment psql_command restore",
    "payonce.embedded.binaries": "Installation choose_installation find_installations",
    "payonce.embedded.postgres": "Server reset start stop trim_log",
}
"""The public names by the modules that define them; a module is imported when one of its names is used."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

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
