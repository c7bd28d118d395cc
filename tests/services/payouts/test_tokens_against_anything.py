"""Whatever bytes come, the codec answers with what arrived or with one clear refusal."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from payonce.kit.crypto import from_base64url, sign, to_base64url
from payonce.services.payouts.messages.tokens import HOPS, Hop, plain, read
from payonce.services.payouts.messages.tokens.codec import BODY_MAX_BYTES, TokenCodec
from payonce.services.payouts.messages.tokens.hops import HopFields
from payonce.services.payouts.messages.tokens.refusal import BadToken
from tests.services.payouts.tokens_made import FIELDS, KEY, MESSAGE_ID, NOW_S, TASK, codec, message

hops = st.sampled_from(HOPS)
headers = st.dictionaries(st.sampled_from(["x-cloudtasks-taskname", "host"]), st.text(max_size=600))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def answered(tokens: TokenCodec, body: bytes, given_headers: dict[str, str]) -> None:
    try:
        arrived = tokens.decode(body, given_headers)
    except BadToken as no:
        told = str(no)
    else:
        assert arrived.message is None or arrived.message.id == arrived.id
        return
    assert told
    assert "\n" not in told


@given(hops, st.binary(max_size=400), headers)
@example(HOPS[0], b'{"token": "' + b"A" * BODY_MAX_BYTES + b'"}', {})
@example(HOPS[0], b"[" * 100_000, {})
def test_any_bytes_as_the_body(hop: Hop, body: bytes, given_headers: dict[str, str]) -> None:
    answered(codec(hop, v1="accept"), body, given_headers)


@given(hops, json_values, json_values)
def test_any_json_as_the_body(hop: Hop, token: Any, record: Any) -> None:
    answered(codec(hop, v1="accept"), json.dumps({"token": token, "record": record}).encode(), TASK)
    answered(codec(hop, v1="accept"), json.dumps(token).encode(), TASK)


@given(hops, st.text(max_size=500))
def test_any_text_as_the_token(hop: Hop, token: str) -> None:
    answered(codec(hop, v1="accept"), json.dumps({"token": token}).encode(), TASK)


@given(hops, st.binary(max_size=400))
def test_any_bytes_under_our_own_signature(hop: Hop, fields: bytes) -> None:
    """An older service with a defect signs anything: what it says is read to the last byte or refused."""
    body = fields + NOW_S.to_bytes(4, "big")
    token = to_base64url(body + sign(KEY.key, body)[:16])
    answered(codec(hop, [KEY], v1="accept"), json.dumps({"token": token}).encode(), TASK)


@pytest.mark.parametrize("v1", ["off", "accept"])
@given(st.data())
def test_no_flipped_bit_is_accepted(v1: str, data: st.DataObject) -> None:
    hop = data.draw(hops)
    made = codec(hop, v1="emit" if v1 == "accept" else "off").encode(message(hop))
    token = bytearray(from_base64url(json.loads(made)["token"]))
    bit = data.draw(st.integers(0, len(token) * 8 - 1))
    token[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadToken):
        codec(hop, v1=v1).decode(json.dumps({"token": to_base64url(bytes(token))}).encode(), TASK)


@pytest.mark.parametrize("v1", ["off", "accept"])
@given(st.data())
def test_no_part_of_a_token_is_accepted(v1: str, data: st.DataObject) -> None:
    hop = data.draw(hops)
    made = codec(hop, v1="emit" if v1 == "accept" else "off").encode(message(hop))
    token = from_base64url(json.loads(made)["token"])
    part = token[: data.draw(st.integers(0, len(token) - 1))] + data.draw(st.sampled_from([b"", b"\x00"]))
    if part != token:
        with pytest.raises(BadToken):
            codec(hop, v1=v1).decode(json.dumps({"token": to_base64url(part)}).encode(), TASK)


def any_fields(hop: Hop, user_ids: int = 1 << 63) -> st.SearchStrategy[HopFields]:
    text = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=60)
    kinds: dict[str, st.SearchStrategy[Any]] = {
        name: text for name in hop.fields.__struct_fields__ if isinstance(getattr(FIELDS[hop], name), str)
    }
    kinds |= {
        name: st.decimals(0, "1e12", allow_nan=False, places=18)
        for name in hop.fields.__struct_fields__
        if name not in kinds
    }
    if "user_id" in kinds:
        kinds["user_id"] = st.integers(0, user_ids - 1)
    return st.builds(hop.fields, **kinds)


@given(st.data())
def test_any_fields_pass_as_they_are_or_are_refused(data: st.DataObject) -> None:
    hop = data.draw(hops)
    fields = data.draw(any_fields(hop))
    assert read(hop.fields, plain(fields)) == fields
    sent = message(hop, **plain(fields))
    assert codec(hop).decode(codec(hop).encode(sent), {}).id == MESSAGE_ID
    try:
        body = json.loads(codec(hop, v1="emit").encode(sent))
    except BadToken:
        return
    arrived = codec(hop, v1="accept").decode(json.dumps({"token": body["token"]}).encode(), TASK).message
    assert arrived is not None
    found = read(hop.fields, arrived.payload)
    for name in hop.fields.__struct_fields__:
        sent_value, came = getattr(fields, name), getattr(found, name)
        # An amount travels as the nearest double, everything else as it is.
        assert came == (Decimal(repr(float(sent_value))) if isinstance(sent_value, Decimal) else sent_value)
