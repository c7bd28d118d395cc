"""Queues on PostgreSQL: one table, claimed with SKIP LOCKED, settled in batches.

A name is imported when it is used.
"""

from typing import TYPE_CHECKING, Final

from payonce.kit.lazy import lazy_names

if TYPE_CHECKING:
    from payonce.queues.postgres.admin import PostgresAdmin
    from payonce.queues.postgres.feed import PostgresFeed
    from payonce.queues.postgres.pull import PostgresQueue

_HOMES: Final = {
    "payonce.queues.postgres.admin": "PostgresAdmin",
    "payonce.queues.postgres.feed": "PostgresFeed",
    "payonce.queues.postgres.pull": "PostgresQueue",
}
"""The public names by the modules that define them; a module is imported when one of its names is used."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = ["PostgresAdmin", "PostgresFeed", "PostgresQueue"]
