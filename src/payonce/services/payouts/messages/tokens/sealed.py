"""Tokens of version 2: encrypted with AES-256-GCM under a key of their hop, and of no use at any other.

    2 (1 byte) · key id (4 bytes) · sealed value (payonce.kit.crypto), as base64url without padding

Authenticated with it, each after its length: the version, the key id, the hop's name and its audience. Inside is JSON:
the message's id, when the token was made, and the hop's fields with amounts as decimal strings.
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
"""Longer than a task may wait (30 days) with its retries; when a payout is too late its row says."""
AHEAD_S: Final = 300
"""How far another machine's clock may be ahead of ours."""

_HEADER_BYTES: Final = 1 + KEY_ID_BYTES
_PURPOSE: Final = "payouts.token/2"


class Content(msgspec.Struct, frozen=True):
    """What is inside."""

    id: UUID
    made_at: int
    fields: dict[str, Any] | None = None
    """None: the message carries nothing of the hop's, and its record is all there is."""


_content_of = msgspec.json.Decoder(Content).decode
_bytes_of = msgspec.json.Encoder().encode


class Sealer:
    """Makes and opens the tokens of one hop. The first key makes them, every one opens them."""

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
            raise BadToken(
                BadTokenReason.FORGED, "the token was made with a key that is not ours, or is none of version 2"
            )
        try:
            inside = ring.open(token[_HEADER_BYTES:], self._bound_to(named))
        except Unopenable:
            raise BadToken(
                BadTokenReason.FORGED, f"the token was not made for the hop {self._hop.name}, or was changed on its way"
            ) from None
        return self._checked(inside, now_s)

    def _checked(self, inside: bytes, now_s: float) -> Content:
        try:
            content = _content_of(inside)
            if content.fields is not None:
                read(self._hop.fields, content.fields)
        except (msgspec.DecodeError, Invalid):
            # Sealed by a holder of our key, so by a version of ours that says something else.
            raise BadToken(
                BadTokenReason.MALFORMED, f"the token holds no message of the hop {self._hop.name}"
            ) from None
        if content.made_at > now_s + AHEAD_S:
            raise BadToken(
                BadTokenReason.EARLY, f"the token was made more than {AHEAD_S} s ahead of our clock; set the clocks"
            )
        if content.made_at <= now_s - LIFETIME_S:
            raise BadToken(
                BadTokenReason.EXPIRED, f"the token is older than {LIFETIME_S} s; its message is made anew on delivery"
            )
        return content

    def _bound_to(self, named: bytes) -> bytes:
        parts = (bytes((VERSION,)), named, self._hop.name.encode(), self._hop.audience.encode())
        return b"".join(len(part).to_bytes(2, "big") + part for part in parts)


def key_id(key: Secret) -> bytes:
    """The same in every process that has the key, in whatever order its keys are listed; says nothing about it."""
    return derive_key(key.key, f"{_PURPOSE}/key id", KEY_ID_BYTES)
