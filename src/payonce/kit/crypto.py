"""Sealed values and signatures: AES-256-GCM under versioned keys, HMAC-SHA256, and their text encodings.

    sealed value:  format (1 byte) · key version (1 byte) · nonce (12 bytes) · ciphertext and tag

Random nonces allow 2³² seals per key (NIST SP 800-38D). `derive` gives each purpose its own keys, so that purposes do
not share that limit, and a value sealed for one cannot be opened as another.
"""

import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Mapping
from typing import Final, NoReturn

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from payonce.kit.outcomes import Invalid

KEY_BYTES: Final = 32
VERSION_MAX: Final = 255
PLAINTEXT_MAX_BYTES: Final = 16 * 1024 * 1024

_FORMAT: Final = 1
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_HEADER_BYTES: Final = 2
_SEALED_MIN_BYTES: Final = _HEADER_BYTES + _NONCE_BYTES + _TAG_BYTES
_SEALED_MAX_BYTES: Final = _SEALED_MIN_BYTES + PLAINTEXT_MAX_BYTES
_ENTRY: Final = re.compile(r"k(?P<version>\d{1,3}):(?P<key>.*)", re.ASCII | re.DOTALL)
_BASE64URL: Final = re.compile(r"[A-Za-z0-9_-]*={0,2}")
_HOW_TO_MAKE: Final = "make one with `openssl rand -base64 32`"


class Unopenable(Invalid):
    """The bytes were not sealed by these keys for this use, or were changed."""


class Keyring:
    """Keys by version. Every version opens; the current one seals. Cannot be shown, compared or pickled."""

    __slots__ = ("_ciphers", "_current", "_keys")

    def __init__(self, keys: Mapping[int, bytes], current: int | None = None) -> None:
        """Without `current`, the highest version seals."""
        if not keys:
            raise Invalid(f"a keyring needs at least one key; {_HOW_TO_MAKE}")
        for version, key in keys.items():
            if type(version) is not int or not 1 <= version <= VERSION_MAX:
                raise Invalid(f"a key version is a whole number from 1 to {VERSION_MAX}")
            if not isinstance(key, bytes) or len(key) != KEY_BYTES:
                raise Invalid(f"key k{version} must be {KEY_BYTES} bytes; {_HOW_TO_MAKE}")
        chosen = max(keys) if current is None else current
        if chosen not in keys:
            raise Invalid(f"the current key is version {chosen}, but the keyring does not have it; add the key")
        self._keys = dict(keys)
        self._current = chosen
        self._ciphers = {version: AESGCM(key) for version, key in keys.items()}

    @classmethod
    def from_text(cls, text: str, current: int | None = None) -> "Keyring":
        """Parses `k1:base64…,k2:base64…`, as in the environment. Errors quote no part of the text: it may be a key."""
        keys: dict[int, bytes] = {}
        entries = [entry.strip() for entry in text.strip().strip(",").split(",")]
        for number, entry in enumerate(entries, start=1):
            match = _ENTRY.fullmatch(entry)
            if match is None:
                raise Invalid(f"entry {number} of the keys has not the form k1:base64; {_HOW_TO_MAKE}")
            version = int(match["version"])
            if version in keys:
                raise Invalid(f"the keys name k{version} twice; a new key needs a new version")
            keys[version] = _key_of(match["key"], version)
        return cls(keys, current)

    @property
    def current(self) -> int:
        return self._current

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(sorted(self._keys))

    def derive(self, purpose: str) -> "Keyring":
        """A keyring of the same versions for one purpose (HKDF-SHA256)."""
        if not purpose:
            raise Invalid("derived keys need a purpose, such as orders.token")
        return Keyring({version: derive_key(key, purpose) for version, key in self._keys.items()}, self._current)

    def seal(self, plaintext: bytes, aad: bytes) -> bytes:
        """Seals a value. `aad` names what it belongs to (a tenant, a row, a hop): it opens only with the same `aad`."""
        if len(plaintext) > PLAINTEXT_MAX_BYTES:
            raise Invalid(f"{len(plaintext)} bytes are too many to seal; the limit is {PLAINTEXT_MAX_BYTES}")
        header = bytes((_FORMAT, self._current))
        nonce = os.urandom(_NONCE_BYTES)
        return header + nonce + self._ciphers[self._current].encrypt(nonce, plaintext, header + aad)

    def open(self, sealed: bytes, aad: bytes) -> bytes:
        """Returns the plaintext; raises Unopenable for anything else."""
        if not _SEALED_MIN_BYTES <= len(sealed) <= _SEALED_MAX_BYTES or sealed[0] != _FORMAT:
            raise Unopenable("the bytes are not a sealed value")
        header = bytes(sealed[:_HEADER_BYTES])
        cipher = self._ciphers.get(header[1])
        if cipher is None:
            raise Unopenable(
                f"sealed with key k{header[1]}, which the keyring does not have: add it to read old values"
            )
        nonce, ciphertext = sealed[_HEADER_BYTES : _HEADER_BYTES + _NONCE_BYTES], sealed[_HEADER_BYTES + _NONCE_BYTES :]
        try:
            return cipher.decrypt(nonce, ciphertext, header + aad)
        except InvalidTag:
            raise Unopenable("sealed by other keys, for another use, or changed on the way") from None

    def __repr__(self) -> str:
        return f"Keyring(versions={list(self.versions)}, current={self._current})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("keys are not pickled or copied: pass the keyring itself")


def derive_key(secret: bytes, purpose: str, length: int = KEY_BYTES) -> bytes:
    """Derives a key for one purpose from a secret of any length (HKDF-SHA256)."""
    if not secret:
        raise Invalid("a derived key needs a secret to be derived from")
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=b"payonce/1/" + purpose.encode()).derive(secret)


def sign(key: bytes, message: bytes) -> bytes:
    """HMAC-SHA256."""
    if not key:
        raise Invalid("a signature needs a key")
    return hmac.digest(key, message, hashlib.sha256)


def verify(key: bytes, message: bytes, signature: bytes) -> bool:
    """Compares signatures in constant time."""
    return hmac.compare_digest(sign(key, message), signature)


def sign_hex(key: bytes, message: bytes) -> str:
    return sign(key, message).hex()


def verify_hex(key: bytes, message: bytes, signature: str) -> bool:
    """False, without an error, for text that is no signature: it is untrusted."""
    expected = sign_hex(key, message)
    return hmac.compare_digest(expected.encode(), signature.lower().encode("utf-8", "replace"))


def to_base64url(data: bytes) -> str:
    """Encodes without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def from_base64url(text: str) -> bytes:
    """Decodes with or without padding. Raises Invalid unless unused bits are zero: each value has one encoding."""
    bare = text.rstrip("=")
    if not _BASE64URL.fullmatch(text) or len(bare) % 4 == 1:
        raise Invalid("the text is not base64url")
    data = base64.urlsafe_b64decode(bare + "=" * (-len(bare) % 4))
    if to_base64url(data) != bare:
        raise Invalid("the text is not base64url")
    return data


def _key_of(text: str, version: int) -> bytes:
    """Decodes either base64 alphabet, padded or not, since tools print both."""
    try:
        bare = text.strip().rstrip("=").replace("-", "+").replace("_", "/")
        key = base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise Invalid(f"key k{version} is not base64; {_HOW_TO_MAKE}") from None
    if len(key) != KEY_BYTES:
        raise Invalid(f"key k{version} is {len(key)} bytes long and must be {KEY_BYTES}; {_HOW_TO_MAKE}")
    return key
