"""The key of a simulated wallet. Its transactions have their own format and a real signature, which the chain verifies.

Real chains sign RLP with secp256k1 over keccak-256; callers see no difference.
"""

import hashlib
import re
from functools import lru_cache
from typing import Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from payonce.kit.outcomes import Invalid
from payonce.vendors.evm.port import ADDRESS_PATTERN, Fees, Payment, Signed

PUBLIC_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
READ_KEPT: Final = 64


class Transaction(msgspec.Struct, frozen=True, array_like=True):
    """The signed content. Addresses are in lower case."""

    chain_id: int
    nonce: int
    to: str
    minor: str
    asset: str
    exponent: int
    max_fee: int
    priority_fee: int
    gas_limit: int

    @property
    def payment(self) -> Payment:
        return Payment(self.to, self.minor, self.asset, self.exponent)

    @property
    def fees(self) -> Fees:
        return Fees(self.max_fee, self.priority_fee, self.gas_limit)


class SimulatedKey:
    """Derived from a text, so a wallet is the same after a restart."""

    def __init__(self, secret: str, chain_id: int) -> None:
        self._private = Ed25519PrivateKey.from_private_bytes(hashlib.sha256(secret.encode()).digest())
        self._public = self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.address = _address(self._public)
        self.chain_id = chain_id

    def sign(self, payment: Payment, nonce: int, fees: Fees) -> Signed:
        if not re.fullmatch(ADDRESS_PATTERN, payment.to):
            raise Invalid(f"{payment.to[:60]!r} is no address on this chain: 0x and 40 hexadecimal digits")
        body = msgspec.json.encode(
            Transaction(
                self.chain_id,
                nonce,
                payment.to.lower(),
                payment.minor,
                payment.asset,
                payment.exponent,
                fees.max_fee,
                fees.priority_fee,
                fees.gas_limit,
            )
        )
        raw = self._public + self._private.sign(body) + body
        return Signed(hash_of(raw), f"0x{raw.hex()}", nonce, fees)


def hash_of(raw: bytes) -> str:
    return f"0x{hashlib.sha256(raw).hexdigest()}"


# A node reads each transaction twice: when it arrives, and from its journal.
@lru_cache(maxsize=READ_KEPT)
def read_raw(raw: str) -> tuple[str, str, Transaction]:
    """Hash, sender and content of signed bytes. Raises Invalid if a SimulatedKey did not sign them."""
    try:
        document = bytes.fromhex(raw.removeprefix("0x"))
        public, rest = document[:PUBLIC_BYTES], document[PUBLIC_BYTES:]
        signature, body = rest[:SIGNATURE_BYTES], rest[SIGNATURE_BYTES:]
        Ed25519PublicKey.from_public_bytes(public).verify(signature, body)
        return hash_of(document), _address(public), msgspec.json.decode(body, type=Transaction)
    except (ValueError, InvalidSignature, msgspec.MsgspecError) as error:
        raise Invalid("the bytes are no signed transaction of this chain") from error


def _address(public: bytes) -> str:
    return f"0x{hashlib.sha256(public).hexdigest()[-40:]}"
