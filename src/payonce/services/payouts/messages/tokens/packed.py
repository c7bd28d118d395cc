"""Tokens of version 1: the binary layouts of older services. They are signed but not encrypted.

    the hop's fields in their order · time (>I) · first 16 bytes of HMAC-SHA256(key, all before)
    as base64url without padding, all numbers big-endian

    unique_id, closed_channel_id   16 bytes, padded with NUL; longer text is refused, never truncated
    user_id                        >I, so only ids below 2³²
    other texts                    length (1 byte) and UTF-8
    amounts                        >d, the nearest double; the record beside our own tokens has the exact decimal

The signature does not cover the hop: only the layout, which must fit to the last byte, distinguishes hops.
"""

import hmac
import math
import struct
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from payonce.kit.crypto import sign
from payonce.kit.outcomes import Invalid
from payonce.kit.webhooks.secrets import Secret
from payonce.services.payouts.messages.tokens.hops import Hop, HopFields, check_field
from payonce.services.payouts.messages.tokens.refusal import BadToken, BadTokenReason

BEHIND_S: Final = 86_400
AHEAD_S: Final = 300
FIXED_BYTES: Final = 16
MAC_BYTES: Final = 16
USER_ID_END: Final = 1 << 32

_FIXED: Final = frozenset({"unique_id", "closed_channel_id"})
_U32: Final = struct.Struct(">I")
_DOUBLE: Final = struct.Struct(">d")
_TRAILER_BYTES: Final = _U32.size + MAC_BYTES


class Packer:
    """Encodes and opens the tokens of one hop. The first key signs; all keys verify."""

    def __init__(self, hop: Hop, keys: Sequence[Secret]) -> None:
        if not keys:
            raise Invalid("tokens need a key; make one with `openssl rand -hex 32`")
        self._hop = hop
        self._keys = [key.key for key in keys]
        self._layout = [(field.name, field.type) for field in msgspec.structs.fields(hop.fields)]

    def make(self, fields: HopFields, now_s: float) -> bytes:
        body = b"".join(_packed(name, getattr(fields, name)) for name, _ in self._layout) + _U32.pack(int(now_s))
        return body + _mac(self._keys[0], body)

    def open(self, token: bytes, now_s: float) -> HopFields:
        if len(token) <= _TRAILER_BYTES:
            raise BadToken(BadTokenReason.MALFORMED, "the bytes are too few for a token")
        body, mac = token[:-MAC_BYTES], token[-MAC_BYTES:]
        if not any(hmac.compare_digest(_mac(key, body), mac) for key in self._keys):
            raise BadToken(BadTokenReason.FORGED, "the token was signed with an unknown key, or was tampered with")
        (made_at,) = _U32.unpack(body[-_U32.size :])
        if made_at < now_s - BEHIND_S:
            raise BadToken(BadTokenReason.EXPIRED, f"the token is older than {BEHIND_S} s")
        if made_at > now_s + AHEAD_S:
            raise BadToken(
                BadTokenReason.EARLY, f"the token was made more than {AHEAD_S} s ahead of our clock; set the clocks"
            )
        return self._fields(body[: -_U32.size])

    @staticmethod
    def made_at(token: bytes) -> int:
        """The token's own timestamp; valid only after `open` has verified the token."""
        made_at: int = _U32.unpack_from(token, len(token) - _TRAILER_BYTES)[0]
        return made_at

    def _fields(self, body: bytes) -> HopFields:
        try:
            return self._hop.fields(**dict(self._unpacked(body)))
        except (Invalid, struct.error, UnicodeDecodeError):
            raise BadToken(
                BadTokenReason.MALFORMED, f"the token does not have the layout of the hop {self._hop.name}"
            ) from None

    def _unpacked(self, body: bytes) -> Iterator[tuple[str, Any]]:
        at = 0
        for name, kind in self._layout:
            if kind is int:
                value, size = _U32.unpack_from(body, at)[0], _U32.size
            elif kind is Decimal:
                value, size = from_double(name, _DOUBLE.unpack_from(body, at)[0]), _DOUBLE.size
            elif name in _FIXED:
                value, size = _taken(body, at, FIXED_BYTES).rstrip(b"\x00").decode(), FIXED_BYTES
            else:
                length = _taken(body, at, 1)[0]
                value, size = _taken(body, at + 1, length).decode(), 1 + length
            yield name, value
            at += size
        if at != len(body):
            raise Invalid("bytes are left over")


def to_double(name: str, amount: Decimal) -> float:
    """The nearest double, with a relative error of at most 2^-53; most amounts in wei have no exact one."""
    double = float(amount)
    if not math.isfinite(double):
        raise BadToken(BadTokenReason.UNFIT, f"{name} is larger than any double; send tokens of version 2 there")
    return double


def from_double(name: str, double: float) -> Decimal:
    """The shortest decimal that rounds to this double, as its sender wrote it."""
    if not math.isfinite(double) or math.copysign(1, double) < 0:
        raise Invalid(f"{name} is not an amount")
    return Decimal(repr(double))


def _packed(name: str, value: object) -> bytes:
    if isinstance(value, Decimal):
        double = to_double(name, value)
        try:
            check_field(name, from_double(name, double))
        except Invalid:
            # At the limits of an amount the nearest double may exceed them, and no reader would accept the token.
            raise BadToken(
                BadTokenReason.UNFIT, f"{name} has no nearest double that is an amount; send tokens of version 2 there"
            ) from None
        return _DOUBLE.pack(double)
    if isinstance(value, int):
        if value >= USER_ID_END:
            raise BadToken(BadTokenReason.UNFIT, f"{name} is 2^32 or more; send tokens of version 2 there")
        return _U32.pack(value)
    text = str(value).encode()
    if name not in _FIXED:
        return bytes((len(text),)) + text
    if len(text) > FIXED_BYTES:
        raise BadToken(BadTokenReason.UNFIT, f"{name} has {len(text)} bytes, but the token has room for {FIXED_BYTES}")
    return text.ljust(FIXED_BYTES, b"\x00")


def _taken(body: bytes, at: int, size: int) -> bytes:
    found = body[at : at + size]
    if len(found) != size:
        raise Invalid("the bytes end early")
    return found


def _mac(key: bytes, body: bytes) -> bytes:
    return sign(key, body)[:MAC_BYTES]
