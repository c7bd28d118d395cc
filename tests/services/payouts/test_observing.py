"""What gauges say of payouts: how many have not ended, and for how long the one that moved longest ago has stood."""

from payonce.engine.monitoring.metrics import REGISTRY
from payonce.services.payouts.metrics import observe_payouts
from payonce.testing import OpenStage
from tests.services.payouts.payouts_stage import open_office

REFUSED_ADDRESS = "bc1p0xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqzk5jj0"


def shown(name: str, state: str) -> float | None:
    return REGISTRY.get_sample_value(name, {"state": state})


async def test_what_waits_for_a_person_is_counted_with_its_age_and_gone_when_it_ended(stage: OpenStage) -> None:
    async with open_office(stage) as office:
        await office.order(wallet_address=REFUSED_ADDRESS)
        await office.drain()
        await office.s.clock.advance(7_200)
        await observe_payouts(office.s.database)
        assert shown("payonce_payouts_open", "held") == 1
        assert shown("payonce_payouts_oldest_seconds", "held") == 7_200
        assert shown("payonce_payouts_open", "paying") == 0
        assert shown("payonce_payouts_open", "finished") is None
        await office.s.owner.execute("update payouts.payouts set state = 'refunded', held_from = null, hold = null")
        await observe_payouts(office.s.database)
        assert shown("payonce_payouts_open", "held") == 0
        assert shown("payonce_payouts_oldest_seconds", "held") == 0
