"""Whether commits that PostgreSQL acknowledged survive a crash of its machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from payonce.engine.database.sessions import DURABLE_VALUES
from payonce.engine.monitoring.metrics import DATABASE_WEAKNESSES
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Unavailable

ACCEPT_DATA_LOSS: Final = "PAYONCE_ACCEPT_DATA_LOSS"
SHOWN_TABLES: Final = 3

log = get_logger(__name__)


@dataclass(frozen=True)
class Weakness:
    """A setting under which committed work can be lost, and with it the record of money that moved."""

    text: str
    way_out: str

    def __str__(self) -> str:
        return f"{self.text}; {self.way_out}"


class RowReader(Protocol):
    """A connection, a pool or a reader."""

    async def fetchrow(self, query: str, /) -> Any: ...


async def check_durability(connection: RowReader, *, accepted: bool) -> None:
    """Refuses a database that may lose commits, unless the operator has accepted that explicitly."""
    weak = await weaknesses(connection)
    DATABASE_WEAKNESSES.set(len(weak))
    if accepted:
        log.warning("data_loss_accepted", setting=ACCEPT_DATA_LOSS, weaknesses=[each.text for each in weak])
    elif weak:
        raise Unavailable(f"{weak[0]}, or start anyway with {ACCEPT_DATA_LOSS}=true")


async def weaknesses(connection: RowReader) -> list[Weakness]:
    """Weaknesses of the server, of this session, and of the defaults of other sessions of the login.

    payonce sets synchronous_commit in its own sessions. A default of `off` still counts: it applies to everyone else
    who uses the login, such as a person who repairs data by hand.
    """
    found = await connection.fetchrow(_STATE)
    weak = []
    if found["fsync"] != "on":
        weak.append(_server_weakness("fsync", found["fsync"], "a crash of its machine can lose or destroy everything"))
    if found["full_page_writes"] != "on":
        weak.append(
            _server_weakness("full_page_writes", found["full_page_writes"], "a crash can leave half-written pages")
        )
    if found["synchronous_commit"] not in DURABLE_VALUES:
        weak.append(_weak_commit(f"a session of payonce has synchronous_commit = {found['synchronous_commit']}"))
    elif found["default_commit"] == "off":
        weak.append(_weak_commit(f"sessions of {found['login']} begin with synchronous_commit = off"))
    if found["unlogged"]:
        weak.append(_unlogged(found["unlogged"]))
    return weak


def _server_weakness(setting: str, value: str, reason: str) -> Weakness:
    return Weakness(
        f"the server runs with {setting} = {value}: {reason}", f"set {setting} = on in postgresql.conf and reload it"
    )


def _weak_commit(fact: str) -> Weakness:
    return Weakness(
        f"{fact}: a crash of the server loses acknowledged commits, and a payment that was sent is sent again",
        "remove it with `alter role … reset synchronous_commit`, `alter database … reset synchronous_commit` or in "
        "postgresql.conf",
    )


def _unlogged(tables: Sequence[str]) -> Weakness:
    names = ", ".join(tables[:SHOWN_TABLES]) + (", …" if len(tables) > SHOWN_TABLES else "")
    return Weakness(
        f"unlogged tables, which a crash of the server empties: {names}",
        f"`alter table {tables[0]} set logged`",
    )


_STATE: Final = """
    select current_setting('fsync') as fsync, current_setting('full_page_writes') as full_page_writes,
        current_setting('synchronous_commit') as synchronous_commit,
        (select reset_val from pg_settings where name = 'synchronous_commit') as default_commit,
        session_user as login,
        array(
            select c.oid::regclass::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
            where c.relpersistence = 'u' and c.relkind in ('r', 'p') and exists (
                select from aclexplode(n.nspacl) granted where granted.grantee = to_regrole('payonce_service')::oid)
            order by 1
        ) as unlogged
"""
"""Unlogged tables count in the schemas that are open to the services: a crash empties them."""
