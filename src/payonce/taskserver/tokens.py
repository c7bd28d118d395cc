"""OIDC tokens for tasks that request one: RS256, with a private key that never leaves this process."""

import base64
import secrets
import time
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

ISSUER: Final = "https://cloudtasks.payonce.invalid"
LIFETIME_S: Final = 3_600
CACHED_FOR_S: Final = 1_800.0
"""Signing takes a millisecond; a cached token has at least half of its life left."""
CACHED_MAX: Final = 1_000
KEY_BITS: Final = 2_048
KEY_KEPT_S: Final = 2 * 86_400.0


class TokenMaker:
    """Signs tokens, and caches them while they may be reused."""

    def __init__(self) -> None:
        self.kid = secrets.token_hex(16)
        self._key = rsa.generate_private_key(public_exponent=65_537, key_size=KEY_BITS)
        self._made: dict[tuple[str, str], tuple[str, float]] = {}

    @property
    def public_key(self) -> str:
        """PEM."""
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return self._key.public_key().public_bytes(serialization.Encoding.PEM, form).decode()

    def token(self, email: str, audience: str) -> str:
        known = self._made.get((email, audience))
        if known is not None and time.monotonic() < known[1]:
            return known[0]
        if len(self._made) >= CACHED_MAX:
            self._made.clear()
        token = self._signed(email, audience)
        self._made[email, audience] = (token, time.monotonic() + CACHED_FOR_S)
        return token

    def _signed(self, email: str, audience: str) -> str:
        issued_at = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": audience,
            "sub": email,
            "email": email,
            "email_verified": True,
            "azp": email,
            "iat": issued_at,
            "exp": issued_at + LIFETIME_S,
        }
        signed = f"{_part({'alg': 'RS256', 'kid': self.kid, 'typ': 'JWT'})}.{_part(claims)}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_text(signature)}"


def _part(value: dict[str, Any]) -> str:
    return _text(msgspec.json.encode(value))


def _text(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
