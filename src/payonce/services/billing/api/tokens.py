"""Access tokens of logged-in accounts: JWTs that both services verify independently with a shared secret."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from payonce.kit.outcomes import Unavailable

AUDIENCE: Final = "payonce-billing"
ALGORITHM: Final = "HS256"
KEY_MIN_BYTES: Final = 32
"""RFC 7518 requires at least as many bytes as the hash has."""
ACCESS_S: Final = 15 * 60
SKEW_S: Final = 30
"""How far the clocks of two services may differ."""
_ACCOUNT_ID: Final = re.compile(r"[0-9A-Za-z_-]{1,100}")
TOKEN_MAX_CHARS: Final = 2_000
KNOWN_MAX: Final = 10_000
"""Tokens whose signature is cached as verified until they expire."""
CLAIMS: Final = ("sub", "role", "ver", "iat", "exp", "aud")
NO_PACKAGE: Final = "billing's tokens need the extra billing; run: pip install 'payonce[billing]'"


class Versions(Protocol):
    """Token versions: an account's version grows when its issued tokens are revoked."""

    async def version_of(self, account_id: str, *, fresh: bool) -> int | None:
        """The account's version, None if there is no such account. Unless `fresh`, it may come from a cache."""
        ...


@dataclass(frozen=True)
class Claims:
    account_id: str
    role: str
    version: int


class Expired(Exception):
    """A valid token that has expired. Clients present one every quarter of an hour, so it does not count as a guess."""


class Tokens:
    """Issues and verifies tokens. The first key signs and all keys verify, so keys can be rotated without new
    logins."""

    def __init__(
        self,
        keys: Sequence[bytes],
        versions: Versions | None = None,
        *,
        access_s: int = ACCESS_S,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        try:
            import jwt
        except ImportError as error:
            raise Unavailable(NO_PACKAGE) from error
        assert keys
        assert all(len(key) >= KEY_MIN_BYTES for key in keys), "keys are validated where they are read"
        self._jwt: Any = jwt
        self._keys = tuple(keys)
        self._versions = versions
        self._clock = clock
        self.access_s = access_s
        self._known: dict[str, tuple[Claims, int]] = {}

    def issue(self, claims: Claims) -> str:
        now = self._clock()
        body = {
            "sub": claims.account_id,
            "role": claims.role,
            "ver": claims.version,
            "iat": now,
            "exp": now + timedelta(seconds=self.access_s),
            "aud": AUDIENCE,
        }
        token: str = self._jwt.encode(body, self._keys[0], algorithm=ALGORITHM)
        return token

    def read(self, text: str) -> Claims | None:
        """The claims of a valid token, None for anything else. The algorithm is fixed: the token's own header decides
        nothing. Raises Expired."""
        if len(text) > TOKEN_MAX_CHARS:
            return None
        known = self._known.get(text) or self._found(text)
        if known is None:
            return None
        claims, ends = known
        if self._clock().timestamp() > ends + SKEW_S:
            self._known.pop(text, None)
            raise Expired
        return claims

    def _found(self, text: str) -> tuple[Claims, int] | None:
        """Verifies a token at its first use and caches the result: busy clients present the same token a thousand
        times. Its expiry is checked at every use."""
        # Every key is tried, so that the timing does not reveal which one matches.
        found = [body for body in (self._verified(text, key) for key in self._keys) if body is not None]
        claims = _claims(found[0]) if found else None
        if claims is None:
            return None
        self._known[text] = claims, found[0]["exp"]
        if len(self._known) > KNOWN_MAX:
            # The oldest entry, which expires first.
            self._known.pop(next(iter(self._known)))
        return self._known[text]

    async def counts(self, claims: Claims, *, fresh: bool) -> bool:
        """Whether the account has not revoked its tokens since."""
        if self._versions is None:
            return True
        return await self._versions.version_of(claims.account_id, fresh=fresh) == claims.version

    def _verified(self, text: str, key: bytes) -> dict[str, Any] | None:
        # Times are checked by our own clock, which tests can move.
        options = {"require": list(CLAIMS), "verify_exp": False, "verify_iat": False, "verify_nbf": False}
        try:
            body: dict[str, Any] = self._jwt.decode(
                text, key, algorithms=[ALGORITHM], audience=AUDIENCE, options=options
            )
        except (self._jwt.InvalidTokenError, ValueError, TypeError):
            return None
        return body


def is_token(text: str) -> bool:
    """Whether the text has the form of a JWT, which an API key has not."""
    return text.count(".") == 2


def _claims(body: dict[str, Any]) -> Claims | None:
    """The claims, None if the body has more or fewer than ours, such as a not-before time or a second audience."""
    if body.keys() != set(CLAIMS) or body["aud"] != AUDIENCE:
        return None
    account_id, role = body["sub"], body["role"]
    numbers = body["ver"], body["iat"], body["exp"]
    if not (isinstance(account_id, str) and isinstance(role, str) and all(type(each) is int for each in numbers)):
        return None
    if not _ACCOUNT_ID.fullmatch(account_id):
        return None
    return Claims(account_id, role, body["ver"])
