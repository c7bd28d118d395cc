"""Accounts of customers and operators: registration, login, passwords, roles and token revocation."""

import hashlib
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from payonce.engine.audit import Severity, note
from payonce.engine.database.connections import Database
from payonce.engine.messages.transaction import Reader, Tx
from payonce.engine.operators.login_limits import count_action, count_attempt, remember_network, remove_attempt
from payonce.engine.operators.passwords import PasswordQueueFull, check_password, hash_password, is_password
from payonce.kit.ids import new_id
from payonce.kit.money import Amount, asset_of, render
from payonce.kit.networks import network_of
from payonce.kit.outcomes import Invalid, PayonceError
from payonce.services.billing.api.token_versions import KnownVersions
from payonce.services.billing.subscriptions.domain.calendar import EARLIEST, local
from payonce.services.billing.subscriptions.domain.refusals import NotFound
from payonce.services.billing.subscriptions.handlers.merchant_events import announce_customer
from payonce.services.billing.subscriptions.model import Account

EMAIL_MAX_CHARS: Final = 254
EMAIL: Final = re.compile(r"[^\s@\x00-\x1f\x7f\"(),:;<>\[\]\\]{1,64}@[^\s@\x00-\x20\x7f]{1,189}")
"""The form of an e-mail address; whether mail arrives is not checked."""
LOCALE: Final = re.compile(r"[a-z]{2,3}(?:[_-][A-Za-z0-9]{2,8}){0,2}")
MACHINE_ZONES: Final = ("local", "posix", "right/")
"""Prefixes of time zone names that exist on many systems but name no place."""
OPERATOR, CUSTOMER = "operator", "customer"
REGISTRATIONS_MAX: Final = 20
"""From one address or IPv6 network within a quarter of an hour, unless BILLING_REGISTRATIONS_MAX says otherwise: each
costs a password hash and a row."""
LOCATION: Final = "billing.accounts"
LOGIN_ENDPOINT: Final = "billing"
"""Failed logins are counted separately from the console's."""

Begin = Callable[[], AbstractAsyncContextManager[Tx]]


@dataclass(frozen=True)
class NewAccount:
    """The data of a registration."""

    email: str
    password: str
    name: str = ""
    time_zone: str = "UTC"
    locale: str = "en"


class LoginRefused(PayonceError):
    """A refused login. The message does not reveal whether the account exists."""

    def __init__(self) -> None:
        super().__init__("the e-mail address or the password is wrong")


class RegistrationClosed(PayonceError):
    """Self-registration is disabled: the merchant creates the customers."""

    def __init__(self) -> None:
        super().__init__("self-registration is closed here; ask the merchant for an account")


class RegistrationRefused(PayonceError):
    """The address belongs to an account with another or no password; the message does not reveal which."""

    def __init__(self) -> None:
        super().__init__(
            "this cannot be registered; if the e-mail address is yours, log in, or ask the merchant for a link to set "
            "a password"
        )


def checked_email(text: str) -> str:
    """Normalised for storage, so that two spellings are one account. Raises Invalid."""
    email = text.strip().lower()
    if len(email) > EMAIL_MAX_CHARS or not EMAIL.fullmatch(email):
        raise Invalid(
            f"the e-mail address must read name@host, without spaces, and have at most {EMAIL_MAX_CHARS} characters"
        )
    return email


async def register(
    database: Database, begin: Begin, wanted: NewAccount, address: str, registrations_max: int = REGISTRATIONS_MAX
) -> Account:
    """Creates an account, at most `registrations_max` from one address. Registering again with the account's password
    logs in; with another password it counts as a guess and takes as long as a new account. Raises RegistrationClosed if
    self-registration is disabled."""
    if registrations_max == 0:
        raise RegistrationClosed
    email = checked_email(wanted.email)
    check_password(wanted.password)
    check_place(wanted.time_zone, wanted.locale)
    async with database.transaction() as connection:
        await count_action(connection, "registrations from this address", network_of(address), registrations_max)
    async with _guess(database, email, address):
        known = await database.work.fetchrow("select * from subscriptions.accounts where email = $1", email)
        if known is None:
            created = await _insert(begin, wanted, email)
            if created is not None:
                return created
            known = await database.work.fetchrow("select * from subscriptions.accounts where email = $1", email)
            assert known is not None, "accounts are not deleted"
        if not await is_password(wanted.password, known["password_hash"], LOGIN_ENDPOINT):
            raise RegistrationRefused
        return account_from(known)


async def log_in(database: Database, email: str, password: str, address: str) -> Account:
    """Counts each attempt before checking it; an unknown address takes as long as a wrong password."""
    email = email.strip().lower()[:EMAIL_MAX_CHARS]
    async with _guess(database, email, address):
        row = await database.work.fetchrow(
            "select * from subscriptions.accounts where email = $1", email if EMAIL.fullmatch(email) else ""
        )
        if not await is_password(password, None if row is None else row["password_hash"], LOGIN_ENDPOINT):
            # Written in both cases, so that both take equally long. An unknown address is not stored.
            reference, actor = ("unknown address", "nobody") if row is None else (row["id"], row["id"])
            async with database.transaction() as connection:
                await note(connection, LOCATION, reference, "a login failed", actor=actor, severity=Severity.WARNING)
            raise LoginRefused
        return account_from(row)


async def change_password(database: Database, account_id: str, old: str, new: str, address: str) -> Account:
    """Revokes all issued tokens: passwords are changed above all when somebody else may know them."""
    known = await account(Reader(database), account_id)
    check_password(new)
    await log_in(database, known.email, old, address)
    digest = await hash_password(new, LOGIN_ENDPOINT)
    async with database.transaction() as connection:
        row = await connection.fetchrow(
            """
            update subscriptions.accounts
            set password_hash = $2, token_version = token_version + 1, updated_at = payonce.due_now()
            where id = $1 and token_version = $3 returning *
            """,
            account_id,
            digest,
            known.version,
        )
        if row is None:
            raise LoginRefused
        await revoke_refresh_tokens(connection, account_id)
        await note(connection, LOCATION, account_id, "password changed", actor=account_id, severity=Severity.WARNING)
    return account_from(row)


async def set_role(tx: Tx, account_id: str, role: str, by: str) -> Account:
    """Revokes all issued tokens, since they contain the old role."""
    row = await tx.fetchrow(
        """
        update subscriptions.accounts
        set role = $2, token_version = token_version + 1, updated_at = payonce.due_now() where id = $1 returning *
        """,
        account_id,
        role,
    )
    if row is None:
        raise NotFound(f"there is no account {account_id!r}")
    await revoke_refresh_tokens(tx, account_id)
    await tx.audit(LOCATION, account_id, f"is now {role}", actor=by, severity=Severity.WARNING)
    return account_from(row)


async def find(read: Reader | Tx, account_id: str) -> Account | None:
    row = await read.fetchrow("select * from subscriptions.accounts where id = $1", account_id)
    return None if row is None else account_from(row)


async def account(read: Reader | Tx, account_id: str) -> Account:
    found = await find(read, account_id)
    if found is None:
        raise NotFound(f"there is no account {account_id!r}")
    return found


class AccountVersions(KnownVersions):
    """Token versions from the accounts."""

    def __init__(self, read: Reader, clock: Callable[[], float] = time.monotonic) -> None:
        async def stored(account_id: str) -> int | None:
            return await token_version(read, account_id)

        super().__init__(stored, clock)


async def token_version(read: Reader, account_id: str) -> int | None:
    found: int | None = await read.fetchval(
        "select token_version from subscriptions.accounts where id = $1", account_id
    )
    return found


def account_from(row: Any) -> Account:
    return Account(
        id=row["id"],
        email=row["email"],
        name=row["name"],
        role=row["role"],
        time_zone=row["time_zone"],
        locale=row["locale"],
        test_clock_id=row["test_clock_id"],
        version=row["token_version"],
        external_id=row["external_id"],
        has_password=row["password_hash"] is not None,
        revision=row["revision"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def check_place(time_zone: str, locale: str) -> None:
    """Rejects a time zone or locale that could not be used on an invoice."""
    local(EARLIEST, time_zone)
    if time_zone.startswith(MACHINE_ZONES):
        raise Invalid(f"the time zone {time_zone!r} differs between machines; use one like 'Asia/Dubai'")
    if not LOCALE.fullmatch(locale):
        raise Invalid(f"the locale {locale[:20]!r} must read like en, ar-AE or pt_BR")
    render(Amount.zero(asset_of("AED")), locale)


async def _insert(begin: Begin, wanted: NewAccount, email: str) -> Account | None:
    """None if a concurrent registration was faster."""
    digest = await hash_password(wanted.password, LOGIN_ENDPOINT)
    async with begin() as tx:
        row = await tx.fetchrow(
            """
            insert into subscriptions.accounts (id, email, password_hash, name, time_zone, locale)
            values ($1, $2, $3, $4, $5, $6) on conflict (email) do nothing returning *
            """,
            str(new_id()),
            email,
            digest,
            wanted.name,
            wanted.time_zone,
            wanted.locale,
        )
        if row is None:
            return None
        created = account_from(row)
        await announce_customer(tx, "created", created)
    return created


async def revoke_refresh_tokens(connection: Any, account_id: str) -> None:
    """Ends every login of the account once its access token expires."""
    await connection.execute(
        """
        update subscriptions.refresh_tokens set revoked_at = payonce.due_now()
        where account_id = $1 and revoked_at is null
        """,
        account_id,
    )


def token_digest(token: str) -> bytes:
    """The stored form of a refresh or password token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def guess_key(email: str) -> str:
    """The key under which password guesses for an account are counted."""
    return f"billing account {email}"


@asynccontextmanager
async def _guess(database: Database, email: str, address: str) -> AsyncIterator[None]:
    """Counts a guess before it is checked, and uncounts it if it was right or could not be checked."""
    name = guess_key(email)
    attempt = await count_attempt(database, name, address, LOGIN_ENDPOINT)
    try:
        yield
    except PasswordQueueFull:
        await remove_attempt(database.work, attempt)
        raise
    async with database.transaction() as connection:
        await remove_attempt(connection, attempt)
        await remember_network(connection, name, address, LOGIN_ENDPOINT)
