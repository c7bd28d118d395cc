"""API keys: shown once, stored as a digest, with a holder, scopes and optionally a tenant; expired or revoked for good.

sk_ · 8 characters that may be shown · _ · 43 characters, 256 random bits in base64url
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from payonce.engine.audit import Severity, note
from payonce.engine.controls import texts
from payonce.engine.database.connections import Database
from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.crypto import to_base64url
from payonce.kit.ids import new_id
from payonce.kit.outcomes import Invalid

SECRET_BYTES: Final = 32
LIFETIME_MAX_S: Final = 10 * 366 * 86_400.0
SCOPES_MAX: Final = 50
LISTED_MAX: Final = 1_000
USED_TO_THE_S: Final = 3_600.0
"""Precision of the time of last use: it is written at most once in this time."""

_KEY: Final = re.compile(r"sk_(?P<prefix>[a-z2-7]{8})_[A-Za-z0-9_-]{43}", re.ASCII)
_SCOPE: Final = re.compile(r"[a-z][a-z0-9-]{0,40}:[a-z][a-z0-9-]{0,40}", re.ASCII)
_NO_DIGEST: Final = bytes(32)
"""Compared when no key was found, so that an unknown key takes as long as a wrong one."""


@dataclass(frozen=True)
class ApiKey:
    prefix: str
    holder: str
    tenant: str | None
    scopes: frozenset[str]
    made_by: str
    made_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_by: str | None
    revoked_at: datetime | None
    revoked_why: str | None
    expired: bool

    @property
    def live(self) -> bool:
        return self.revoked_at is None and not self.expired


@dataclass(frozen=True)
class NewApiKey:
    key: ApiKey
    secret: str
    """Shown only this once."""


def digest_of(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


async def make_key(
    tx: Tx, holder: str, scopes: Sequence[str], by: str, *, tenant: str | None = None, lifetime_s: float | None = None
) -> NewApiKey:
    holder, by = texts.name(holder, "the holder"), texts.name(by, "by")
    tenant = None if tenant is None else texts.name(tenant, "the tenant")
    checked = _checked_scopes(scopes)
    if lifetime_s is not None and not 0 < lifetime_s <= LIFETIME_MAX_S:
        raise Invalid(f"lifetime_s of a key is {lifetime_s:g}; it must be above 0 and at most {LIFETIME_MAX_S:,.0f}")
    prefix = base64.b32encode(secrets.token_bytes(5)).decode().lower()
    secret = f"sk_{prefix}_{to_base64url(secrets.token_bytes(SECRET_BYTES))}"
    row = await tx.fetchrow(
        f"""
        insert into payonce.api_keys (id, prefix, digest, holder, tenant, scopes, made_by, expires_at)
        values ($1, $2, $3, $4, $5, $6, $7, payonce.due_now() + make_interval(secs => $8::float8))
        returning {_COLUMNS}
        """,
        new_id(),
        prefix,
        digest_of(secret),
        holder,
        tenant,
        checked,
        by,
        lifetime_s,
    )
    owner = holder if tenant is None else f"{holder} of tenant {tenant}"
    text = f"created key {prefix} for {owner}: {', '.join(checked)}"
    await note(tx.connection, "keys.add", prefix, text, actor=by, severity=Severity.WARNING)
    return NewApiKey(_as_key(row), secret)


async def revoke_key(tx: Tx, prefix: str, by: str, why: str) -> ApiKey:
    """From this commit on the key is not accepted. Revoking twice changes nothing."""
    by, why = texts.name(by, "by"), texts.reason(why)
    row = await tx.fetchrow(f"select {_COLUMNS} from payonce.api_keys where prefix = $1 for update", _shown(prefix))
    if row is None:
        raise Invalid(f"there is no key {prefix[:40]!r}; see: payonce keys list")
    known = _as_key(row)
    if known.revoked_at is not None:
        return known
    row = await tx.fetchrow(
        f"""
        update payonce.api_keys set revoked_by = $2, revoked_at = payonce.due_now(), revoked_why = $3
        where prefix = $1 returning {_COLUMNS}
        """,
        known.prefix,
        by,
        why,
    )
    text = f"revoked key {known.prefix} of {known.holder}: {why}"
    await note(tx.connection, "keys.revoke", known.prefix, text, actor=by, severity=Severity.WARNING)
    return _as_key(row)


async def keys(read: Reader | Tx, *, holder: str | None = None, also_ended: bool = False) -> list[ApiKey]:
    """Newest first."""
    rows = await read.fetch(
        f"""
        select {_COLUMNS} from payonce.api_keys
        where ($1::text is null or holder = $1)
          and ($2 or (revoked_at is null and (expires_at is null or expires_at > payonce.due_now())))
        order by id desc limit $3
        """,
        holder,
        also_ended,
        LISTED_MAX,
    )
    return [_as_key(row) for row in rows]


async def authenticate(database: Database, text: str) -> ApiKey | None:
    """The live key with this text, or None. Unknown, expired, revoked and malformed keys are indistinguishable: each
    takes one query and one comparison."""
    match = _KEY.fullmatch(text)
    row = await database.work.fetchrow(
        f"""
        select {_COLUMNS}, digest,
            coalesce(last_used_at < payonce.due_now() - make_interval(secs => $2::float8), true) as use_is_news
        from payonce.api_keys where prefix = $1
        """,
        match["prefix"] if match else "",
        USED_TO_THE_S,
    )
    same = hmac.compare_digest(_NO_DIGEST if row is None else row["digest"], digest_of(text))
    if row is None or not same:
        return None
    known = _as_key(row)
    if not known.live:
        return None
    if row["use_is_news"]:
        await _record_use(database, known.prefix)
    return known


async def _record_use(database: Database, prefix: str) -> None:
    # Of concurrent updates only the first one writes.
    await database.work.execute(
        """
        update payonce.api_keys set last_used_at = payonce.due_now()
        where prefix = (
            select prefix from payonce.api_keys
            where prefix = $1
              and coalesce(last_used_at < payonce.due_now() - make_interval(secs => $2::float8), true)
            for no key update skip locked)
        """,
        prefix,
        USED_TO_THE_S,
    )


_COLUMNS: Final = """prefix, holder, tenant, scopes, made_by, made_at, expires_at, last_used_at, revoked_by, revoked_at,
    revoked_why, coalesce(expires_at <= payonce.due_now(), false) as expired"""


def _as_key(row: Any) -> ApiKey:
    fields = {name: row[name] for name in ApiKey.__dataclass_fields__}
    return ApiKey(**{**fields, "scopes": frozenset(row["scopes"])})


def _checked_scopes(scopes: Sequence[str]) -> list[str]:
    checked = sorted(set(scopes))
    if not 1 <= len(checked) <= SCOPES_MAX:
        raise Invalid(f"a key has 1 to {SCOPES_MAX} scopes, not {len(checked)}; see: payonce keys scopes")
    for scope in checked:
        if not _SCOPE.fullmatch(scope):
            raise Invalid(f"{scope[:60]!r} is not a scope; an example is queues:read, see: payonce keys scopes")
    return checked


def _shown(text: str) -> str:
    """Accepts a whole key by its visible part; the secret part is not used."""
    match = _KEY.fullmatch(text.strip())
    return match["prefix"] if match else text.strip().removeprefix("sk_")
