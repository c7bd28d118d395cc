"""Whether something can be an address at all. What it may be in truth, only the exchange and the network know."""

import re
from typing import Final

_BASE58: Final = "1-9A-HJ-NP-Za-km-z"
_BECH32: Final = "02-9ac-hj-np-z"
_EVM: Final = re.compile(r"0x[0-9a-fA-F]{40}")
_ANY: Final = re.compile(r"[\x21-\x7e]{4,200}")
"""Of a network whose addresses we do not know: printable, without spaces."""

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


def looks_like_an_address(network: str, address: str) -> bool:
    return bool(SHAPES.get(network, _ANY).fullmatch(address))
