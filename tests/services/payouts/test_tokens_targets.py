"""Where the tokens of payouts go follows from the settings, and their queues are those of the policies."""

from pathlib import Path

import pytest

from payonce.engine.messages.model import Message
from payonce.kit.outcomes import Invalid
from payonce.services.payouts.messages.tokens import HOPS, plain
from payonce.services.payouts.policies import QUEUES
from payonce.services.payouts.resources import payout_targets
from payonce.services.payouts.settings import QUEUES as CALLED
from payonce.services.payouts.settings import PayoutsSettings
from payonce.settings import Settings
from tests.services.payouts.tokens_made import FIELDS, MESSAGE_ID

ADDRESSES = {
    "GCSPLIT1_URL": "https://one.example",
    "GCSPLIT2_URL": "https://two.example",
    "GCSPLIT3_URL": "https://three.example",
    "HOSTPAY_WEBHOOK_URL": "https://pay.example/",
}


def settings(folder: Path, **variables: str) -> Settings:
    settings = Settings.model_validate({"PAYONCE_DATA_DIR": folder, **variables})
    return settings.having(PayoutsSettings.model_validate(variables))


def test_every_hop_has_the_queue_of_a_policy() -> None:
    queues = [policy.queue for policy in QUEUES]
    assert [hop.queue for hop in HOPS] == queues
    assert list(CALLED) == queues


def test_each_hop_goes_to_its_role(tmp_path: Path) -> None:
    found = {target.queue: f"{target.url}{target.path}" for target in payout_targets(settings(tmp_path, **ADDRESSES))}
    assert found == {
        "gcsplit-usdt-eth-estimate-queue": "https://two.example/",
        "gcsplit-usdt-eth-response-queue": "https://one.example/usdt-eth-estimate",
        "gcsplit-eth-client-swap-queue": "https://three.example/",
        "gcsplit-eth-client-response-queue": "https://one.example/eth-client-swap",
        "gcsplit-hostpay-trigger-queue": "https://pay.example/",
    }


def test_a_queue_is_called_as_the_operator_calls_it(tmp_path: Path) -> None:
    first, *others = payout_targets(settings(tmp_path, GCSPLIT2_QUEUE="estimates"))
    assert (first.queue, first.called) == ("gcsplit-usdt-eth-estimate-queue", "estimates")
    assert [target.called for target in others] == [target.queue for target in others]


def test_without_addresses_it_is_this_very_process(tmp_path: Path) -> None:
    assert {target.url for target in payout_targets(settings(tmp_path))} == {None}


def test_whoever_has_the_same_settings_reads_what_another_made(tmp_path: Path) -> None:
    """Without set-up the keys are those of the data folder, made by whoever comes first."""
    made, read = payout_targets(settings(tmp_path)), payout_targets(settings(tmp_path))
    for hop, sender, receiver in zip(HOPS, made, read, strict=True):
        body = sender.codec.encode(Message(id=MESSAGE_ID, queue=hop.queue, payload=plain(FIELDS[hop])))
        assert receiver.codec.decode(body, {}).id == MESSAGE_ID


def test_looking_needs_no_key_and_sending_does(tmp_path: Path) -> None:
    targets = payout_targets(settings(tmp_path, DATABASE_URL="postgresql://someone@host/x"))
    with pytest.raises(Invalid, match="SUCCESS_URL_SIGNING_KEY is not set"):
        targets[0].codec.encode(Message(queue=targets[0].queue, payload=plain(FIELDS[HOPS[0]])))
    with pytest.raises(Invalid, match="TPS_HOSTPAY_SIGNING_KEY is not set"):
        targets[4].codec.encode(Message(queue=targets[4].queue, payload=plain(FIELDS[HOPS[4]])))
