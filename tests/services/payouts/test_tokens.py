"""A token opens at its own hop, in its time and under our keys, and says what was sent to the last digit."""

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from payonce.engine.messages.model import Message
from payonce.engine.messages.push import Codec, DecodedTask
from payonce.kit.outcomes import Invalid
from payonce.kit.webhooks.secrets import Secret
from payonce.services.payouts.messages.tokens import (
    ESTIMATE_REQUEST,
    ESTIMATE_RESPONSE,
    HOPS,
    HOST_PAY,
    SWAP_REQUEST,
    Hop,
    HostPay,
    plain,
    read,
)
from payonce.services.payouts.messages.tokens.codec import TokenCodec
from payonce.services.payouts.messages.tokens.hops import MADE_AT, OLDER
from payonce.services.payouts.messages.tokens.packed import from_double, to_double
from payonce.services.payouts.messages.tokens.refusal import BadToken, BadTokenReason
from payonce.services.payouts.metrics import HOP_TOKEN_FAILURES
from tests.services.payouts.tokens_made import (
    FIELDS,
    KEY,
    MESSAGE_ID,
    NOW_S,
    TASK,
    Clock,
    codec,
    keys_of,
    message,
)

DAY_S = 86_400
every_hop = pytest.mark.parametrize("hop", HOPS, ids=lambda hop: hop.name)


def refused(tokens: Codec, body: bytes, why: BadTokenReason, headers: Any = TASK) -> None:
    with pytest.raises(BadToken) as no:
        tokens.decode(body, headers)
    assert no.value.reason is why


def as_older_services_send(hop: Hop, clock: Clock | None = None, **changes: Any) -> bytes:
    """Version 1 without the record that we put beside it."""
    body = json.loads(codec(hop, clock=clock, v1="emit").encode(message(hop, **changes)))
    return json.dumps({"token": body["token"]}).encode()


@every_hop
def test_version_2_names_the_message_and_leaves_the_rest_to_its_record(hop: Hop) -> None:
    arrived = codec(hop).decode(codec(hop).encode(message(hop)), {})
    assert (arrived.id, arrived.message) == (MESSAGE_ID, None)


@pytest.mark.parametrize("made", HOPS, ids=lambda hop: hop.name)
@pytest.mark.parametrize("tried", HOPS, ids=lambda hop: hop.name)
def test_a_token_of_version_2_opens_at_its_own_hop_alone(made: Hop, tried: Hop) -> None:
    body = codec(made, [KEY]).encode(message(made))
    if made is tried:
        assert codec(tried, [KEY]).decode(body, TASK).id == MESSAGE_ID
    else:
        refused(codec(tried, [KEY], v1="accept"), body, BadTokenReason.FORGED)


@pytest.mark.parametrize("made", HOPS, ids=lambda hop: hop.name)
@pytest.mark.parametrize("tried", HOPS, ids=lambda hop: hop.name)
def test_a_token_of_version_1_fits_no_other_layout(made: Hop, tried: Hop) -> None:
    body = json.dumps({"token": json.loads(codec(made, [KEY], v1="emit").encode(message(made)))["token"]}).encode()
    if made is not tried:
        refused(codec(tried, [KEY], v1="accept"), body, BadTokenReason.MALFORMED)


def test_the_payload_of_another_audience_does_not_open() -> None:
    elsewhere = replace(ESTIMATE_REQUEST, role="hostpay")
    refused(codec(elsewhere), codec(ESTIMATE_REQUEST).encode(message(ESTIMATE_REQUEST)), BadTokenReason.FORGED)


def test_version_2_lives_31_days_and_no_longer() -> None:
    clock = Clock()
    body = codec(ESTIMATE_REQUEST).encode(message(ESTIMATE_REQUEST))
    clock.now_s = NOW_S + 31 * DAY_S - 1
    assert codec(ESTIMATE_REQUEST, clock=clock).decode(body, {}).id == MESSAGE_ID
    clock.now_s = NOW_S + 31 * DAY_S
    refused(codec(ESTIMATE_REQUEST, clock=clock), body, BadTokenReason.EXPIRED)
    clock.now_s = NOW_S - 301
    refused(codec(ESTIMATE_REQUEST, clock=clock, v1="accept"), body, BadTokenReason.EARLY)


@pytest.mark.parametrize(
    ("passed_s", "why"),
    [(DAY_S, None), (DAY_S + 1, BadTokenReason.EXPIRED), (-300, None), (-301, BadTokenReason.EARLY)],
)
def test_version_1_is_accepted_for_a_day_and_five_minutes_ahead(passed_s: int, why: BadTokenReason | None) -> None:
    body = as_older_services_send(ESTIMATE_REQUEST)
    tokens = codec(ESTIMATE_REQUEST, clock=Clock(NOW_S + passed_s), v1="accept")
    if why is None:
        assert tokens.decode(body, TASK).message is not None
    elif why is BadTokenReason.EXPIRED:
        known_as = codec(ESTIMATE_REQUEST, v1="accept").decode(body, TASK).id
        assert tokens.decode(body, TASK) == DecodedTask(known_as), "it begins nothing, and brings what it has begun"
        refused(tokens, body, BadTokenReason.UNNAMED, headers={})
    else:
        refused(tokens, body, why)


@every_hop
def test_version_1_is_refused_unless_it_is_enabled(hop: Hop) -> None:
    body = as_older_services_send(hop)
    refused(codec(hop), body, BadTokenReason.FORGED)
    assert codec(hop, v1="accept").decode(body, TASK).message is not None


@every_hop
def test_after_a_rotation_both_keys_open_and_the_new_one_makes(hop: Hop) -> None:
    [old], new = keys_of(hop), Secret("the-key-after-the-rotation-of-keys")
    for v1 in ("off", "emit"):
        before, between, after = (codec(hop, keys, v1=v1) for keys in ([old], [new, old], [new]))
        assert between.decode(before.encode(message(hop)), TASK).id == MESSAGE_ID
        assert after.decode(between.encode(message(hop)), TASK).id == MESSAGE_ID
        refused(before, between.encode(message(hop)), BadTokenReason.FORGED)
    older = as_older_services_send(hop)
    assert codec(hop, [new, old], v1="accept").decode(older, TASK).message is not None
    refused(codec(hop, [new], v1="accept"), older, BadTokenReason.FORGED)


def test_keys_are_asked_for_with_the_first_token() -> None:
    asked = []

    def keys() -> list[Secret]:
        asked.append("keys")
        return [KEY]

    tokens = TokenCodec(ESTIMATE_REQUEST, keys, clock=Clock())
    assert asked == []
    body = tokens.encode(message(ESTIMATE_REQUEST))
    assert tokens.decode(body, {}).id == MESSAGE_ID
    assert asked == ["keys"]


@every_hop
def test_an_older_services_message_is_the_same_however_often_its_task_comes(hop: Hop) -> None:
    tokens = codec(hop, v1="accept")
    first, later = as_older_services_send(hop), as_older_services_send(hop, Clock(NOW_S + 60))
    once, again = tokens.decode(first, TASK), tokens.decode(later, TASK)
    other = tokens.decode(first, {"x-cloudtasks-taskname": "3656158401"})
    assert once.message is not None
    assert again.message is not None
    assert once.id == again.id == again.message.id
    assert once.message.payload == {**plain(FIELDS[hop]), OLDER: "accept", MADE_AT: NOW_S}
    assert again.message.payload == {**once.message.payload, MADE_AT: NOW_S + 60}
    assert (once.message.id, once.message.queue) == (once.id, hop.queue)
    assert other.id != once.id


def test_two_hops_may_have_tasks_of_one_name() -> None:
    ids = {codec(hop, v1="accept").decode(as_older_services_send(hop), TASK).id for hop in HOPS}
    assert len(ids) == len(HOPS)


def test_version_1_without_a_tasks_name_is_refused() -> None:
    body = as_older_services_send(ESTIMATE_REQUEST)
    refused(codec(ESTIMATE_REQUEST, v1="accept"), body, BadTokenReason.UNNAMED, headers={})


@every_hop
def test_what_we_emit_as_version_1_finds_its_own_record_after_days(hop: Hop) -> None:
    body = codec(hop, v1="emit").encode(message(hop))
    late = codec(hop, clock=Clock(NOW_S + 20 * DAY_S), v1="emit")
    assert (late.decode(body, TASK).id, late.decode(body, TASK).message) == (MESSAGE_ID, None)
    assert codec(hop).decode(body, {}).id == MESSAGE_ID, "also where version 1 was switched off meanwhile"


def test_a_record_that_is_forged_is_not_made_good_by_a_good_token() -> None:
    body = json.loads(codec(ESTIMATE_REQUEST, v1="emit").encode(message(ESTIMATE_REQUEST)))
    record = json.loads(codec(ESTIMATE_RESPONSE).encode(message(ESTIMATE_RESPONSE)))["token"]
    refused(codec(ESTIMATE_REQUEST, v1="emit"), json.dumps({**body, "record": record}).encode(), BadTokenReason.FORGED)


def test_a_reminder_without_the_hops_fields_travels_as_its_id() -> None:
    reminder = Message(id=MESSAGE_ID, queue="q", payload={"payout_id": "p-1"})
    for v1 in ("off", "emit"):
        body = codec(HOST_PAY, v1=v1).encode(reminder)
        assert list(json.loads(body)) == ["token"]
        assert codec(HOST_PAY).decode(body, {}).id == MESSAGE_ID


@pytest.mark.parametrize(
    ("hop", "changes", "named"),
    [
        (ESTIMATE_REQUEST, {"user_id": 1 << 32}, "user_id"),
        (ESTIMATE_REQUEST, {"closed_channel_id": "-1002345678901234"}, "closed_channel_id has 17 bytes"),
        (SWAP_REQUEST, {"unique_id": "A1B2C3D4E5F6G7H8I"}, "unique_id has 17 bytes"),
        (SWAP_REQUEST, {"closed_channel_id": "é" * 9}, "closed_channel_id has 18 bytes"),
        (SWAP_REQUEST, {"eth_amount": "0.011386956521739130"}, None),
        (SWAP_REQUEST, {"eth_amount": "0.011386956521739130434"}, None),
        (ESTIMATE_REQUEST, {"adjusted_amount_usdt": "123456789012345678"}, None),
    ],
)
def test_version_1_refuses_what_it_would_have_to_cut_and_takes_every_amount(
    hop: Hop, changes: dict[str, Any], named: str | None
) -> None:
    assert codec(hop).encode(message(hop, **changes)), "version 2 carries it"
    if named is None:
        assert codec(hop, v1="emit").encode(message(hop, **changes))
        return
    with pytest.raises(BadToken, match=named) as no:
        codec(hop, v1="emit").encode(message(hop, **changes))
    assert no.value.reason is BadTokenReason.UNFIT


@pytest.mark.parametrize(
    "changes",
    [
        {"user_id": -1},
        {"user_id": 1 << 63},
        {"user_id": "7"},
        {"user_id": True},
        {"wallet_address": "x" * 256},
        {"wallet_address": "a\x00b"},
        {"wallet_address": "\ud800"},
        {"wallet_address": None},
        {"adjusted_amount_usdt": 29.1},
        {"adjusted_amount_usdt": 29},
        {"adjusted_amount_usdt": "NaN"},
        {"adjusted_amount_usdt": "-1"},
        {"adjusted_amount_usdt": "-0"},
        {"adjusted_amount_usdt": "Infinity"},
        {"adjusted_amount_usdt": "1e24"},
        {"adjusted_amount_usdt": "1e-37"},
        {"adjusted_amount_usdt": "0e999999"},
    ],
)
def test_a_payload_that_is_not_the_hops_makes_no_token(changes: dict[str, Any]) -> None:
    with pytest.raises(BadToken) as no:
        codec(ESTIMATE_REQUEST).encode(message(ESTIMATE_REQUEST, **changes))
    assert no.value.reason is BadTokenReason.UNFIT


def test_a_field_that_is_missing_is_named() -> None:
    payload = plain(FIELDS[HOST_PAY])
    del payload["payin_address"]
    with pytest.raises(Invalid, match="payin_address"):
        read(HostPay, payload)


@given(st.decimals("0", "1e9", allow_nan=False, places=6))
def test_usdt_amounts_pass_version_1_unchanged(amount: Decimal) -> None:
    assert from_double("amount", to_double("amount", amount)) == amount


@given(st.decimals("0", "1e6", allow_nan=False, places=18))
def test_every_amount_in_wei_passes_version_1_as_its_nearest_double(amount: Decimal) -> None:
    """Most have none that stands for exactly them; the nearest is off by one part in 2^53 at most."""
    sent = Decimal(to_double("amount", amount))
    assert abs(sent - amount) <= amount * Decimal(2) ** -53


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_every_double_has_one_decimal_that_leads_back_to_it(double: float) -> None:
    assert to_double("amount", from_double("amount", abs(double))) == double


@pytest.mark.parametrize("double", [float("nan"), float("inf"), float("-inf"), -1.0, -0.0])
def test_a_double_that_is_no_amount_is_refused(double: float) -> None:
    with pytest.raises(Invalid):
        from_double("amount", double)


def counted(hop: Hop, operation: str, why: BadTokenReason) -> float:
    found: float = HOP_TOKEN_FAILURES.labels(hop.name, operation, why.value)._value.get()
    return found


def test_failures_are_counted_and_told_without_a_secret_or_a_field() -> None:
    tokens = codec(HOST_PAY, v1="emit")
    sealed, packed = (
        json.loads(codec(HOST_PAY, [KEY], v1=v1).encode(message(HOST_PAY)))["token"] for v1 in ("off", "emit")
    )
    before = counted(HOST_PAY, "decrypt", BadTokenReason.FORGED), counted(HOST_PAY, "encrypt", BadTokenReason.UNFIT)
    with capture_logs() as told:
        for token in (sealed, packed):
            refused(tokens, json.dumps({"token": token}).encode(), BadTokenReason.FORGED)
        with pytest.raises(BadToken):
            tokens.encode(message(HOST_PAY, unique_id="A1B2C3D4E5F6G7H8I"))
    assert (
        counted(HOST_PAY, "decrypt", BadTokenReason.FORGED),
        counted(HOST_PAY, "encrypt", BadTokenReason.UNFIT),
    ) == (
        before[0] + 2,
        before[1] + 1,
    )
    assert [(line["event"], line["operation"]) for line in told] == [
        ("token_refused", "decrypt"),
        ("token_refused", "decrypt"),
        ("token_refused", "encrypt"),
    ]
    text = str(told)
    for secret in (*(key.reveal() for key in (*keys_of(HOST_PAY), KEY)), sealed, packed, "A1B2C3D4", "0xd2d2"):
        assert secret not in text
