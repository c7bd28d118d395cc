"""What prolongs a login: refresh tokens, each good for one use. One that comes twice ends its whole family."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from payonce.engine.audit import Severity, note
from payonce.engine.messages.transaction import Tx
from payonce.engine.operators.login_limits import count_action
from payonce.kit.ids import new_id
from payonce.services.billing.subscriptions.model import Account
from payonce.services.billing.subscriptions.store.accounts import LOCATION, account_from

REFRESH_DAYS: Final = 30
TOKENS_MAX: Final = 200
"""Of one account within a quarter of an hour, by logins and by prolonging them: each is kept until it would end."""
TOKEN_BYTES: Final = 32
TOKEN_MAX_CHARS: Final = 200


@dataclass(frozen=True)
class IssuedRefreshToken:
    """The only time that anybody sees the token."""

    token: str
    expires_at: datetime


async def begin_login(tx: Tx, account_id: str, days: int = REFRESH_DAYS) -> IssuedRefreshToken:
    return await _issue(tx, account_id, str(new_id()), days)


async def rotate(tx: Tx, token: str, days: int = REFRESH_DAYS) -> tuple[Account, IssuedRefreshToken] | None:
    """The account, and the token for the next time; None for whatever is no token of ours that is still good. To be
    committed in either case: that a used one came again is written here."""
    digest = _digest(token)
    # The account first, as a change of password has it: two who lock in another order wait for each other.
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
    """With all that came of it. A token that is none ends nothing, and is answered the same."""
    await tx.execute(
        """
        update subscriptions.refresh_tokens set revoked_at = payonce.due_now()
        where revoked_at is null
          and family = (select family from subscriptions.refresh_tokens where digest = $1)
        """,
        _digest(token),
    )


async def _issue(tx: Tx, account_id: str, family: str, days: int) -> IssuedRefreshToken:
    await count_action(tx.connection, "logins of this account", account_id, TOKENS_MAX)
    token = secrets.token_urlsafe(TOKEN_BYTES)
    expires_at: datetime = await tx.fetchval(
        """
        insert into subscriptions.refresh_tokens (digest, account_id, family, expires_at)
        values ($1, $2, $3, payonce.due_now() + make_interval(days => $4)) returning expires_at
        """,
        _digest(token),
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
    text = "a refresh token came a second time: somebody else may have it, so that login is over"
    await note(tx.connection, LOCATION, account_id, text, actor=account_id, severity=Severity.WARNING)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
