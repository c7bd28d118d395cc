"""Sealed values open with their own keys, purpose and use alone; no text shows a key."""

import base64
import copy
import hashlib
import hmac
import pickle
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payonce.kit import crypto
from payonce.kit.crypto import Keyring, Unopenable
from payonce.kit.outcomes import Invalid

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
BEFORE, AFTER = Keyring({1: OLD}), Keyring({1: OLD, 2: NEW}, current=2)
SEALED = AFTER.seal(b"private", b"tenant 7")


@given(st.binary(max_size=300), st.binary(max_size=50))
def test_what_is_sealed_opens(plaintext: bytes, aad: bytes) -> None:
    assert AFTER.open(AFTER.seal(plaintext, aad), aad) == plaintext


def test_the_layout_is_format_version_nonce_ciphertext_tag() -> None:
    assert SEALED[:2] == bytes((1, 2))
    assert len(SEALED) == 2 + 12 + len(b"private") + 16
    assert AFTER.seal(b"private", b"")[2:14] != AFTER.seal(b"private", b"")[2:14]


def test_after_a_rotation_old_values_open_and_new_ones_use_the_new_key() -> None:
    old = BEFORE.seal(b"x", b"")
    assert AFTER.open(old, b"") == b"x"
    with pytest.raises(Unopenable, match="k2"):
        BEFORE.open(SEALED, b"tenant 7")


def test_without_a_choice_the_highest_version_seals() -> None:
    assert Keyring({1: OLD, 2: NEW}).current == 2
    assert Keyring({1: OLD, 2: NEW}, current=1).seal(b"", b"")[1] == 1


@pytest.mark.parametrize(
    ("ring", "aad"),
    [
        (AFTER, b""),
        (AFTER, b"tenant 8"),
        (AFTER, b"tenant 7 "),
        (Keyring({2: OLD}), b"tenant 7"),
        (AFTER.derive("other"), b"tenant 7"),
    ],
)
def test_another_use_key_or_purpose_does_not_open(ring: Keyring, aad: bytes) -> None:
    with pytest.raises(Unopenable):
        ring.open(SEALED, aad)


def test_the_header_cannot_be_moved_into_the_use() -> None:
    """The header's bytes are authenticated, at a fixed position."""
    same_key = Keyring({1: OLD, 2: OLD}, current=1)
    relabelled = bytearray(same_key.seal(b"x", b"use"))
    relabelled[1] = 2
    with pytest.raises(Unopenable):
        same_key.open(bytes(relabelled), b"use")


@given(st.integers(0, len(SEALED) * 8 - 1))
def test_no_flipped_bit_is_accepted(bit: int) -> None:
    changed = bytearray(SEALED)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Unopenable):
        AFTER.open(bytes(changed), b"tenant 7")


@pytest.mark.parametrize("length", range(len(SEALED)))
def test_no_truncated_value_is_accepted(length: int) -> None:
    with pytest.raises(Unopenable):
        AFTER.open(SEALED[:length], b"tenant 7")


@given(st.one_of(st.binary(max_size=100), st.binary(max_size=100).map(lambda tail: bytes((1, 2)) + tail)))
def test_any_bytes_are_unopenable_and_nothing_worse(stranger: bytes) -> None:
    with pytest.raises(Unopenable):
        AFTER.open(stranger, b"")


def test_derived_keys_are_hkdf_and_differ_by_purpose() -> None:
    token = AFTER.derive("token")
    assert AFTER.derive("token").open(token.seal(b"x", b""), b"") == b"x"
    assert token.versions == AFTER.versions
    assert token.current == AFTER.current
    extracted = hmac.digest(bytes(32), NEW, hashlib.sha256)
    expected = hmac.digest(extracted, b"payonce/1/token\x01", hashlib.sha256)
    assert Keyring({2: expected}).open(token.seal(b"y", b""), b"") == b"y"
    with pytest.raises(Invalid, match="purpose"):
        AFTER.derive("")


def test_too_much_to_seal_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crypto, "PLAINTEXT_MAX_BYTES", 3)
    with pytest.raises(Invalid, match="limit is 3"):
        AFTER.seal(b"1234", b"")


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_keys_are_read_from_text(encode: Callable[[bytes], bytes]) -> None:
    old, new = (encode(key).decode() for key in (OLD, bytes([251]) * 32))
    ring = Keyring.from_text(f" k1:{old}, k2:{new.rstrip('=')},\n")
    assert ring.versions == (1, 2)
    assert ring.open(BEFORE.seal(b"x", b""), b"") == b"x"
    assert Keyring.from_text(f"k1:{old},k2:{new}", current=1).current == 1


SECRET = base64.b64encode(b"S" * 32).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        SECRET,
        f"k0:{SECRET}",
        f"k256:{SECRET}",
        f"kx:{SECRET}",
        f"1:{SECRET}",
        f"k1:{SECRET},k1:{SECRET}",
        f"k1:{SECRET[:20]}",
        f"k1:{SECRET}!",
        f"k1:{SECRET}{SECRET}",
        f"k1:{SECRET};k2:{SECRET}",
        "k1:",
    ],
)
def test_unusable_keys_are_refused_without_being_shown(text: str) -> None:
    with pytest.raises(Invalid) as refusal:
        Keyring.from_text(text)
    assert SECRET[:8] not in str(refusal.value)
    assert refusal.value.__cause__ is None


@pytest.mark.parametrize(
    ("keys", "current"), [({}, None), ({1: b"short"}, None), ({1: OLD}, 2), ({True: OLD}, None), ({300: OLD}, None)]
)
def test_an_impossible_keyring_is_refused(keys: dict[int, bytes], current: int | None) -> None:
    with pytest.raises(Invalid):
        Keyring(keys, current)


def test_keys_are_never_shown_pickled_or_copied() -> None:
    for shown in (repr(AFTER), str(AFTER), f"{AFTER}"):
        assert shown == "Keyring(versions=[1, 2], current=2)"
    assert not hasattr(AFTER, "__dict__")
    for leak in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="not pickled"):
            leak(AFTER)


def test_signatures_are_hmac_sha256() -> None:
    # RFC 4231, test case 2.
    expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    key, message = b"Jefe", b"what do ya want for nothing?"
    assert crypto.sign_hex(key, message) == expected
    assert crypto.verify(key, message, bytes.fromhex(expected))
    assert crypto.verify_hex(key, message, expected)
    assert crypto.verify_hex(key, message, expected.upper())
    assert not crypto.verify(b"other", message, bytes.fromhex(expected))
    with pytest.raises(Invalid, match="key"):
        crypto.sign(b"", message)


@given(st.text())
def test_any_text_as_signature_is_only_false(text: str) -> None:
    assert not crypto.verify_hex(b"key", b"message", text)
    assert not crypto.verify(b"key", b"message", text.encode("utf-8", "replace"))


@given(st.binary())
def test_base64url_reads_back(data: bytes) -> None:
    text = crypto.to_base64url(data)
    assert "=" not in text
    assert crypto.from_base64url(text) == data
    assert crypto.from_base64url(base64.urlsafe_b64encode(data).decode()) == data


@given(st.text())
def test_any_text_is_base64url_in_one_spelling_or_invalid(text: str) -> None:
    try:
        data = crypto.from_base64url(text)
    except Invalid:
        return
    assert crypto.to_base64url(data) == text.rstrip("=")


@pytest.mark.parametrize("text", ["A", "AB CD", "AA+A", "AB", "AAA=====", "\N{CYRILLIC CAPITAL LETTER A}AAA"])
def test_odd_base64url_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        crypto.from_base64url(text)
