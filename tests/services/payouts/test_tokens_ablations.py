"""With a safeguard of the tokens taken out, named tests fail. A check that cannot fail is none."""

import hmac
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from uuid import uuid5

import pytest

from payonce.kit.crypto import derive_key
from payonce.services.payouts.messages.tokens import ESTIMATE_REQUEST, SWAP_REQUEST, codec, packed, sealed
from payonce.services.payouts.messages.tokens.refusal import BadToken, BadTokenReason
from payonce.services.payouts.messages.tokens.sealed import Sealer
from tests.ablations import Ablation, patched
from tests.services.payouts import test_tokens


def one_key_for_all(secret: bytes, purpose: str, length: int = 32) -> bytes:
    return derive_key(secret, purpose.rpartition("/")[0], length)


def bound_without_hop(self: Sealer, named: bytes) -> bytes:
    return b"\x02" + named


def cut(name: str, value: object, packed_before: Callable[[str, object], bytes] = packed._packed) -> bytes:
    """As the services before us did: what is too long is cut."""
    return packed_before(name, value[:16] if name in packed._FIXED and isinstance(value, str) else value)


def nameless(hop: Any, task: str) -> Any:
    return uuid5(hop, task.partition("/")[2])


ABLATIONS: dict[str, tuple[list[Ablation], Callable[[], None]]] = {
    "the hop in a token's key and in what is authenticated": (
        [patched(sealed, "derive_key", one_key_for_all), patched(Sealer, "_bound_to", bound_without_hop)],
        lambda: test_tokens.test_a_token_of_version_2_opens_at_its_own_hop_alone(ESTIMATE_REQUEST, SWAP_REQUEST),
    ),
    "the audience in what is authenticated": (
        [patched(Sealer, "_bound_to", bound_without_hop)],
        test_tokens.test_the_payload_of_another_audience_does_not_open,
    ),
    "the lifetime of version 2": (
        [patched(sealed, "LIFETIME_S", 10**9)],
        test_tokens.test_version_2_lives_31_days_and_no_longer,
    ),
    "the bound on clocks that are ahead": (
        [patched(sealed, "AHEAD_S", 10**9)],
        test_tokens.test_version_2_lives_31_days_and_no_longer,
    ),
    "the day that version 1 is accepted": (
        [patched(packed, "BEHIND_S", 10**9)],
        lambda: test_tokens.test_version_1_is_accepted_for_a_day_and_five_minutes_ahead(86_401, BadTokenReason.EXPIRED),
    ),
    "the signature of version 1": (
        [patched(hmac, "compare_digest", lambda *_: True)],
        lambda: test_tokens.test_after_a_rotation_both_keys_open_and_the_new_one_makes(ESTIMATE_REQUEST),
    ),
    "the refusal to cut": (
        [patched(packed, "_packed", cut)],
        lambda: test_tokens.test_version_1_refuses_what_it_would_have_to_cut_and_takes_every_amount(
            SWAP_REQUEST, {"unique_id": "A1B2C3D4E5F6G7H8I"}, "unique_id has 17 bytes"
        ),
    ),
    "the hop in an older message's id": (
        [patched(codec, "uuid5", nameless)],
        test_tokens.test_two_hops_may_have_tasks_of_one_name,
    ),
}


@pytest.mark.parametrize("name", ABLATIONS)
def test_a_named_test_misses_the_safeguard(name: str) -> None:
    taken_out, check = ABLATIONS[name]
    with ExitStack() as stack:
        for take_out in taken_out:
            stack.enter_context(take_out())
        with pytest.raises((AssertionError, pytest.fail.Exception, BadToken)):
            check()
