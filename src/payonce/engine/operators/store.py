"""Adding, changing and removing people; every change leaves an audit note."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from payonce.engine.audit import Severity, note
from payonce.engine.messages.transaction import Reader, Tx
from payonce.engine.operators.login_limits import forget_guesses
from payonce.engine.operators.model import Role, checked_name
from payonce.engine.operators.passwords import check_password, hash_password
from payonce.kit.outcomes import Invalid

PEOPLE_MAX: Final = 1_000
"""A console is for a team; larger organisations need another way to log in."""
LOCATION: Final = "console.people"


@dataclass(frozen=True)
class PersonSummary:
    name: str
    role: Role
    added_by: str
    added_at: datetime
    seen_at: datetime | None
    """The last activity in a session that has not ended."""


async def add_person(tx: Tx, name: str, role: Role, password: str, by: str) -> str:
    """Returns the name as stored."""
    name = checked_name(name)
    check_password(password)
    count = await tx.fetchval("select count(*) from payonce.people")
    if count >= PEOPLE_MAX:
        raise Invalid(f"there are already {count:,} people, the maximum; remove those who left")
    added = await tx.fetchval(
        """
        insert into payonce.people (name, role, password, added_by) values ($1, $2, $3, $4)
        on conflict do nothing returning name
        """,
        name,
        role,
        await hash_password(password),
        by,
    )
    if added is None:
        raise Invalid(f"{name} already exists; change them with: payonce users role, or payonce users passwd")
    await note(tx.connection, LOCATION, name, f"added as {role}", actor=by, severity=Severity.WARNING)
    return name


async def set_password(tx: Tx, name: str, password: str, by: str) -> None:
    """Also ends their sessions, since a password is mostly changed because somebody else may know it. Failed logins
    with the old password no longer count."""
    name = checked_name(name)
    check_password(password)
    changed = await tx.fetchval(
        "update payonce.people set password = $2, password_at = payonce.due_now() where name = $1 returning name",
        name,
        await hash_password(password),
    )
    if changed is None:
        raise await _unknown(tx, name)
    await tx.execute("delete from payonce.sessions where person = $1", name)
    await forget_guesses(tx.connection, name)
    await note(tx.connection, LOCATION, name, "password changed", actor=by, severity=Severity.WARNING)


async def set_role(tx: Tx, name: str, role: Role, by: str) -> None:
    """Applies from the next request, also in open sessions."""
    name = checked_name(name)
    if await tx.fetchval("update payonce.people set role = $2 where name = $1 returning name", name, role) is None:
        raise await _unknown(tx, name)
    await note(tx.connection, LOCATION, name, f"is now {role}", actor=by, severity=Severity.WARNING)


async def remove_person(tx: Tx, name: str, by: str) -> None:
    """Also ends their sessions. The audit log keeps what they did."""
    name = checked_name(name)
    if await tx.fetchval("delete from payonce.people where name = $1 returning name", name) is None:
        raise await _unknown(tx, name)
    await note(tx.connection, LOCATION, name, "removed", actor=by, severity=Severity.WARNING)


async def people(read: Reader | Tx) -> list[PersonSummary]:
    rows = await read.fetch(
        f"""
        select p.name, p.role, p.added_by, p.added_at, max(s.seen_at) as seen_at
        from payonce.people p left join payonce.sessions s on s.person = p.name and s.ends_at > payonce.due_now()
        group by p.name order by p.name limit {PEOPLE_MAX}
        """
    )
    return [
        PersonSummary(row["name"], Role(row["role"]), row["added_by"], row["added_at"], row["seen_at"]) for row in rows
    ]


async def _unknown(tx: Tx, name: str) -> Invalid:
    known = ", ".join(each.name for each in (await people(tx))[:20])
    return Invalid(f"there is no {name!r}; known are: {known}" if known else f"there is no {name!r}, and no other user")
