"""Random operations on a backend and on a small model of it: both must answer alike."""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

import pytest
import uvloop
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from payonce.embedded.redis import RedisServer
from payonce.engine.messages.model import Claim, Ending, Message, Settlement, State
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.ports import Filter
from payonce.kit.ids import new_id
from payonce.testing import ScratchServer
from tests.conformance.backend import Backend
from tests.conformance.model import Model
from tests.conformance.postgres_backend import open_postgres_backend
from tests.conformance.redis_backend import FLAVOURS, Flavour, open_redis_backend
from tests.conformance.wire import without

LEASE_S = 30.0
STEPS = 40
DELAYS = st.sampled_from([0.0, 10.0])
EXAMPLES, EXAMPLES_FULL = 60, 3_000


def some_of(claims: list[Claim]) -> st.SearchStrategy[list[Claim]]:
    return st.lists(st.sampled_from(claims), min_size=1, max_size=4, unique_by=lambda claim: claim.message.id)


class Comparison(RuleBasedStateMachine):
    """Each run has a queue of its own. Earlier claims are kept, so that stale ones are used as well."""

    backend: ClassVar[Backend]
    flavour: ClassVar[Flavour | None]
    runner: ClassVar[asyncio.Runner]

    def __init__(self) -> None:
        super().__init__()
        self.name = f"payments-{new_id()}"
        self.queue = self.do(self.backend.queue(Policy(self.name, lease_s=LEASE_S)))
        self.model = Model(LEASE_S, keys_end_at_once=self.flavour == "direct")
        self.claims: list[Claim] = []

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    @rule(
        keys=st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=3),
        delay_s=DELAYS,
    )
    def put(self, keys: list[str | None], delay_s: float) -> None:
        messages = [Message(queue=self.name, idempotency_key=key, delay_s=delay_s) for key in keys]
        answered = self.do(self.backend.feed.put(messages))
        self.model.put(messages, answered)

    @rule(limit=st.integers(1, 4))
    def claim(self, limit: int) -> None:
        exchange = self.do(self.queue.exchange([], limit))
        self.model.claim(exchange.claims, limit)
        assert (exchange.rest_s is not None) == self.model.paused
        self.claims += exchange.claims

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), ending=st.sampled_from(Ending), delay_s=DELAYS, claim_too=st.booleans())
    def settle(self, data: st.DataObject, ending: Ending, delay_s: float, claim_too: bool) -> None:
        chosen = data.draw(
            st.lists(st.sampled_from(self.claims), min_size=1, max_size=4, unique_by=lambda c: c.message.id)
        )
        delay_s = 0.0 if ending is Ending.PARKED else delay_s
        batch = [Settlement(claim, ending, "as drawn", delay_s) for claim in chosen]
        exchange = self.do(self.queue.exchange(batch, 2 if claim_too else 0))
        assert list(exchange.answers) == [self.model.settle(claim, ending, delay_s) for claim in chosen]
        self.model.claim(exchange.claims, 2 if claim_too else 0)
        self.claims += exchange.claims

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        chosen = data.draw(
            st.lists(st.sampled_from(self.claims), min_size=1, max_size=4, unique_by=lambda c: c.message.id)
        )
        assert self.do(self.queue.extend(chosen)) == [claim for claim in chosen if not self.model.extend(claim)]

    @rule(due_s=st.sampled_from([1.0, 10.0, 90_000.0]))
    def advance(self, due_s: float) -> None:
        self.do(self.backend.time.advance(due_s))
        self.model.now += due_s

    @rule(lease_s=st.sampled_from([10.0, LEASE_S]))
    def advance_leases(self, lease_s: float) -> None:
        self.do(self.backend.time.advance_leases(lease_s))
        self.model.lease_now += lease_s

    @rule()
    def let_workers_die(self) -> None:
        self.advance_leases(LEASE_S)
        self.reap()

    @rule()
    def reap(self) -> None:
        assert self.do(self.queue.reap()) == self.model.reap()

    @rule(mark=st.booleans())
    def claim_alone(self, mark: bool) -> None:
        claim = self.do(self.queue.claim_alone())
        self.model.claim_alone(claim)
        if claim is not None:
            self.claims.append(claim)
            if mark:
                assert self.do(self.queue.mark_alone(claim)) == self.model.mark_alone(claim)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def mark_alone(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.claims))
        assert self.do(self.queue.mark_alone(claim)) == self.model.mark_alone(claim)

    @rule(paused=st.booleans())
    def pause_or_resume(self, paused: bool) -> None:
        self.do(self.backend.admin.pause(self.name, "drawn") if paused else self.backend.admin.resume(self.name))
        self.model.paused = paused

    @rule()
    def redrive(self) -> None:
        assert self.do(self.backend.admin.redrive(self.name, Filter())) == self.model.redrive()

    @rule(state=st.sampled_from([State.READY, State.ALONE, State.PARKED]))
    def purge(self, state: State) -> None:
        assert self.do(self.backend.admin.purge(self.name, state, Filter(), by="drawn")) == self.model.purge(state)

    @rule()
    def let_keys_end(self) -> None:
        self.do(self.backend.forget_expired_keys())
        self.model.let_keys_end()

    @invariant()
    def both_hold_the_same(self) -> None:
        for state in State:
            found = self.do(self.backend.admin.peek(self.name, state, 1_000))
            seen = {each.message.id: (each.message.attempts, each.crashes) for each in found}
            assert seen == self.model.content(state)


def compare(
    server: ScratchServer,
    examples: int,
    phases: Sequence[Phase],
    redis: RedisServer | None = None,
    flavour: Flavour | None = None,
) -> None:
    """Shrinking is for long runs: it may take minutes."""
    profile = settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=phases,
        derandomize=Phase.shrink not in phases,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    with server.lent() as scratch, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        opening: AbstractAsyncContextManager[Backend] = open_postgres_backend(scratch)
        if redis is not None and flavour is not None:
            opening = open_redis_backend(scratch, redis, flavour)
        Comparison.runner, Comparison.flavour = runner, flavour
        Comparison.backend = runner.run(opening.__aenter__())
        try:
            run_state_machine_as_test(Comparison, settings=profile)
        finally:
            runner.run(opening.__aexit__(None, None, None))


def test_a_backend_answers_as_the_model_does(postgres: ScratchServer) -> None:
    compare(postgres, EXAMPLES, [Phase.generate])


@pytest.mark.parametrize(("flavour", "examples"), [("direct", 20), ("transactional", 10)])
def test_redis_answers_as_the_model_does(
    postgres: ScratchServer, redis_server: RedisServer, flavour: Flavour, examples: int
) -> None:
    compare(postgres, examples, [Phase.generate], redis_server, flavour)


@pytest.mark.full
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_redis_answers_as_the_model_does_for_long(
    postgres: ScratchServer, redis_server: RedisServer, flavour: Flavour
) -> None:
    compare(postgres, EXAMPLES_FULL // 3, [Phase.generate, Phase.shrink], redis_server, flavour)


@pytest.mark.full
@pytest.mark.timeout(1_800)
def test_a_backend_answers_as_the_model_does_for_long(postgres: ScratchServer) -> None:
    compare(postgres, EXAMPLES_FULL, [Phase.generate, Phase.shrink])


PLANTED = {
    "a stale success settles": (r"m\.token = s\.token", "true", "'success', attempts"),
    "crashes are not counted": (r"crashes = m\.crashes \+ 1", "crashes = m.crashes", "with dead as"),
}


@pytest.mark.full
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(postgres: ScratchServer, bug: str) -> None:
    """Each is also removed in a test of its own; here it must be found by chance."""
    with without(*PLANTED[bug]), pytest.raises(AssertionError):
        compare(postgres, EXAMPLES_FULL, [Phase.generate])
