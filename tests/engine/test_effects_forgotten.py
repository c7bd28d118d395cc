"""An outcome whose effect is no longer on record: a failover lost the intent after it was sent."""

import pytest

from payonce.engine.effects import Blind
from payonce.kit.outcomes import Retry
from payonce.testing import OpenStage
from tests.engine.effects_stage import open_context

FORGET = """
    alter table payonce.effect_attempts disable trigger user;
    delete from payonce.effect_attempts;
    delete from payonce.effects;
    alter table payonce.effect_attempts enable trigger user;
"""
"""As on a standby promoted before it had them."""


@pytest.mark.parametrize(("fault", "event"), [("stop after", "performed"), ("refuse late", "refused")])
async def test_what_the_vendor_said_of_a_forgotten_effect_is_in_the_audit_log(
    stage: OpenStage, fault: str, event: str
) -> None:
    """Guards the audit note: without it only the vendor knows of the payment."""
    async with open_context(stage, Blind()) as context:
        run = await context.stop_in_the_vendor(await context.claim(), fault)
        await context.s.owner.execute(FORGET)
        context.vendor.resume.set()
        with pytest.raises(Retry, match="no longer on record"):
            await run
        [noted] = await context.s.owner.fetch("select * from payonce.audit_log where location = 'effects.forgotten'")
        assert (noted["severity"], noted["reference"]) == ("ERROR", "test.pay p-1:1")
        assert event in noted["text"]
        assert ("n-p-1:1" in noted["text"]) == (event == "performed"), "the vendor's own name for it"
