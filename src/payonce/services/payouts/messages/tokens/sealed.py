"""Tokens of version 2: encrypted with AES-256-GCM under a key of their hop, so that they open at no other hop.

    2 (1 byte) · key id (4 bytes) · sealed value (payonce.kit.crypto), as base64url without padding

Authenticated data, each prefixed with its length: the version, the key id, the hop's name and its audience. The content
is JSON: the message's id, the token's time, and the hop's fields with amounts as decimal strings.
"""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from payonce.kit.crypto import Keyring, Unopenable, derive_key
from payonce.kit.outcomes import Invalid
from payonce.kit.webhooks.secrets import Secret
from payonce.services.payouts.messages.tokens.hops import Hop, read
from payonce.services.payouts.messages.tokens.refusal import BadToken, BadTokenReason

VERSION: Final = 2
KEY_ID_BYTES: Final = 4
LIFETIME_S: Final = 31 * 86_400
"""Longer than a task may wait (30 days) with its retries; the deadline of a payout is in its row."""
AHEAD_S: Final = 300
"""How far another machine's clock may be ahead of ours."""

_HEADER_BYTES: Final = 1 + KEY_ID_BYTES
_PURPOSE: Final = "payouts.token/2"


class Content(msgspec.Struct, frozen=True):
    """The encrypted content."""

    id: UUID
    made_at: int
    fields: dict[str, Any] | None = None
    """None for a message without the hop's fields: only its record counts."""


_content_of = msgspec.json.Decoder(Content).decode
_bytes_of = msgspec.json.Encoder().encode


class Sealer:
    """Encodes and opens the tokens of one hop. The first key encrypts; all keys decrypt."""

    def __init__(self, hop: Hop, keys: Sequence[Secret]) -> None:
        if not keys:
            raise Invalid("tokens need a key; make one with `openssl rand -hex 32`")
        self._hop = hop
        self._rings = {key_id(key): Keyring({1: derive_key(key.key, f"{_PURPOSE}/{hop.name}")}) for key in keys}
        self._current = key_id(keys[0])

    def make(self, content: Content) -> bytes:
        header = bytes((VERSION,)) + self._current
        return header + self._rings[self._current].seal(_bytes_of(content), self._bound_to(self._current))

    def open(self, token: bytes, now_s: float) -> Content:
        named = token[1:_HEADER_BYTES]
        ring = self._rings.get(named)
        if token[:1] != bytes((VERSION,)) or ring is None:
            raise BadToken(BadTokenReason.FORGED, "the token was made with an unknown key, or is not of version 2")
        try:
            inside = ring.open(token[_HEADER_BYTES:], self._bound_to(named))
        except Unopenable:
            raise BadToken(
                BadTokenReason.FORGED, f"the token was not made for the hop {self._hop.name}, or was tampered with"
            ) from None
        return self._checked(inside, now_s)

    def _checked(self, inside: bytes, now_s: float) -> Content:
        try:
            content = _content_of(inside)
            if content.fields is not None:
                read(self._hop.fields, content.fields)
        except (msgspec.DecodeError, Invalid):
            # Sealed with our key, so by another version of payonce.
            raise BadToken(
                BadTokenReason.MALFORMED, f"the token holds no message of the hop {self._hop.name}"
            ) from None
        if content.made_at > now_s + AHEAD_S:
            raise BadToken(
                BadTokenReason.EARLY, f"the token was made more than {AHEAD_S} s ahead of our clock; set the clocks"
            )
        if content.made_at <= now_s - LIFETIME_S:
            raise BadToken(
                BadTokenReason.EXPIRED, f"the token is older than {LIFETIME_S} s; delivery encodes its message again"
            )
        return content

    def _bound_to(self, named: bytes) -> bytes:
        parts = (bytes((VERSION,)), named, self._hop.name.encode(), self._hop.audience.encode())
        return b"".join(len(part).to_bytes(2, "big") + part for part in parts)


def key_id(key: Secret) -> bytes:
    """Identifies a key: the same in every process, independent of the order of keys. Reveals nothing about the key."""
    return derive_key(key.key, f"{_PURPOSE}/key id", KEY_ID_BYTES)
