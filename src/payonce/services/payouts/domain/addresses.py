"""Whether something can be an address at all. What it may be in truth, only the exchange and the network know."""

import re
from typing import Final

from payonce.kit.keccak import keccak_256
from payonce.services.payouts.domain.checksums import (
    BITCOIN,
    PAY_TO_KEY,
    PAY_TO_SCRIPT,
    TRON,
    has_owner,
    is_base58check,
    witness_program,
)

_BASE58: Final = "1-9A-HJ-NP-Za-km-z"
_BECH32: Final = "02-9ac-hj-np-z"
_EVM: Final = re.compile(r"0x[0-9a-fA-F]{40}")
_SEEMS_EVM: Final = re.compile(r"0[xX][0-9a-fA-F]{40}")
"""On a network that is not listed, this is an address of an EVM network, also where it is misspelled."""
_ZERO: Final = "0x" + "0" * 40
"""Of no key: what is sent there is lost to everybody."""
_ANY: Final = re.compile(r"[\x21-\x7e]{4,200}")
"""Of a network whose addresses we do not know: printable, without spaces."""
MEMO_SHAPE: Final = "[!-~]([ -~]{0,118}[!-~])?"
"""Blanks at an end are a slip of the caller's: a memo with them, or of them alone, finds nobody at the other side."""
MEMO_RULE: Final = "must be 1 to 120 printable ASCII characters, with no blank at its beginning or end"

_BECH32_BEGINS: Final = {"btc": ("bc1",), "ltc": ("ltc1",)}
SEGWIT: Final = tuple(_BECH32_BEGINS)
"""Networks with addresses in Bech32."""
SHAPES: Final = {
    **dict.fromkeys(("eth", "bsc", "matic", "arbitrum", "op", "base", "avaxc", "zksync", "linea", "ftm"), _EVM),
    "btc": re.compile(rf"[13][{_BASE58}]{{25,34}}|bc1[{_BECH32}]{{11,71}}"),
    "ltc": re.compile(rf"[LM3][{_BASE58}]{{25,34}}|ltc1[{_BECH32}]{{11,71}}"),
    "doge": re.compile(rf"[DA9][{_BASE58}]{{25,34}}"),
    "trx": re.compile(rf"T[{_BASE58}]{{33}}"),
    "xrp": re.compile(rf"r[{_BASE58}]{{24,34}}"),
    "sol": re.compile(rf"[{_BASE58}]{{32,44}}"),
    "ton": re.compile(r"[EUk0][Qf][A-Za-z0-9_/+-]{46}|-?[01]:[0-9a-fA-F]{64}"),
    "xmr": re.compile(rf"[48][{_BASE58}]{{94}}([{_BASE58}]{{11}})?"),
}

_OTHER_CHECKSUMS: Final = frozenset({"rsk", "rbtc", "zil"})
"""Networks with addresses of that shape whose capital letters follow a rule of their own: EIP-1191, and Zilliqa's."""


def is_memo(text: str) -> bool:
    return re.fullmatch(MEMO_SHAPE, text) is not None


def looks_like_an_address(network: str, address: str) -> bool:
    return wrong_with(network, address) is None


def in_one_spelling(network: str, address: str) -> str:
    """Bech32 may be all in capitals, as QR codes have it. It is the same address, so it is written as the others are,
    and its owner is one client."""
    small = address.lower()
    if address.isascii() and address == address.upper() and small.startswith(_BECH32_BEGINS.get(network, ())):
        return small
    return address


def hash_key(transaction: str) -> str:
    """By which two names of a transaction are compared: hexadecimal digits behind 0x may have either case."""
    return transaction.lower() if transaction[:2].lower() == "0x" else transaction


def key_of(address: str) -> str:
    """By which two addresses are compared. One of an EVM network is 20 bytes, whose hexadecimal digits may have either
    case; all other addresses are told apart by every letter. `payouts.address_key` does the same in the database."""
    return address.lower() if _EVM.fullmatch(address) else address


def checksummed(address: str) -> str:
    """An EVM address in the spelling of EIP-55; any other as it is."""
    if not _EVM.fullmatch(address):
        return address
    small = address[2:].lower()
    hashed = keccak_256(small.encode()).hex()
    return "0x" + "".join(
        letter.upper() if int(nibble, 16) >= 8 else letter for letter, nibble in zip(small, hashed, strict=False)
    )


def in_capitals(address: str) -> str:
    """An EVM address with capital digits; any other as it is."""
    return f"0x{address[2:].upper()}" if _EVM.fullmatch(address) else address


def wrong_with(network: str, address: str) -> str | None:
    """Why it cannot be an address of the network, as the end of a sentence; None when it can."""
    shape = _shape_of(network, address)
    if not shape.fullmatch(in_one_spelling(network, address)):
        return f"is no address of the network {network}"
    if shape is _EVM and address == _ZERO:
        return "is the zero address, whose key nobody has: what is paid there is lost; give the client's own"
    program = witness_program(in_one_spelling(network, address), BITCOIN) if network == "btc" else None
    if program is not None and not has_owner(*program):
        return "is of a kind that nobody owns: what is paid there is lost; give the client's own"
    if not _checksum_holds(network, in_one_spelling(network, address)):
        rule = "its capital letters, the checksum of EIP-55," if shape is _EVM else "its checksum"
        fits = "do not fit it" if shape is _EVM else "does not fit it"
        return f"is mistyped: {rule} {fits}; copy it anew"
    return None


def _shape_of(network: str, address: str) -> re.Pattern[str]:
    """Not every EVM network is listed: there the address itself tells that EIP-55 applies to it."""
    return SHAPES.get(network) or (_EVM if _SEEMS_EVM.fullmatch(address) else _ANY)


def _checksum_holds(network: str, address: str) -> bool:
    """Of the networks whose checksum is known here; of any other, the exchange will tell."""
    if _shape_of(network, address) is _EVM and network not in _OTHER_CHECKSUMS:
        # With one case alone an address carries no checksum.
        return address[2:] in (address[2:].lower(), address[2:].upper()) or address == checksummed(address)
    if network == "btc" and address.startswith(f"{BITCOIN}1"):
        return witness_program(address, BITCOIN) is not None
    if network == "btc":
        return is_base58check(address, (PAY_TO_KEY, PAY_TO_SCRIPT))
    if network == "trx":
        return is_base58check(address, (TRON,))
    return True
