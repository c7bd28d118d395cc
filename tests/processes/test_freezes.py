"""A process that has claimed its messages and stands still wakes up behind a freeze, and sends nothing."""

from payonce.engine.controls import freeze, lift
from payonce.engine.controls.freeze_rules import LOOK_S
from payonce.engine.messages.transaction import begin
from payonce.testing import Clock, eventually
from tests.processes.payer import KINDS
from tests.processes.test_effect_stops import FINISH_LIMIT_S, Bank, open_bank, put_one_of_each, start_payer
from tests.processes.testbed import ProcessTestbed

HELD = "select count(*) from payonce.messages where state = 'ready' and last_error like 'freeze 1 of vendor bank%'"


async def test_what_was_claimed_before_the_freeze_is_not_sent_after_it(testbed: ProcessTestbed) -> None:
    async with open_bank(Bank()) as bank, Clock.open(testbed.scratch.owner_url) as clock:
        await put_one_of_each(testbed, KINDS)
        payer = await start_payer(testbed, bank, "claimed", len(KINDS))
        for row in range(len(KINDS)):
            await testbed.noted("claimed", row, pid=payer.pid)
        payer.stop()
        async with begin(testbed.database, testbed.feed) as tx:
            made = await freeze(tx, by="ada", reason="pays twice", vendor="bank")
        payer.resume()

        async def all_held() -> bool:
            return bool(await testbed.ask(HELD) == len(KINDS))

        await eventually(all_held, FINISH_LIMIT_S)
        assert bank.booked == []
        assert await testbed.ask("select count(*) from payonce.effects") == 0
        async with begin(testbed.database, testbed.feed) as tx:
            await lift(tx, made.id, "bob", "mended")
        await clock.advance(LOOK_S + 1)
        await eventually(lambda: len(bank.booked) == len(KINDS), FINISH_LIMIT_S)
        assert set(bank.times().values()) == {1}
