"""Keccak-256 against published digests, and its permutation against hashlib's."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payonce.kit.keccak import keccak_256, sha3_256

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


@pytest.mark.parametrize("length", [0, 1, RATE - 2, RATE - 1, RATE, RATE + 1, 2 * RATE - 1, 2 * RATE, 1_000])
def test_around_the_ends_of_blocks_it_is_hashlibs(length: int) -> None:
    data = bytes(number % 251 for number in range(length))
    assert sha3_256(data) == hashlib.sha3_256(data).digest()


@given(st.binary(max_size=3 * RATE))
def test_any_bytes_are_hashed_as_by_hashlib(data: bytes) -> None:
    assert sha3_256(data) == hashlib.sha3_256(data).digest()


@given(st.binary(max_size=2 * RATE))
def test_keccak_is_not_sha3(data: bytes) -> None:
    assert keccak_256(data) != sha3_256(data)
