"""Keccak-256 against published digests."""

import hashlib
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payonce.kit.keccak import keccak_256
from payonce.kit.outcomes import Unavailable

RATE = 136


@pytest.mark.parametrize(
    ("text", "digest"),
    [
        ("", "c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"),
        ("abc", "4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45"),
        ("testing", "5f16f4c7f149ac4f9510d9cf8cf384038ad348b3bcdc01915f95de12df9d1b02"),
    ],
)
def test_published_digests(text: str, digest: str) -> None:
    assert keccak_256(text.encode()).hex() == digest


@pytest.mark.parametrize(
    ("length", "digest"),
    [
        (1, "bc36789e7a1e281436464229828f817d6612f7b477d66591ff96a9e064bcc98a"),
        (134, "861e165162f806cd361c4421a48f205820ddf4deb02db9f041f48e179ddada97"),
        (135, "cbdfd9dee5faad3818d6b06f95a219fd290b0e1706f6a82e5a595b9ce9faca62"),
        (136, "7ce759f1ab7f9ce437719970c26b0a66ff11fe3e38e17df89cf5d29c7d7f807e"),
        (137, "ac73d4fae68b8453f764007c1a20ce95994187861f0c3227a3a8e99a73a3b1db"),
        (271, "27eceb59ebc3dc8a04a5b135be641591a7278540e4556a2ba9f408194e666ec3"),
        (272, "8e2476e65823b24d96ebe239f2c1534cdf763e689e2410c3b1cb0c74e6177bfc"),
        (1000, "af692982e84a5a9688359025660a7857cd28ee7c8d867cfa1677baf2e6d1f63b"),
    ],
)
def test_digests_around_the_ends_of_blocks(length: int, digest: str) -> None:
    """As payonce's own implementation, verified against hashlib's permutation, computed them."""
    assert keccak_256(bytes(number % 251 for number in range(length))).hex() == digest


@given(st.binary(max_size=2 * RATE))
def test_keccak_is_not_sha3(data: bytes) -> None:
    assert keccak_256(data) != hashlib.sha3_256(data).digest()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Crypto.Hash", None)
    with pytest.raises(Unavailable, match="needs the package pycryptodome; run: pip install pycryptodome"):
        keccak_256(b"")
