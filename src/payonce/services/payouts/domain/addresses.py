"""Address formats and memos. The checks are syntactic; only the exchange and the network know whether an address
exists."""

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
"""On an unlisted network this is an EVM address, even if misspelled."""
_ZERO: Final = "0x" + "0" * 40
"""It has no key: funds sent there are lost."""
_ANY: Final = re.compile(r"[\x21-\x7e]{4,200}")
"""An address of an unknown network: printable, without spaces."""
MEMO_SHAPE: Final = "[!-~]([ -~]{0,118}[!-~])?"
"""Blanks at either end are a caller's mistake: the recipient could not match such a memo."""
MEMO_RULE: Final = "must be 1 to 120 printable ASCII characters without leading or trailing blanks"

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
"""Networks with EVM-shaped addresses but another checksum by letter case: EIP-1191, and Zilliqa's."""


def is_memo(text: str) -> bool:
    return re.fullmatch(MEMO_SHAPE, text) is not None


def in_one_spelling(network: str, address: str) -> str:
    """The address in its canonical spelling. Bech32 may be in upper case, as in QR codes; in lower case it matches the
    client's other payouts."""
    small = address.lower()
    if address.isascii() and address == address.upper() and small.startswith(_BECH32_BEGINS.get(network, ())):
        return small
    return address


def hash_key(transaction: str) -> str:
    """The form in which transaction hashes are compared: hexadecimal digits after 0x may have either case."""
    return transaction.lower() if transaction[:2].lower() == "0x" else transaction


def key_of(address: str) -> str:
    """The form in which addresses are compared. The hexadecimal digits of an EVM address may have either case; all
    other addresses are case-sensitive. `payouts.address_key` does the same in the database."""
    return address.lower() if _EVM.fullmatch(address) else address


def checksummed(address: str) -> str:
    """An EVM address in the spelling of EIP-55; any other address unchanged."""
    if not _EVM.fullmatch(address):
        return address
    small = address[2:].lower()
    hashed = keccak_256(small.encode()).hex()
    return "0x" + "".join(
        letter.upper() if int(nibble, 16) >= 8 else letter for letter, nibble in zip(small, hashed, strict=False)
    )


def in_capitals(address: str) -> str:
    """An EVM address with upper-case digits; any other address unchanged."""
    return f"0x{address[2:].upper()}" if _EVM.fullmatch(address) else address


def wrong_with(network: str, address: str) -> str | None:
    """Why the text is not a usable address of the network, as the end of a sentence; None if it is usable."""
    shape = _shape_of(network, address)
    if not shape.fullmatch(in_one_spelling(network, address)):
        return f"is not an address of the network {network}"
    if shape is _EVM and address == _ZERO:
        return "is the zero address: it has no key, so funds sent there are lost; give the client's own"
    program = witness_program(in_one_spelling(network, address), BITCOIN) if network == "btc" else None
    if program is not None and not has_owner(*program):
        return "is of a kind that has no owner: funds sent there are lost; give the client's own"
    if not _checksum_holds(network, in_one_spelling(network, address)):
        rule = "letter case (EIP-55 checksum)" if shape is _EVM else "checksum"
        return f"is mistyped: its {rule} does not match; copy it again"
    return None


def _shape_of(network: str, address: str) -> re.Pattern[str]:
    """Not every EVM network is listed; on the others the shape of the address shows that EIP-55 applies."""
    return SHAPES.get(network) or (_EVM if _SEEMS_EVM.fullmatch(address) else _ANY)


def _checksum_holds(network: str, address: str) -> bool:
    """True for networks whose checksum we do not know; the exchange checks those."""
    if _shape_of(network, address) is _EVM and network not in _OTHER_CHECKSUMS:
        # An address in a single case carries no checksum.
        return address[2:] in (address[2:].lower(), address[2:].upper()) or address == checksummed(address)
    if network == "btc" and address.startswith(f"{BITCOIN}1"):
        return witness_program(address, BITCOIN) is not None
    if network == "btc":
        return is_base58check(address, (PAY_TO_KEY, PAY_TO_SCRIPT))
    if network == "trx":
        return is_base58check(address, (TRON,))
    return True
