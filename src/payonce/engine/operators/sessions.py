"""Sessions: opened with a password, stored by the hash of their token, ended by logout, inactivity or age."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from payonce.engine.audit import Severity, note
from payonce.engine.database.connections import Database
from payonce.engine.messages.model import NAME_MAX_LENGTH, clean_text
from payonce.engine.messages.transaction import Reader
from payonce.engine.operators.login_limits import TooManyAttempts, count_attempt, remember_network, remove_attempt
from payonce.engine.operators.model import Person, Role
from payonce.engine.operators.passwords import PasswordQueueFull, is_password
from payonce.kit.outcomes import PayonceError

IDLE_S: Final = 2 * 3_600
ABSOLUTE_S: Final = 12 * 3_600
"""A working day: people log in again the next morning."""
SEEN_EVERY_S: Final = 60
"""Precision of the time of last activity; writing it with every request would cost more than it is worth."""
TOKEN_BYTES: Final = 32


class LoginRefused(PayonceError):
    """A refused login. The sentence does not reveal whether the name exists."""

    def __init__(self, sentence: str, *, too_many: bool = False) -> None:
        super().__init__(sentence)
        self.too_many = too_many


@dataclass(frozen=True)
class Session:
    person: Person
    ends_at: datetime


@dataclass(frozen=True)
class SessionStatus:
    """Everything the login check needs, in one read."""

    now: datetime
    session: Session | None
    has_people: bool
    """Whether anyone has a password."""


async def log_in(database: Database, name: str, password: str, address: str) -> str:
    """The token of a new session. Attempts are counted before they are checked. Raises LoginRefused."""
    name, address = clean_text(name.strip().lower())[:NAME_MAX_LENGTH], clean_text(address)[:NAME_MAX_LENGTH]
    attempt = await _count_attempt(database, name, address)
    stored = await database.work.fetchval("select password from payonce.people where name = $1", name)
    try:
        right = await is_password(password, stored)
    except PasswordQueueFull as error:
        await remove_attempt(database.work, attempt)
        raise LoginRefused(str(error), too_many=True) from None
    if not right:
        # An unknown name may be a password typed into the wrong field, so it is stored nowhere.
        reference, actor = ("unknown name", "nobody") if stored is None else (name, name)
        async with database.transaction() as connection:
            await note(
                connection,
                "console.login",
                reference,
                f"a login from {address} failed",
                actor=actor,
                severity=Severity.WARNING,
            )
        raise LoginRefused("the name or the password is wrong")
    token = secrets.token_urlsafe(TOKEN_BYTES)
    async with database.transaction() as connection:
        await remove_attempt(connection, attempt)
        await remember_network(connection, name, address)
        await connection.execute(
            """
            delete from payonce.sessions where person = $1 and (
                ends_at <= payonce.due_now() or seen_at <= payonce.due_now() - make_interval(secs => $2))
            """,
            name,
            IDLE_S,
        )
        opened = await connection.fetchval(
            """
            insert into payonce.sessions (token_hash, person, ends_at)
            select $1, name, payonce.due_now() + make_interval(secs => $3) from payonce.people
            where name = $2 and password = $4
            returning true
            """,
            _hash(token),
            name,
            ABSOLUTE_S,
            stored,
        )
        if opened is None:
            raise LoginRefused("the name or the password is wrong")
        await note(connection, "console.login", name, f"logged in from {address}", actor=name)
    return token


async def log_out(database: Database, token: str) -> None:
    await database.work.execute("delete from payonce.sessions where token_hash = $1", _hash(token))


async def session_status(read: Reader, token: str | None, *, active: bool = True) -> SessionStatus:
    """The session of a token. Without `active`, a page refreshed itself, which must not keep the session alive."""
    row = await read.fetchrow(
        """
        select payonce.due_now() as now, exists (select from payonce.people) as anybody,
            p.name, p.role, s.ends_at, s.seen_at
        from (values (1)) one
        left join payonce.sessions s on s.token_hash = $1 and s.ends_at > payonce.due_now()
            and s.seen_at > payonce.due_now() - make_interval(secs => $2)
        left join payonce.people p on p.name = s.person
        """,
        None if token is None else _hash(token),
        IDLE_S,
    )
    if row["name"] is None:
        return SessionStatus(row["now"], None, row["anybody"])
    assert token is not None
    if active and (row["now"] - row["seen_at"]).total_seconds() > SEEN_EVERY_S:
        await read.fetch("update payonce.sessions set seen_at = payonce.due_now() where token_hash = $1", _hash(token))
    return SessionStatus(row["now"], Session(Person(row["name"], Role(row["role"])), row["ends_at"]), row["anybody"])


async def _count_attempt(database: Database, name: str, address: str) -> int:
    try:
        return await count_attempt(database, name, address)
    except TooManyAttempts as error:
        way = "log in from another one" if error.of_address else "set a new password with: payonce users passwd NAME"
        raise LoginRefused(f"{error}, or {way}", too_many=True) from None


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
