"""Refresh tokens, each valid for one use. Reusing a refresh token revokes its token family."""

import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from payonce.engine.audit import Severity
from payonce.engine.messages.transaction import Tx
from payonce.engine.operators.login_limits import count_action
from payonce.kit.ids import new_id
from payonce.services.billing.subscriptions.model import Account
from payonce.services.billing.subscriptions.store.accounts import LOCATION, account_from, token_digest

REFRESH_DAYS: Final = 30
TOKENS_MAX: Final = 200
"""Per account within a quarter of an hour, by login and refresh: each row is kept until it expires."""
TOKEN_BYTES: Final = 32
TOKEN_MAX_CHARS: Final = 200


@dataclass(frozen=True)
class IssuedRefreshToken:
    """A new refresh token; the database stores only its digest."""

    token: str
    expires_at: datetime


async def begin_login(tx: Tx, account_id: str, days: int = REFRESH_DAYS) -> IssuedRefreshToken:
    return await _issue(tx, account_id, str(new_id()), days)


async def rotate(tx: Tx, token: str, days: int = REFRESH_DAYS) -> tuple[Account, IssuedRefreshToken] | None:
    """The account and the next token; None if the token is not valid. Commit in either case, since a reuse is recorded
    here."""
    digest = token_digest(token)
    # Locks the account first, in the order of a password change; another order could deadlock.
    owner = await tx.fetchrow(
        """
        select * from subscriptions.accounts
        where id = (select account_id from subscriptions.refresh_tokens where digest = $1) for share
        """,
        digest,
    )
    row = await tx.fetchrow(
        """
        select account_id, family, used_at, revoked_at, expires_at <= payonce.due_now() as over
        from subscriptions.refresh_tokens where digest = $1 for update
        """,
        digest,
    )
    if row is None or row["revoked_at"] is not None:
        return None
    if row["used_at"] is not None:
        await _end_family(tx, row["family"], row["account_id"])
        return None
    if row["over"]:
        return None
    await tx.execute("update subscriptions.refresh_tokens set used_at = payonce.due_now() where digest = $1", digest)
    return account_from(owner), await _issue(tx, row["account_id"], row["family"], days)


async def end_login(tx: Tx, token: str) -> None:
    """Revokes the token's family. An unknown token changes nothing and gets the same response."""
    await tx.execute(
        """
        update subscriptions.refresh_tokens set revoked_at = payonce.due_now()
        where revoked_at is null
          and family = (select family from subscriptions.refresh_tokens where digest = $1)
        """,
        token_digest(token),
    )


async def _issue(tx: Tx, account_id: str, family: str, days: int) -> IssuedRefreshToken:
    await count_action(tx, "logins of this account", account_id, TOKENS_MAX)
    token = secrets.token_urlsafe(TOKEN_BYTES)
    expires_at: datetime = await tx.fetchval(
        """
        insert into subscriptions.refresh_tokens (digest, account_id, family, expires_at)
        values ($1, $2, $3, payonce.due_now() + make_interval(days => $4)) returning expires_at
        """,
        token_digest(token),
        account_id,
        family,
        days,
    )
    return IssuedRefreshToken(token, expires_at)


async def _end_family(tx: Tx, family: str, account_id: str) -> None:
    await tx.execute(
        """
        update subscriptions.refresh_tokens set revoked_at = payonce.due_now()
        where family = $1 and revoked_at is null
        """,
        family,
    )
    text = "a refresh token was reused: somebody else may have it, so that login was ended"
    await tx.audit(LOCATION, account_id, text, actor=account_id, severity=Severity.WARNING)
