"""One file per queue library that is measured; each is also the program that its two processes run.

Nothing here imports a peer: a peer is only ever imported by its own processes, so that one library's
event-loop policy, logging or monkey-patching never reaches another's numbers.
"""

OURS = "payonce"

# Ours first: rounds are interleaved in this order.
SYSTEMS: dict[str, tuple[str, ...]] = {
    "postgres": (OURS, "pgqueuer", "saq", "dbos", "procrastinate"),
}

# The modules a system's processes import; the first is also the name of its distribution.
MODULES: dict[str, tuple[str, ...]] = {
    OURS: ("payonce",),
    "pgqueuer": ("pgqueuer", "asyncpg"),
    "saq": ("saq", "psycopg", "psycopg_pool"),
    "dbos": ("dbos", "sqlalchemy", "psycopg"),
    "procrastinate": ("procrastinate", "psycopg", "psycopg_pool"),
}
