"""The checksums of addresses: Base58Check of Bitcoin and Tron, and Bitcoin's Bech32 and Bech32m (BIP 173, BIP 350)."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

BASE58: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
BECH32: Final = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
BITCOIN: Final = "bc"
"""Prefix of Bitcoin's Bech32 addresses."""
PAY_TO_KEY: Final = b"\x00"
PAY_TO_SCRIPT: Final = b"\x05"
TRON: Final = b"\x41"
"""The first byte of a Base58Check address names its network and type."""
HASH_BYTES: Final = 20

_SUM_BYTES: Final = 4
_SUM_LETTERS: Final = 6
_CONSTANTS: Final = {"bech32": 1, "bech32m": 0x2BC830A3}
_GENERATOR: Final = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_TAPROOT: Final = 1
"""The first version of a witness program that Bech32m is for."""
_PROGRAM_BYTES: Final = {0: (HASH_BYTES, 32), _TAPROOT: (32,)}
"""Lengths of the programs that Bitcoin binds to a key or a script (BIP 141, BIP 341). Anybody can spend payments to a
program of another length or a later version."""


def base58check(payload: bytes) -> str:
    """The Base58Check text of a version byte and its payload."""
    whole = payload + _base58_sum(payload)
    number, letters = int.from_bytes(whole, "big"), []
    while number:
        number, place = divmod(number, len(BASE58))
        letters.append(BASE58[place])
    zeros = len(whole) - len(whole.lstrip(b"\x00"))
    return BASE58[0] * zeros + "".join(reversed(letters))


def is_base58check(text: str, versions: Sequence[bytes]) -> bool:
    """Whether the text holds one of these version bytes, a hash of 20 bytes and a matching checksum."""
    number = 0
    for letter in text:
        place = BASE58.find(letter)
        if place < 0:
            return False
        number = number * len(BASE58) + place
    whole = number.to_bytes((number.bit_length() + 7) // 8, "big")
    zeros = len(text) - len(text.lstrip(BASE58[0]))
    whole = b"\x00" * zeros + whole
    payload, checksum = whole[:-_SUM_BYTES], whole[-_SUM_BYTES:]
    return len(payload) == 1 + HASH_BYTES and payload[:1] in versions and checksum == _base58_sum(payload)


def segwit(prefix: str, version: int, program: bytes) -> str:
    """The Bech32 (version 0) or Bech32m text of a witness program."""
    data = [version, *_regrouped(program, 8, 5, pad=True)]
    constant = _CONSTANTS["bech32" if version < _TAPROOT else "bech32m"]
    polymod = _polymod([*_expanded(prefix), *data, *[0] * _SUM_LETTERS]) ^ constant
    checksum = [(polymod >> 5 * (_SUM_LETTERS - 1 - place)) & 31 for place in range(_SUM_LETTERS)]
    return f"{prefix}1" + "".join(BECH32[value] for value in (*data, *checksum))


def witness_program(text: str, prefix: str) -> tuple[int, bytes] | None:
    """Version and program of a lower-case address; None if the prefix or the checksum does not match."""
    begin, _, rest = text.rpartition("1")
    data = [BECH32.find(letter) for letter in rest]
    if begin != prefix or len(data) <= _SUM_LETTERS or -1 in data:
        return None
    version, values = data[0], data[1:-_SUM_LETTERS]
    constant = _CONSTANTS["bech32" if version < _TAPROOT else "bech32m"]
    if _polymod([*_expanded(prefix), *data]) != constant:
        return None
    try:
        return version, bytes(_regrouped(values, 5, 8, pad=False))
    except ValueError:
        return None


def has_owner(version: int, program: bytes) -> bool:
    """Whether payments to this witness program belong to a key or a script."""
    return len(program) in _PROGRAM_BYTES.get(version, ())


def _base58_sum(payload: bytes) -> bytes:
    return hashlib.sha256(hashlib.sha256(payload).digest()).digest()[:_SUM_BYTES]


def _expanded(prefix: str) -> list[int]:
    return [ord(letter) >> 5 for letter in prefix] + [0] + [ord(letter) & 31 for letter in prefix]


def _polymod(values: Iterable[int]) -> int:
    checksum = 1
    for value in values:
        top = checksum >> 25
        checksum = (checksum & 0x1FFFFFF) << 5 ^ value
        for place, factor in enumerate(_GENERATOR):
            checksum ^= factor if top >> place & 1 else 0
    return checksum


def _regrouped(values: Iterable[int], from_bits: int, to_bits: int, *, pad: bool) -> list[int]:
    """The same bits in groups of another size. Raises ValueError if padding bits are set."""
    left, count, found = 0, 0, []
    for value in values:
        left, count = left << from_bits | value, count + from_bits
        while count >= to_bits:
            count -= to_bits
            found.append(left >> count & (1 << to_bits) - 1)
        left &= (1 << count) - 1
    if pad:
        return [*found, left << to_bits - count] if count else found
    if count >= from_bits or left:
        raise ValueError("padding is not zero")
    return found
