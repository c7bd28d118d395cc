"""The envelope: its wire format, raw objects, and refusals at put."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from payonce.engine.messages.model import (
    ERROR_MAX_LENGTH,
    NAME_MAX_LENGTH,
    PAYLOAD_MAX_BYTES,
    Message,
    check_message,
    clean_text,
    encode_payloads,
    message_from_wire,
    message_to_wire,
    schema_version,
)
from payonce.kit.outcomes import Invalid

texts = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
payloads = st.dictionaries(texts, values, max_size=4)
moments = st.datetimes(datetime(2000, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
envelopes = st.builds(
    Message,
    queue=st.just("q:sub:renewals"),
    id=st.uuids(),
    action=texts,
    correlation_id=st.none() | texts,
    idempotency_key=st.none() | texts,
    trace_id=st.text(min_size=1, max_size=10),
    created_at=st.none() | moments,
    attempts=st.integers(0, 1_000),
    max_attempts=st.none() | st.integers(1, 1_000),
    not_before=st.none() | moments,
    lane=st.none() | texts,
    payload=payloads,
    extra=st.dictionaries(texts.map(lambda name: f"x_{name}"), values, max_size=3),
)


@given(envelopes)
def test_an_envelope_survives_the_wire(message: Message) -> None:
    assert message_from_wire(message.queue, message_to_wire(message)) == message


def test_the_wire_form_has_the_field_names_of_the_playbook() -> None:
    message = Message(queue="q:sub:renewals", action="renew", attempts=2, payload={"id": 1})
    wire = json.loads(message_to_wire(message))
    assert set(wire) == {
        "id",
        "action",
        "correlation_id",
        "idempotency_key",
        "trace_id",
        "created_at",
        "attempts",
        "payload",
    }
    assert wire["trace_id"] == wire["id"], "a message without a trace begins one"


def test_unknown_fields_survive_and_a_newer_version_is_recognised() -> None:
    body = b'{"payload": {}, "schema_version": 2, "sender": {"name": "shop"}}'
    message = message_from_wire("work", body)
    assert schema_version(message) == 2
    again = json.loads(message_to_wire(message))
    assert (again["schema_version"], again["sender"]) == (2, {"name": "shop"})


@given(payloads)
def test_a_raw_object_becomes_the_payload_of_a_message_with_the_same_id_everywhere(raw: dict[str, Any]) -> None:
    raw.pop("payload", None)
    body = json.dumps(raw).encode()
    message = message_from_wire("work", body)
    assert message.payload == raw
    assert message.id == message_from_wire("work", body).id


def test_raw_objects_with_other_bytes_are_other_messages() -> None:
    first, second = message_from_wire("work", b'{"action": "pay", "n": 1}'), message_from_wire("work", b'{"n": 2}')
    assert first.id != second.id
    assert (first.action, second.action) == ("pay", "")


def test_an_envelope_without_an_id_gets_one_from_its_bytes() -> None:
    body = b'{"action": "pay", "payload": {"n": 1}}'
    assert message_from_wire("work", body) == message_from_wire("work", body)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[1]", b'"text"', b"12", b"null", b"\xff\xfe", b'{"n": 1} trailing', b'{"n": NaN}', b"[" * 100_000],
    ids=["empty", "cut off", "list", "text", "number", "null", "not text", "trailing", "NaN", "too deep"],
)
def test_what_is_not_one_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid, match="work"):
        message_from_wire("work", body)


@pytest.mark.parametrize(
    "field",
    ['"attempts": "many"', '"id": "no uuid"', '"created_at": "yesterday"', '"max_attempts": 1.5', '"action": 7'],
)
def test_a_malformed_envelope_is_refused_with_the_field(field: str) -> None:
    name = field.split('"')[1]
    with pytest.raises(Invalid, match=name):
        message_from_wire("work", f'{{"payload": {{}}, {field}}}'.encode())


@given(st.integers(-(10**60), 10**60))
def test_integers_of_any_size_are_exact(amount: int) -> None:
    message = Message(queue="work", payload={"wei": amount})
    assert message_from_wire("work", message_to_wire(message)).payload == {"wei": amount}
    assert json.loads(encode_payloads([message])[0]) == {"wei": amount}


@given(payloads)
def test_a_stored_payload_is_what_was_put(payload: dict[str, Any]) -> None:
    assert json.loads(encode_payloads([Message(queue="work", payload=payload)])[0]) == payload


@pytest.mark.parametrize(
    "payload",
    [{"rate": float("nan")}, {"rates": [None, {"deep": float("inf")}]}, {"object": object()}, {("a", "b"): 1}],
    ids=["NaN", "infinity", "object", "key"],
)
def test_what_json_cannot_carry_is_refused(payload: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="work"):
        encode_payloads([Message(queue="work", payload=payload)])


def test_a_payload_may_be_as_large_as_the_limit_and_no_larger() -> None:
    frame = len('{"scan":""}')
    encode_payloads([Message(queue="work", payload={"scan": "x" * (PAYLOAD_MAX_BYTES - frame)})])
    with pytest.raises(Invalid, match=r"262,145.*262,144"):
        encode_payloads([Message(queue="work", payload={"scan": "x" * (PAYLOAD_MAX_BYTES - frame + 1)})])


REFUSED: list[dict[str, Any]] = [
    {"payload": ["list"]},
    {"action": "x" * (NAME_MAX_LENGTH + 1)},
    {"correlation_id": "a\x00b"},
    {"lane": "\ud800"},
    {"idempotency_key": "x" * (NAME_MAX_LENGTH + 1)},
    {"max_attempts": 0},
    {"attempts": -1},
    {"attempts": 2**31},
    {"created_at": datetime(2026, 1, 1)},  # noqa: DTZ001
    {"not_before": datetime(2026, 1, 1)},  # noqa: DTZ001
    {"delay_s": float("nan")},
]


@pytest.mark.parametrize("fields", REFUSED, ids=lambda fields: next(iter(fields)))
def test_a_message_the_store_could_not_keep_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=next(iter(fields))):
        check_message(Message(**{"queue": "work", **fields}))


def test_names_of_the_full_length_in_any_script_are_kept() -> None:
    full = "ж" * NAME_MAX_LENGTH
    check_message(
        Message(queue="work", action=full, correlation_id=full, idempotency_key=full, trace_id=full, lane=full)
    )


@given(st.text(st.characters(), max_size=200))
def test_cleaned_text_can_always_be_stored(text: str) -> None:
    cleaned = clean_text(text)
    assert "\x00" not in cleaned
    cleaned.encode()
    assert len(cleaned) == len(text)
    if text.isprintable() and text.isascii():
        assert cleaned == text


def test_a_long_text_is_cut_and_says_so() -> None:
    cleaned = clean_text("x" * 10 * ERROR_MAX_LENGTH)
    assert len(cleaned) == ERROR_MAX_LENGTH
    assert cleaned.endswith("…")
