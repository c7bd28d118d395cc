"""Keccak-256 as Ethereum uses it. hashlib has SHA3-256 alone, which pads the message differently."""

from typing import Final

from payonce.kit.outcomes import Unavailable

NO_PACKAGE: Final = "Keccak-256 needs the package pycryptodome; run: pip install pycryptodome"


def keccak_256(data: bytes) -> bytes:
    """The digest, 32 bytes. Raises Unavailable without pycryptodome."""
    try:
        from Crypto.Hash import keccak
    except ImportError as error:
        raise Unavailable(NO_PACKAGE) from error
    return keccak.new(digest_bits=256, data=data).digest()
