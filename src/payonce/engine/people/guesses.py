"""The bound on guessing passwords: attempts are counted before they are judged, by name and by address. Beside it the
bound on what is no guess, such as a registration, and must not come as a flood either.

Both count in `payonce.login_failures`, which is named after the first. Of a guess `name` is a digest and `address` a
network; of a turn `name` is empty and `address` says what was done and by whom; `failed_at` is when it was counted. The
table keeps its name: the schema is brought up to date while processes of the version before still count there.
"""

import hashlib
from typing import Final

import asyncpg

from payonce.engine.database import Connection, Database
from payonce.kit.networks import network_of
from payonce.kit.outcomes import PayonceError

FAILURES_MAX: Final = 5
"""For one name from one address, or IPv6 network, within the window."""
ADDRESS_FAILURES_MAX: Final = 20
"""From one address for all names: a team behind one proxy mistypes less often than a guesser."""
NAME_FAILURES_MAX: Final = 50
"""For one name from all addresses: whoever has many of them guesses no faster than NAME_PAUSE_S allows."""
NAME_PAUSE_S: Final = 5
"""Then one login for that name is judged in so many seconds. Not none: guessing must not lock its owner out."""
WINDOW_S: Final = 15 * 60
"""Guesses and turns are counted so far back."""


class TooMany(PayonceError):
    """What comes now is not judged at all."""

    def __init__(self, wait_s: int, what: str = "too many logins failed") -> None:
        super().__init__(f"{what}; wait {told(wait_s)}")
        self.wait_s = wait_s


async def count_attempt(database: Database, name: str, address: str) -> int:
    """Its number, to be taken back when the password was right. Names are kept as digests: one that nobody has may be a
    password that was typed a field too early."""
    whose, network = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest(), network_of(address)
    async with database.transaction() as connection:
        await connection.execute(
            "delete from payonce.login_failures where failed_at <= payonce.due_now() - make_interval(secs => $1)",
            WINDOW_S,
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
        network, whose, WINDOW_S, attempt, NAME_PAUSE_S,
    )  # fmt: skip
    assert row is not None
    wait_s = 0
    if row["of_both"] > FAILURES_MAX or row["of_address"] > ADDRESS_FAILURES_MAX:
        wait_s = WINDOW_S
    elif row["of_name"] > NAME_FAILURES_MAX and row["just_now"]:
        wait_s = NAME_PAUSE_S
    if wait_s:
        # What is refused unseen does not prolong the wait.
        await take_back(database.work, attempt)
        raise TooMany(wait_s)
    return attempt


async def take_back(connection: Connection | asyncpg.Pool, attempt: int) -> None:
    await connection.execute("delete from payonce.login_failures where id = $1", attempt)


async def take_turn(connection: Connection, what: str, whose: str, most: int) -> None:
    """One more of what somebody may do `most` times within the window, counted in the caller's transaction: refused, it
    leaves nothing. No guess is counted along, and this along with none: no network has a blank in it, and no digest is
    empty."""
    key = f"{what} {whose}"
    # One after the other, or of many at once each would see none.
    await connection.execute("select pg_advisory_xact_lock(hashtextextended($1, 0))", key)
    taken = await connection.fetchval(
        """
        select count(*) from payonce.login_failures
        where address = $1 and failed_at > payonce.due_now() - make_interval(secs => $2)
        """,
        key, WINDOW_S,
    )  # fmt: skip
    if taken >= most:
        raise TooMany(WINDOW_S, f"too many {what}")
    await connection.execute("insert into payonce.login_failures (name, address) values ('', $1)", key)


def told(wait_s: int) -> str:
    return f"{wait_s // 60} minutes" if wait_s >= 60 else f"{wait_s} seconds"
