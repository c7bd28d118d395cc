"""Authenticates the task service: every task carries a token signed for our account, verified on each delivery.

Google's public keys are fetched and cached; those of our own server are rows of the shared database.

Cloud Run with its IAM check (`--no-allow-unauthenticated`) verifies the token itself and replaces its signature with
SIGNATURE_REMOVED_BY_GOOGLE before it forwards the request. Such a token is accepted only where the settings say that
every request passes this check; its claims are checked here all the same.
"""

import asyncio
import base64
import binascii
import hashlib
import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, RSAPublicNumbers
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from payonce.engine.database.connections import Database
from payonce.kit.http import HttpClient
from payonce.kit.outcomes import Invalid, Unavailable

GOOGLE_KEYS_URL: Final = "https://www.googleapis.com"
GOOGLE_KEYS_PATH: Final = "/oauth2/v3/certs"
GOOGLE_ISSUERS: Final = ("https://accounts.google.com", "accounts.google.com")
LOCAL_ISSUERS: Final = ("https://cloudtasks.payonce.invalid",)
TOKEN_MAX_BYTES: Final = 8 * 1024
KEYS_MAX: Final = 100
REFETCH_MIN_S: Final = 10.0
"""Minimum interval between two fetches caused by unknown key ids."""
KEYS_KEPT_S: Final = 3_600.0
"""Maximum time for which a withdrawn key is still trusted."""
SKEW_S: Final = 60.0
VERIFIED_MAX: Final = 10_000
KEY_BITS_LEAST: Final = 2_048
REMOVED: Final = "SIGNATURE_REMOVED_BY_GOOGLE"
"""Replaces the signature; see https://cloud.google.com/run/docs/troubleshooting#signature-removed"""
SERVERLESS: Final = "x-serverless-authorization"
"""With this header Cloud Run verifies the token in it and forwards Authorization unverified."""


class Keys(Protocol):
    """A source of signers' public keys."""

    issuers: tuple[str, ...]

    async def fetch(self) -> Mapping[str, RSAPublicKey]:
        """Public keys by key id. Raises Unavailable while they cannot be fetched."""
        ...


class GoogleKeys:
    issuers: tuple[str, ...] = GOOGLE_ISSUERS

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def fetch(self) -> Mapping[str, RSAPublicKey]:
        try:
            response = await self._http.request("GET", GOOGLE_KEYS_PATH)
            if response.status != 200:
                raise ValueError(f"status {response.status}")
            listed = msgspec.json.decode(response.body, type=_KeySet).keys[:KEYS_MAX]
            return {each.kid: _public_key(each) for each in listed if each.kty == "RSA"}
        except Exception as error:
            raise Unavailable(
                f"Google's public keys cannot be fetched: {error}; tasks are refused until they can be"
            ) from error


class LocalKeys:
    """Keys of our own server, whichever process runs it."""

    issuers: tuple[str, ...] = LOCAL_ISSUERS

    def __init__(self, database: Database) -> None:
        self._database = database

    async def fetch(self) -> Mapping[str, RSAPublicKey]:
        rows = await self._database.engine.fetch(
            "select kid, public_key from cloudtasks.signing_keys order by created_at desc limit $1", KEYS_MAX
        )
        found = {row["kid"]: load_pem_public_key(row["public_key"].encode()) for row in rows}
        return {kid: key for kid, key in found.items() if isinstance(key, RSAPublicKey)}


class Claims(msgspec.Struct, frozen=True):
    """The claims of a token that are checked."""

    iss: str
    aud: str
    exp: float
    email: str = ""
    email_verified: bool = False


class Verifier:
    def __init__(self, keys: Keys, account: str, *, by_platform: bool = False) -> None:
        self._keys = keys
        self._account = account
        self._by_platform = by_platform
        self._known: Mapping[str, RSAPublicKey] = {}
        self._fetched_at = float("-inf")
        self._fetching = asyncio.Lock()
        self._verified: dict[tuple[bytes, str], float] = {}
        """Expiry of verified tokens, by hash and audience: verification is expensive, and one token serves many
        tasks."""

    async def check(self, authorization: str, audience: str, *, serverless: bool = False) -> None:
        """Raises Invalid, whose text quotes nothing of the request, and Unavailable without keys. `serverless`: whether
        the request had a second token for Cloud Run."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Invalid("no token")
        if len(token) > TOKEN_MAX_BYTES:
            raise Invalid("token too long")
        removed = token.endswith(f".{REMOVED}")
        if removed:
            self._check_forwarded(serverless)
        seen = (hashlib.sha256(token.encode()).digest(), audience)
        if self._verified.get(seen, 0.0) > time.time():
            return
        claims = _forwarded(token) if removed else await self._opened(token)
        _check_claims(claims, self._keys.issuers, audience, self._account)
        if len(self._verified) >= VERIFIED_MAX:
            self._verified.clear()
        self._verified[seen] = claims.exp

    def _check_forwarded(self, serverless: bool) -> None:
        """Raises Invalid unless Cloud Run has verified this token before it removed the signature."""
        if not self._by_platform:
            # Anybody can send such a token to an open service: the text must not talk its operator into this setting.
            raise Invalid(
                f"the token ends in {REMOVED}. Only if this service is deployed with --no-allow-unauthenticated has "
                "Cloud Run verified it; then set CLOUD_TASKS_VERIFIED_BY=cloud-run. On an open service somebody has "
                "forged it; leave the setting as it is"
            )
        if serverless:
            raise Invalid("Cloud Run has verified another token than this one")

    async def _opened(self, token: str) -> Claims:
        parts = token.split(".")
        if len(parts) != 3:
            raise Invalid("not a token")
        try:
            header: Any = msgspec.json.decode(_decoded(parts[0]), type=_Header)
            signature = _decoded(parts[2])
        except (ValueError, msgspec.DecodeError, binascii.Error) as error:
            raise Invalid("not a token") from error
        if header.alg != "RS256":
            raise Invalid("not signed with RS256")
        key = await self._key(header.kid)
        if key is None:
            raise Invalid("unknown key")
        try:
            key.verify(signature, f"{parts[0]}.{parts[1]}".encode(), padding.PKCS1v15(), SHA256())
        except InvalidSignature as error:
            raise Invalid("wrong signature") from error
        return _claims(parts[1])

    async def _key(self, kid: str) -> RSAPublicKey | None:
        if self._is_due(kid):
            # Concurrent callers wait for the same fetch and use its result.
            async with self._fetching:
                if self._is_due(kid):
                    self._known = await self._keys.fetch()
                    self._fetched_at = time.monotonic()
        return self._known.get(kid)

    def _is_due(self, kid: str) -> bool:
        age_s = time.monotonic() - self._fetched_at
        return age_s > KEYS_KEPT_S or (kid not in self._known and age_s > REFETCH_MIN_S)


def _forwarded(token: str) -> Claims:
    parts = token.split(".")
    if len(parts) != 3:
        raise Invalid("not a token")
    return _claims(parts[1])


def _claims(part: str) -> Claims:
    try:
        return msgspec.json.decode(_decoded(part), type=Claims)
    except (ValueError, msgspec.DecodeError, binascii.Error) as error:
        raise Invalid("not a token") from error


def _check_claims(claims: Claims, issuers: tuple[str, ...], audience: str, account: str) -> None:
    if claims.iss not in issuers:
        raise Invalid("wrong issuer")
    if claims.aud != audience:
        raise Invalid("wrong audience")
    if claims.exp + SKEW_S <= time.time():
        raise Invalid("expired")
    if claims.email != account or not claims.email_verified:
        raise Invalid("wrong account")


class _Header(msgspec.Struct, frozen=True):
    alg: str
    kid: str


class _Key(msgspec.Struct, frozen=True):
    kid: str
    kty: str
    n: str = ""
    e: str = ""


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[_Key]


def _public_key(key: _Key) -> RSAPublicKey:
    exponent, modulus = (int.from_bytes(_decoded(part), "big") for part in (key.e, key.n))
    public_key = RSAPublicNumbers(exponent, modulus).public_key()
    if public_key.key_size < KEY_BITS_LEAST:
        raise ValueError(f"a key of {public_key.key_size} bits")
    return public_key


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
