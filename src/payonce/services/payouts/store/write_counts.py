"""How many rows of payouts are written, and how many are not: the share that an operator watches."""

from collections.abc import Iterator
from contextlib import contextmanager

from payonce.engine.monitoring.metrics import DB_WRITES
from payonce.kit.outcomes import PayonceError


@contextmanager
def count_writes(*tables: str) -> Iterator[None]:
    """Around a commit. What is refused or comes too late on purpose is no failed write."""
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
