"""One file per measured queue library; each is also the program of its two processes.

Nothing here imports a peer: only a peer's own processes do, so that its event-loop policy, logging or monkey-patching
cannot affect other figures.
"""

import importlib.metadata
import importlib.util

import msgspec

OURS = "payonce"
# Next to payonce, not among the peers: the cost of outbox and inbox for a queue outside the database.
OURS_TRANSACTIONAL = "payonce (transactional)"
OUR_SYSTEMS = (OURS, OURS_TRANSACTIONAL)


class System(msgspec.Struct, frozen=True):
    """One library on one backend."""

    name: str
    # Relative to this package.
    program: str
    # Modules that its processes import; the first is also the name of its distribution.
    modules: tuple[str, ...]

    @property
    def is_ours(self) -> bool:
        return self.name in OUR_SYSTEMS

    @property
    def slug(self) -> str:
        """A form of the name for databases."""
        return self.program.replace(".", "_")

    @property
    def is_installed(self) -> bool:
        return all(importlib.util.find_spec(module) is not None for module in self.modules)

    @property
    def version(self) -> str:
        return importlib.metadata.version(self.modules[0])


# payonce first: rounds are interleaved in this order.
SYSTEMS: dict[str, tuple[System, ...]] = {
    "postgres": (
        System(OURS, "postgres.payonce", ("payonce",)),
        System("pgqueuer", "postgres.pgqueuer", ("pgqueuer", "asyncpg")),
        System("saq", "postgres.saq", ("saq", "psycopg", "psycopg_pool")),
        System("dbos", "postgres.dbos", ("dbos", "sqlalchemy", "psycopg")),
        System("procrastinate", "postgres.procrastinate", ("procrastinate", "psycopg", "psycopg_pool")),
    ),
    "redis": (
        System(OURS, "redis.payonce", ("payonce", "redis")),
        System(OURS_TRANSACTIONAL, "redis.payonce_transactional", ("payonce", "redis")),
        System("dramatiq", "redis.dramatiq", ("dramatiq", "redis")),
        System("taskiq", "redis.taskiq", ("taskiq", "taskiq_redis")),
        System("arq", "redis.arq", ("arq", "redis")),
        System("saq", "redis.saq", ("saq", "redis")),
        System("celery", "redis.celery", ("celery", "kombu", "redis")),
        System("rq", "redis.rq", ("rq", "redis")),
    ),
}
