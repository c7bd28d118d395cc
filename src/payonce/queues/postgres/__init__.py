"""Queues on PostgreSQL: one table, claimed with SKIP LOCKED, settled in batches."""

from payonce.queues.postgres.admin import PostgresAdmin
from payonce.queues.postgres.feed import PostgresFeed
from payonce.queues.postgres.pull import PostgresQueue

__all__ = ["PostgresAdmin", "PostgresFeed", "PostgresQueue"]
