"""Limits on password guessing: attempts are counted, by name and by address, before they are checked. The same table
limits other actions that must not flood, such as registrations.

Each login endpoint has counters of its own: failed logins of customers do not lock operators out of the console. An
account that has logged in from a network before is not locked out by failed logins of other accounts from there, nor by
guesses at its own password from elsewhere.

Both limits count in `payonce.login_failures`, which is named after the first. For a guess, `name` is a digest and
`address` a network, preceded by the endpoint if that is not the console. For another action, `name` is empty and
`address` states the action and its actor. `failed_at` is the time of counting. The table keeps its name because
processes of the previous version still count there while the schema is migrated.
"""

import hashlib
from typing import Final

import asyncpg

from payonce.engine.database.connections import Connection, Database, Statements
from payonce.kit.networks import network_of
from payonce.kit.outcomes import PayonceError

FAILURES_MAX: Final = 5
"""For one name from one address, or IPv6 network, within the window."""
ADDRESS_FAILURES_MAX: Final = 20
"""From one address for all names: a team behind one proxy mistypes less often than a guesser."""
NAME_FAILURES_MAX: Final = 50
"""For one name from all addresses: a guesser with many addresses is slowed down to NAME_PAUSE_S."""
NAME_PAUSE_S: Final = 5
"""Then one login for that name is checked in this many seconds. Not none: guessing must not lock the owner out."""
KNOWN_FOR_S: Final = 30 * 86_400
"""An account that logged in from a network within this time is known there."""
CONSOLE: Final = "console"
_ENDPOINT: Final = f"case when position(' ' in address) = 0 then '{CONSOLE}' else split_part(address, ' ', 1) end"
"""In SQL, of a row of payonce.login_failures."""
WINDOW_S: Final = 15 * 60
"""How far back guesses and actions are counted."""


class TooManyAttempts(PayonceError):
    """The attempt is refused unchecked."""

    def __init__(self, wait_s: int, what: str = "too many logins failed", *, of_address: bool = False) -> None:
        super().__init__(f"{what}; wait {wait_text(wait_s)}")
        self.wait_s = wait_s
        self.of_address = of_address
        """True if logins for other names count too, so that a new password does not end the wait."""


async def count_attempt(database: Database, name: str, address: str, endpoint: str = CONSOLE) -> int:
    """Counts an attempt and returns its number, by which it is removed when the password was right. Names are stored as
    digests: an unknown name may be a password typed into the wrong field. Raises TooManyAttempts."""
    whose, network = _digest(name), network_of(address)
    counted_at = network if endpoint == CONSOLE else f"{endpoint} {network}"
    async with database.transaction() as connection:
        await connection.execute(
            "delete from payonce.login_failures where failed_at <= payonce.due_now() - make_interval(secs => $1)",
            WINDOW_S,
        )
        attempt: int = await connection.fetchval(
            "insert into payonce.login_failures (name, address) values ($1, $2) returning id", whose, counted_at
        )
    # After the commit, so that each of many concurrent guesses sees those counted before it.
    row = await database.work.fetchrow(
        f"""
        select count(*) filter (where address = $1 and name = $2) as of_both,
            count(*) filter (where address = $1) as of_address,
            count(*) filter (where name = $2 and {_ENDPOINT} = $6) as of_name,
            count(*) filter (where name = $2 and {_ENDPOINT} = $6 and id < $4
                and failed_at > payonce.due_now() - make_interval(secs => $5)) as just_now,
            exists (
                select from payonce.login_networks where endpoint = $6 and name = $2 and network = $7
                    and last_at > payonce.due_now() - make_interval(secs => $8)) as known
        from payonce.login_failures
        where (address = $1 or name = $2) and failed_at > payonce.due_now() - make_interval(secs => $3)
        """,
        counted_at,
        whose,
        WINDOW_S,
        attempt,
        NAME_PAUSE_S,
        endpoint,
        network,
        KNOWN_FOR_S,
    )
    assert row is not None
    wait_s, of_address = 0, False
    if row["of_both"] > FAILURES_MAX:
        wait_s = WINDOW_S
    elif row["known"]:
        # Attempts of other accounts, or from elsewhere, do not count against it.
        pass
    elif row["of_address"] > ADDRESS_FAILURES_MAX:
        wait_s, of_address = WINDOW_S, True
    elif row["of_name"] > NAME_FAILURES_MAX and row["just_now"]:
        wait_s = NAME_PAUSE_S
    if wait_s:
        # An attempt refused unchecked does not prolong the wait.
        await remove_attempt(database.work, attempt)
        what = "too many logins failed from this address" if of_address else "too many logins failed"
        raise TooManyAttempts(wait_s, what, of_address=of_address)
    return attempt


async def forget_guesses(connection: Statements, name: str) -> None:
    """At every endpoint, because the guessed password has been changed."""
    await connection.execute("delete from payonce.login_failures where name = $1", _digest(name))


async def remember_network(connection: Connection, name: str, address: str, endpoint: str = CONSOLE) -> None:
    """To be called after a right password."""
    await connection.execute(
        "delete from payonce.login_networks where last_at <= payonce.due_now() - make_interval(secs => $1)", KNOWN_FOR_S
    )
    await connection.execute(
        """
        insert into payonce.login_networks (endpoint, name, network) values ($1, $2, $3)
        on conflict (endpoint, name, network) do update set last_at = payonce.due_now()
        """,
        endpoint,
        _digest(name),
        network_of(address),
    )


async def remove_attempt(connection: Connection | asyncpg.Pool, attempt: int) -> None:
    await connection.execute("delete from payonce.login_failures where id = $1", attempt)


async def count_action(connection: Statements, what: str, whose: str, most: int) -> None:
    """Counts one more of the actions that somebody may do `most` times within the window, in the caller's transaction.
    Raises TooManyAttempts; then nothing is counted. Actions and guesses do not count for each other: no network
    contains a blank, and no digest is empty."""
    key = f"{what} {whose}"
    # Serialised; otherwise many concurrent actions would see none of the others.
    await connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))", key)
    taken = await connection.fetchval(
        """
        select count(*) from payonce.login_failures
        where address = $1 and failed_at > payonce.due_now() - make_interval(secs => $2)
        """,
        key,
        WINDOW_S,
    )
    if taken >= most:
        raise TooManyAttempts(WINDOW_S, f"too many {what}")
    await connection.execute("insert into payonce.login_failures (name, address) values ('', $1)", key)


def wait_text(wait_s: int) -> str:
    return f"{wait_s // 60} minutes" if wait_s >= 60 else f"{wait_s} seconds"


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()
