"""Tokens are what the layouts say: literal ones open, and ours are read by a second implementation of a few lines."""

import base64
import hashlib
import hmac
import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from payonce.services.payouts.messages.tokens import HOPS, HOST_PAY, SWAP_RESPONSE, Hop, plain
from payonce.services.payouts.messages.tokens.hops import MADE_AT, OLDER
from tests.services.payouts.tokens_made import (
    FIELDS,
    HOST_WALLET,
    KEY,
    MESSAGE_ID,
    NOW_S,
    TASK,
    codec,
    keys_of,
    message,
)

GOLDEN = {
    (version, name): token
    for version, name, token in (
        line.split() for line in Path(__file__).with_name("golden_tokens.txt").read_text().splitlines()
    )
}
"""Made once by the second implementation below, by hand."""

LAYOUTS = {
    "1->2": "I16sSSSd",
    "2->1": "I16sSSSdddd",
    "1->3": "16sI16sSSSd",
    "3->1": "16sI16sSSSSSddSSSSS",
    "1->hostpay": "16sSSSdS",
}
"""S stands for a length and a text; all else is `struct`'s own."""
AUDIENCES = {
    "1->2": "payouts.estimator/",
    "2->1": "payouts.orchestrator/usdt-eth-estimate",
    "1->3": "payouts.swapper/",
    "3->1": "payouts.orchestrator/eth-client-swap",
    "1->hostpay": "payouts.hostpay/",
}
every_hop = pytest.mark.parametrize("hop", HOPS, ids=lambda hop: hop.name)


def key_of(hop: Hop) -> bytes:
    return keys_of(hop)[0].key


def raw(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def packed_again(hop: Hop, values: list[Any]) -> str:
    """Version 1 by `struct` and `hmac` alone."""
    parts, kinds = [], LAYOUTS[hop.name].replace("16s", "F")
    for kind, value in zip(kinds, values, strict=True):
        if kind == "S":
            parts.append(struct.pack(">B", len(value.encode())) + value.encode())
        elif kind == "F":
            parts.append(struct.pack(">16s", value.encode()))
        else:
            parts.append(struct.pack(f">{kind}", float(value) if kind == "d" else value))
    body = b"".join(parts) + struct.pack(">I", NOW_S)
    mac = hmac.new(key_of(hop), body, hashlib.sha256).digest()[:16]
    return base64.urlsafe_b64encode(body + mac).rstrip(b"=").decode()


def opened_again(hop: Hop, text: str) -> Any:
    """Version 2 by `cryptography` alone."""
    token = raw(text)
    name = hop.name.encode()
    assert token[:1] == b"\x02"
    assert token[1:5] == HKDF(SHA256(), 4, None, b"payonce/1/payouts.token/2/key id").derive(key_of(hop))
    key = HKDF(SHA256(), 32, None, b"payonce/1/payouts.token/2/" + name).derive(key_of(hop))
    bound = b"".join(
        struct.pack(">H", len(part)) + part for part in (b"\x02", token[1:5], name, AUDIENCES[hop.name].encode())
    )
    return json.loads(AESGCM(key).decrypt(token[7:19], token[19:], token[5:7] + bound))


@every_hop
def test_a_literal_token_of_version_2_opens(hop: Hop) -> None:
    body = json.dumps({"token": GOLDEN["2", hop.name]}).encode()
    assert codec(hop).decode(body, {}).id == MESSAGE_ID


@every_hop
def test_a_literal_token_of_version_1_opens_to_its_fields(hop: Hop) -> None:
    body = json.dumps({"token": GOLDEN["1", hop.name]}).encode()
    arrived = codec(hop, v1="accept").decode(body, TASK).message
    assert arrived is not None
    assert arrived.payload == {**plain(FIELDS[hop]), OLDER: "accept", MADE_AT: NOW_S}


@every_hop
def test_a_second_implementation_reads_version_2(hop: Hop) -> None:
    body = json.loads(codec(hop).encode(message(hop)))
    assert list(body) == ["token"]
    assert opened_again(hop, body["token"]) == {
        "id": str(MESSAGE_ID),
        "made_at": NOW_S,
        "fields": plain(FIELDS[hop]),
    }


@every_hop
def test_a_second_implementation_makes_the_very_bytes_of_version_1(hop: Hop) -> None:
    token = json.loads(codec(hop, v1="emit").encode(message(hop)))["token"]
    assert token == GOLDEN["1", hop.name] == packed_again(hop, list(msgspec.structs.astuple(FIELDS[hop])))


@pytest.mark.parametrize(
    ("name", "size", "characters"),
    [("1->2", 100, 134), ("2->1", 124, 166), ("1->3", 116, 155), ("3->1", 207, 276), ("1->hostpay", 110, 147)],
)
def test_version_1_has_the_sizes_that_are_written_down(name: str, size: int, characters: int) -> None:
    hop = next(hop for hop in HOPS if hop.name == name)
    token = json.loads(codec(hop, v1="emit").encode(message(hop)))["token"]
    assert (len(raw(token)), len(token)) == (size, characters)


def test_with_the_host_wallet_to_refund_to_a_swap_response_has_249_bytes() -> None:
    body = codec(SWAP_RESPONSE, v1="emit").encode(message(SWAP_RESPONSE, refund_address=HOST_WALLET))
    token = json.loads(body)["token"]
    assert (len(raw(token)), len(token)) == (249, 332)


def test_hostpay_has_a_key_of_its_own() -> None:
    assert keys_of(HOST_PAY) != [KEY]
