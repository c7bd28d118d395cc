"""Password tokens: a customer sets a password with one, for example after an invitation."""

import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from payonce.engine.audit import Severity
from payonce.engine.database.connections import Database
from payonce.engine.messages.transaction import Tx
from payonce.engine.operators.login_limits import forget_guesses
from payonce.engine.operators.passwords import check_password, hash_password
from payonce.services.billing.subscriptions.domain.refusals import NotFound
from payonce.services.billing.subscriptions.handlers.merchant_events import announce_customer
from payonce.services.billing.subscriptions.model import Account
from payonce.services.billing.subscriptions.store.accounts import (
    CUSTOMER,
    LOCATION,
    LOGIN_ENDPOINT,
    Begin,
    account_from,
    guess_key,
    revoke_refresh_tokens,
    token_digest,
)

LIFETIME_HOURS: Final = 72
TOKEN_BYTES: Final = 32
TOKEN_MAX_CHARS: Final = 200


@dataclass(frozen=True)
class PasswordToken:
    token: str
    """The database stores only its digest."""
    expires_at: datetime


async def create(tx: Tx, account_id: str, by: str) -> PasswordToken:
    """Creates a token and replaces the customer's previous one. Raises NotFound for unknown customers and for
    operators, whose password would allow acting in their name."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    expires_at: datetime | None = await tx.fetchval(
        """
        insert into subscriptions.password_tokens (account_id, digest, token_version, expires_at, made_by)
        select id, $3, token_version, payonce.due_now() + make_interval(hours => $4), $5
        from subscriptions.accounts where id = $1 and role = $2
        on conflict (account_id) do update set digest = excluded.digest, token_version = excluded.token_version,
            expires_at = excluded.expires_at, made_by = excluded.made_by, created_at = payonce.due_now()
        returning expires_at
        """,
        account_id,
        CUSTOMER,
        token_digest(token),
        LIFETIME_HOURS,
        by,
    )
    if expires_at is None:
        raise NotFound(f"there is no customer {account_id!r}")
    await tx.audit(LOCATION, account_id, "password token created", actor=by, severity=Severity.WARNING)
    return PasswordToken(token, expires_at)


async def set_password(database: Database, begin: Begin, token: str, new: str) -> Account | None:
    """Uses up the token, sets the password and ends every login. None if the token is not valid."""
    check_password(new)
    digest = token_digest(token)
    # Checked before hashing, which is more expensive than finding no token.
    if await database.work.fetchval(_GOOD, digest, CUSTOMER) is None:
        return None
    password_hash = await hash_password(new, LOGIN_ENDPOINT)
    async with begin() as tx:
        account_id = await tx.fetchval(f"{_GOOD} for update", digest, CUSTOMER)
        if account_id is None:
            return None
        await tx.execute("delete from subscriptions.password_tokens where account_id = $1", account_id)
        row = await tx.fetchrow(
            """
            update subscriptions.accounts
            set password_hash = $2, token_version = token_version + 1, updated_at = payonce.due_now()
            where id = $1 returning *
            """,
            account_id,
            password_hash,
        )
        changed = account_from(row)
        await revoke_refresh_tokens(tx, account_id)
        await forget_guesses(tx, guess_key(changed.email))
        text = "password set by a password token"
        await tx.audit(LOCATION, account_id, text, actor=account_id, severity=Severity.WARNING)
        await announce_customer(tx, "updated", changed)
    return changed


_GOOD: Final = """
    select a.id from subscriptions.password_tokens t join subscriptions.accounts a on a.id = t.account_id
    where t.digest = $1 and t.expires_at > payonce.due_now() and t.token_version = a.token_version and a.role = $2
      and not exists (
        select from subscriptions.customer_edits e
        where e.account_id = a.id and e.replaced_at >= t.created_at and e.email <> a.email)"""
"""Excludes tokens from before a correction of the e-mail address: the earlier address's owner may have the token."""
