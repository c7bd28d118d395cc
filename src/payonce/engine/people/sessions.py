"""Sessions: opened by a password, stored by the hash of their token, ended by logout, rest or age."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from payonce.engine.audit import Severity, note
from payonce.engine.database import Database
from payonce.engine.model import NAME_MAX_LENGTH, clean_text
from payonce.engine.people.model import Person, Role
from payonce.engine.people.passwords import is_password
from payonce.engine.transaction import Reader
from payonce.kit.networks import network_of
from payonce.kit.outcomes import PayonceError

IDLE_S: Final = 2 * 3_600
ABSOLUTE_S: Final = 12 * 3_600
"""A working day: whoever comes back the next morning logs in again."""
SEEN_EVERY_S: Final = 60
"""How exact the time of rest is; a write with every request would cost more than it tells."""
FAILURES_MAX: Final = 5
"""For one name from one address, or IPv6 network, within the window."""
ADDRESS_FAILURES_MAX: Final = 20
"""From one address for all names: a team behind one proxy mistypes less often than a guesser."""
NAME_FAILURES_MAX: Final = 50
"""For one name from all addresses: whoever has many of them guesses no faster than NAME_PAUSE_S allows."""
NAME_PAUSE_S: Final = 5
"""Then one login for that name is judged in so many seconds. Not none: guessing must not lock its owner out."""
FAILURE_WINDOW_S: Final = 15 * 60
TOKEN_BYTES: Final = 32


class NotAdmitted(PayonceError):
    """A login that was refused. The sentence does not tell whether the name exists."""

    def __init__(self, sentence: str, *, too_many: bool = False) -> None:
        super().__init__(sentence)
        self.too_many = too_many


@dataclass(frozen=True)
class Session:
    person: Person
    ends_at: datetime


@dataclass(frozen=True)
class Standing:
    """What the door needs to know, read at once."""

    now: datetime
    session: Session | None
    anybody: bool
    """Whether anyone was given a password."""


async def log_in(database: Database, name: str, password: str, address: str) -> str:
    """The token of a new session. Guesses are counted before they are judged."""
    name, address = clean_text(name.strip().lower())[:NAME_MAX_LENGTH], clean_text(address)[:NAME_MAX_LENGTH]
    attempt = await _count_attempt(database, name, address)
    stored = await database.work.fetchval("select password from payonce.people where name = $1", name)
    if not await is_password(password, stored):
        # A name that nobody has may be a password that was typed a field too early: it is kept nowhere.
        reference, actor = ("unknown name", "nobody") if stored is None else (name, name)
        async with database.transaction() as connection:
            await note(connection, "console.login", reference, f"a login from {address} failed", actor=actor,
                       severity=Severity.WARNING)  # fmt: skip
        raise NotAdmitted("the name or the password is wrong")
    token = secrets.token_urlsafe(TOKEN_BYTES)
    async with database.transaction() as connection:
        await connection.execute("delete from payonce.login_failures where id = $1", attempt)
        await connection.execute(
            """
            delete from payonce.sessions where person = $1 and (
                ends_at <= payonce.due_now() or seen_at <= payonce.due_now() - make_interval(secs => $2))
            """,
            name, IDLE_S,
        )  # fmt: skip
        opened = await connection.fetchval(
            """
            insert into payonce.sessions (token_hash, person, ends_at)
            select $1, name, payonce.due_now() + make_interval(secs => $3) from payonce.people
            where name = $2 and password = $4
            returning true
            """,
            _hash(token), name, ABSOLUTE_S, stored,
        )  # fmt: skip
        if opened is None:
            raise NotAdmitted("the name or the password is wrong")
        await note(connection, "console.login", name, f"logged in from {address}", actor=name)
    return token


async def log_out(database: Database, token: str) -> None:
    await database.work.execute("delete from payonce.sessions where token_hash = $1", _hash(token))


async def standing(read: Reader, token: str | None, *, active: bool = True) -> Standing:
    """Unless `active`, a page renewed itself: that nobody sits before it must be able to end the session."""
    row = await read.fetchrow(
        """
        select payonce.due_now() as now, exists (select from payonce.people) as anybody,
            p.name, p.role, s.ends_at, s.seen_at
        from (values (1)) one
        left join payonce.sessions s on s.token_hash = $1 and s.ends_at > payonce.due_now()
            and s.seen_at > payonce.due_now() - make_interval(secs => $2)
        left join payonce.people p on p.name = s.person
        """,
        None if token is None else _hash(token), IDLE_S,
    )  # fmt: skip
    if row["name"] is None:
        return Standing(row["now"], None, row["anybody"])
    assert token is not None
    if active and (row["now"] - row["seen_at"]).total_seconds() > SEEN_EVERY_S:
        await read.fetch("update payonce.sessions set seen_at = payonce.due_now() where token_hash = $1", _hash(token))
    return Standing(row["now"], Session(Person(row["name"], Role(row["role"])), row["ends_at"]), row["anybody"])


async def _count_attempt(database: Database, name: str, address: str) -> int:
    whose, network = _hash(name).hex(), network_of(address)
    async with database.transaction() as connection:
        await connection.execute(
            "delete from payonce.login_failures where failed_at <= payonce.due_now() - make_interval(secs => $1)",
            FAILURE_WINDOW_S,
        )
        attempt: int = await connection.fetchval(
            "insert into payonce.login_failures (name, address) values ($1, $2) returning id", whose, network
        )
    # After the commit: of many guesses at once each sees those that were counted before it.
    row = await database.work.fetchrow(
        """
        select count(*) filter (where address = $1 and name = $2) as of_both,
            count(*) filter (where address = $1) as of_address, count(*) filter (where name = $2) as of_name,
            count(*) filter (where name = $2 and id < $4
                and failed_at > payonce.due_now() - make_interval(secs => $5)) as just_now
        from payonce.login_failures
        where (address = $1 or name = $2) and failed_at > payonce.due_now() - make_interval(secs => $3)
        """,
        network, whose, FAILURE_WINDOW_S, attempt, NAME_PAUSE_S,
    )  # fmt: skip
    assert row is not None
    wait = None
    if row["of_both"] > FAILURES_MAX or row["of_address"] > ADDRESS_FAILURES_MAX:
        wait = f"{FAILURE_WINDOW_S // 60} minutes"
    elif row["of_name"] > NAME_FAILURES_MAX and row["just_now"]:
        wait = f"{NAME_PAUSE_S} seconds"
    if wait is not None:
        # What is refused unseen does not prolong the wait.
        await database.work.execute("delete from payonce.login_failures where id = $1", attempt)
        raise NotAdmitted(
            f"too many logins failed; wait {wait}, or set a new password with: payonce users passwd NAME",
            too_many=True,
        )
    return attempt


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
