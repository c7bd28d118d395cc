"""Access tokens of people who log in: JWTs that both services read alone, by one secret that they share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from payonce.kit.outcomes import Unavailable

AUDIENCE: Final = "payonce-billing"
ALGORITHM: Final = "HS256"
KEY_MIN_BYTES: Final = 32
"""RFC 7518 wants at least as many as the hash has."""
ACCESS_S: Final = 15 * 60
SKEW_S: Final = 30
"""How far the clocks of two services may differ."""
TOKEN_MAX_CHARS: Final = 2_000
KNOWN_MAX: Final = 10_000
"""Tokens whose signature was verified and is not verified again, so long as they are valid."""
CLAIMS: Final = ("sub", "role", "ver", "iat", "exp", "aud")
NO_PACKAGE: Final = "tokens of billing need the extra billing; run: pip install 'payonce[billing]'"


class Versions(Protocol):
    """Whether tokens given out so far still count: an account has a number that grows when they do not."""

    async def version_of(self, account_id: str, *, fresh: bool) -> int | None:
        """None for an account that is not there. Unless `fresh`, it may be a little old."""
        ...


@dataclass(frozen=True)
class Claims:
    account_id: str
    role: str
    version: int


class Expired(Exception):
    """Ours, and over. A client comes back with one every quarter of an hour: that is no guess."""


class Tokens:
    """The first key signs, every one of them reads, so that they can be exchanged without anybody logging in anew."""

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
        assert all(len(key) >= KEY_MIN_BYTES for key in keys), "keys are checked where they are read"
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
        """What a token of ours says; None for whatever is none. By this one algorithm: what a token says of itself
        decides nothing. Raises Expired."""
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
        """Of a token that is seen for the first time. A busy client sends the same one a thousand times, and what it
        says does not change; when it ends is asked every time."""
        # With every key: which of them fits is not to be told by the time it takes.
        found = [body for body in (self._verified(text, key) for key in self._keys) if body is not None]
        claims = _claims(found[0]) if found else None
        if claims is None:
            return None
        self._known[text] = claims, found[0]["exp"]
        if len(self._known) > KNOWN_MAX:
            # The one that was seen first, and so will end first.
            self._known.pop(next(iter(self._known)))
        return self._known[text]

    async def counts(self, claims: Claims, *, fresh: bool) -> bool:
        """Whether the account has not ended its tokens since."""
        if self._versions is None:
            return True
        return await self._versions.version_of(claims.account_id, fresh=fresh) == claims.version

    def _verified(self, text: str, key: bytes) -> dict[str, Any] | None:
        # Times are ours to judge, by the clock that tests move.
        options = {"require": list(CLAIMS), "verify_exp": False, "verify_iat": False, "verify_nbf": False}
        try:
            body: dict[str, Any] = self._jwt.decode(
                text, key, algorithms=[ALGORITHM], audience=AUDIENCE, options=options
            )
        except (self._jwt.InvalidTokenError, ValueError, TypeError):
            return None
        return body


def is_token(text: str) -> bool:
    """Whether it has the shape of one; an API key has not."""
    return text.count(".") == 2


def _claims(body: dict[str, Any]) -> Claims | None:
    """None for what says more or less than ours do: a moment before which it is not to count, a second audience."""
    if body.keys() != set(CLAIMS) or body["aud"] != AUDIENCE:
        return None
    account_id, role = body["sub"], body["role"]
    numbers = body["ver"], body["iat"], body["exp"]
    if not (isinstance(account_id, str) and isinstance(role, str) and all(type(each) is int for each in numbers)):
        return None
    return Claims(account_id, role, body["ver"])
