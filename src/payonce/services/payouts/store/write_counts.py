"""Counters of written rows and failed writes."""

from collections.abc import Iterator
from contextlib import contextmanager

from payonce.engine.monitoring.metrics import DB_WRITES
from payonce.kit.outcomes import PayonceError


@contextmanager
def count_writes(*tables: str) -> Iterator[None]:
    """Counts one write per table around a commit. Deliberate refusals and retries are not failed writes."""
    try:
        yield
    except PayonceError:
        raise
    except Exception:
        for table in tables:
            DB_WRITES.labels(table, "error").inc()
        raise
    for table in tables:
        DB_WRITES.labels(table, "ok").inc()
