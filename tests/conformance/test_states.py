"""The table of states in model.py is what the store really does."""

from payonce.engine.messages.model import TRANSITIONS, Ending, Message, Settlement, State
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import Filter
from payonce.testing import OpenStage, Stage

WORK = Policy("states", lease_s=30)


async def record_transitions(s: Stage) -> None:
    await s.owner.execute(
        """
        create table public.transitions (before text, after text);
        grant insert on public.transitions to payonce_service;
        create function public.record() returns trigger language plpgsql as
            $$ begin insert into public.transitions values (old.state, new.state); return null; end $$;
        create trigger record after update of state on payonce.messages
            for each row when (old.state <> new.state) execute function public.record();
        """
    )


async def test_messages_move_as_the_table_says_and_no_other_way(stage: OpenStage) -> None:
    async with stage() as s:
        await record_transitions(s)
        queue = await s.queue(WORK)
        [message_id] = await s.feed.put([Message(queue="states")])
        for _ in range(2):
            await queue.exchange([], 1)
            await s.clock.advance_leases(31)
            await queue.reap()
        suspect = await queue.claim_alone()
        assert suspect is not None
        await queue.exchange([Settlement(suspect, Ending.PARKED, "for the test")], 0)
        await s.admin.redrive("states", Filter(ids=[message_id]))
        await s.clock.advance(1)
        [claim] = (await queue.exchange([], 1)).claims
        await queue.exchange([Settlement(claim, Ending.RETRY, "for the test")], 0)
        seen = {(State(row["before"]), State(row["after"])) for row in await s.owner.fetch("table public.transitions")}
    assert seen == {(before, after) for before, afters in TRANSITIONS.items() for after in afters}


async def test_the_store_knows_the_same_states(stage: OpenStage) -> None:
    async with stage() as s:
        rule = await s.owner.fetchval(
            "select pg_get_constraintdef(oid) from pg_constraint where conname = 'messages_state_check'"
        )
    assert all(f"'{state.value}'" in rule for state in State)
    assert rule.count("::text") == len(State) or rule.count("'") == 2 * len(State)
