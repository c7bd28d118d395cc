"""Connects to the server that takes writes when DATABASE_URL names several."""

from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import asyncpg

from payonce.kit.postgres_hosts import Host, hosts_of

TRY_NEXT_HOST: Final = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.TargetServerAttributeNotMatched,
)
"""Errors of one server while another one serves: gone, shutting down, starting, a standby. Other errors are raised at
once: a login refused by one server is refused by all."""
_answered: dict[str, Host] = {}
"""The last host that answered, by URL. After a failover, further connections do not wait for the dead host."""


def hosts_to_try(url: str) -> list[Host]:
    """In the order in which they are tried; empty if there is only one."""
    hosts = hosts_of(url)
    return sorted(hosts, key=lambda host: host != _answered.get(url)) if len(hosts) > 1 else []


async def connect_to_any(url: str, *, timeout: float, **options: Any) -> asyncpg.Connection:  # noqa: ASYNC109
    """A connection to the first host that takes writes, or to any host if the URL says `target_session_attrs=any`.

    Each host gets its share of `timeout`. The driver's own search gives all of it to the first host, so a host that
    silently disappeared would keep it from trying the others.
    """
    hosts = hosts_to_try(url)
    if not hosts:
        return await asyncpg.connect(url, timeout=timeout, **options)
    attributes = parse_qs(urlsplit(url).query).get("target_session_attrs", ["read-write"])[0]
    refusals: list[str] = []
    for host in hosts:
        at: dict[str, Any] = {"host": host.name, "port": host.port, "target_session_attrs": attributes}
        try:
            connection: asyncpg.Connection = await asyncpg.connect(url, timeout=timeout / len(hosts), **at, **options)
        except TRY_NEXT_HOST as error:
            refusals.append(f"{host}: {_reason(error)}")
        else:
            _answered[url] = host
            return connection
    raise ConnectionError(f"no host takes writes ({'; '.join(refusals)})")


def _reason(error: BaseException) -> str:
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return "it is a standby or read-only"
    return str(error) or ("no answer" if isinstance(error, TimeoutError) else type(error).__name__)
