"""The operational playbook of billing, as docs/running-billing.md has it: each line typed, each promise kept."""

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from typer.main import get_command

from payonce.cli.application import app
from payonce.embedded.redis import RedisServer
from payonce.engine.messages.model import State as MessageState
from payonce.engine.messages.ports import Filter
from payonce.engine.webhooks import Received, Receiver
from payonce.kit.webhooks import Scheme, Secret, signed_headers
from payonce.queues.redis import refill
from payonce.services.billing.payments.handlers.notifications import open_notification_sender
from payonce.services.billing.payments.store.notifications import Notice
from payonce.services.billing.policies import (
    BILLING_CLOCK,
    CHARGE_INITIATION,
    PAYMENTS_CLOCK,
    QUEUES,
    SUBSCRIPTION_UPDATE,
)
from payonce.services.billing.subscriptions.model import State
from payonce.services.billing.wire import Action
from payonce.testing import OpenStage, eventually
from payonce.testing.faults import Fault, Script
from tests.services.billing.billing_stage import SECRET, Door, open_house
from tests.services.billing.redis_house import RedisHouse, open_redis_house

PAGE: Final = (Path(__file__).parents[3] / "docs/running-billing.md").read_text(encoding="utf-8")
TYPED: Final = "\n".join(re.findall(r"```redis\n(.*?)```", PAGE, re.DOTALL)).split("\n")
UPDATE: Final = SUBSCRIPTION_UPDATE.queue
CHARGE: Final = CHARGE_INITIATION.queue
ATTEMPTS: Final = SUBSCRIPTION_UPDATE.max_attempts or 0
AN_HOUR_S: Final = 3_600.0
LOAD: Final = 6
JOB_LOG: Final = "LRANGE q:log:jobs 0 50"
WITHIN_S: Final = 20.0
NEW: Final = Secret("another-secret-that-two-services-share")


async def test_every_line_that_the_page_types_is_answered_and_every_queue_is_among_them(
    stage: OpenStage, redis_server: RedisServer
) -> None:
    async with open_redis_house(stage, redis_server) as at:
        await at.subscribe()
        await at.relay()
        answers = {line: await at.terminal.type(line) for line in TYPED if line}
        assert {line for line, answer in answers.items() if answer} == {"LLEN q:sub:payment_initiation", JOB_LOG}
        named = {line.split()[1] for line in answers}
        assert {policy.queue for policy in QUEUES} - {BILLING_CLOCK.queue, PAYMENTS_CLOCK.queue} <= named


def test_the_page_names_only_commands_that_there_are() -> None:
    known: Any = get_command(app)
    lines = re.findall(r"`payonce ([a-z]+(?: [a-z]+\b(?!:))?)", PAGE)
    assert {"queues redrive", "queues refill", "queues list", "up"} <= set(lines)
    for line in lines:
        command = known
        for word in line.split():
            command = command.commands[word]


async def test_the_job_log_tells_of_a_new_subscription_with_the_fields_of_the_design(
    stage: OpenStage, redis_server: RedisServer
) -> None:
    async with open_redis_house(stage, redis_server) as at:
        [subscription] = await at.subscribe()
        await at.drain()
        assert await at.house.state(subscription) is State.ACTIVE
        log = await at.log()
        assert set(log[0]) == {"timestamp", "queue", "action", "status", "message_id", "attempts", "info"}
        ended = [(line["queue"], line["action"], line["status"], line["attempts"]) for line in reversed(log)]
        assert ended[-2:] == [("q:sub:payment_initiation", "initial", "success", 1), (CHARGE, "initial", "success", 1)]


async def test_the_failure_drill_goes_round_with_attempts_growing_to_the_dead_letters_and_back(
    stage: OpenStage, redis_server: RedisServer
) -> None:
    async with open_redis_house(stage, redis_server) as at:
        house = at.house
        [subscription] = await at.subscribe()
        house.door.answers = [503] * (1 + ATTEMPTS)
        worker = at.worker()
        await at.drain(worker)
        assert await at.look(UPDATE) == (0, 0, 1, 0), "the immediate attempt failed; the queue's comes in seconds"
        for attempt in range(1, ATTEMPTS + 1):
            await at.clock.freeze(await at.clock.next_due())
            inside, let_go = hold(house.door)
            run = asyncio.create_task(worker.step())
            await inside.wait()
            assert await at.look(UPDATE) == (0, 1, 0, 0), "from delayed to main, and in processing while it runs"
            let_go.set()
            assert await run
            last = attempt == ATTEMPTS
            newest = (await at.log())[0]
            assert (newest["queue"], newest["attempts"]) == (UPDATE, attempt)
            assert newest["status"] == ("parked" if last else "retry")
            assert await at.look(UPDATE) == ((0, 0, 0, 1) if last else (0, 0, 1, 0))
        assert await house.state(subscription) is State.INCOMPLETE
        assert await attempts_of(at) == [("immediate", 503)] + [("queued", 503)] * ATTEMPTS
        [parked] = await house.s.admin.peek(UPDATE, MessageState.PARKED, 10)
        assert await house.s.admin.redrive(UPDATE, Filter(ids=[parked.message.id])) == 1
        await at.drain(worker)
        assert await at.look(UPDATE) == (0, 0, 0, 0)
        assert await house.state(subscription) is State.ACTIVE
        assert (await attempts_of(at))[-1] == ("queued", 200)
        assert await house.broken() == {}


async def test_a_worker_that_dies_in_the_middle_of_a_charge_costs_nobody_anything(
    stage: OpenStage, redis_server: RedisServer
) -> None:
    async with open_redis_house(stage, redis_server, Script([None, Fault.TIMEOUT_AFTER])) as at:
        house = at.house
        [subscription] = await at.subscribe()
        await at.drain(most=1)
        await at.relay()
        [invoice] = await house.invoices(subscription)
        # The gateway charges the card and says nothing: whoever asked waits, and dies there.
        setattr(house.gateway_door, "_over_sockets", True)  # noqa: B010 - of the simulator's bad days
        dying = asyncio.create_task(at.worker("dying").step())
        await eventually(lambda: house.captures(invoice) == 1, WITHIN_S, "the card is charged")
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)
        assert await at.look(CHARGE) == (0, 1, 0, 0), "it is nobody's until the lease ends"
        other = at.worker("other")
        assert not await other.reap()
        await at.clock.advance_leases(CHARGE_INITIATION.lease_s)
        assert await other.reap() == 1
        await at.run(AN_HOUR_S, other)
        assert await house.state(subscription) is State.ACTIVE
        assert house.captures(invoice) == 1
        assert await house.broken() == {}


async def test_redis_that_lost_everything_in_mid_load_is_refilled_and_every_invoice_charged_once(
    stage: OpenStage, redis_server: RedisServer
) -> None:
    async with open_redis_house(stage, redis_server) as at:
        house = at.house
        subscriptions = await at.subscribe(LOAD)
        worker = at.worker()
        await at.drain(worker, most=3)
        assert await at.terminal.type("FLUSHALL") == "OK"
        await at.clock.freeze(await at.clock.now())
        put_back = await refill(at.store)
        assert put_back.put_back > 0
        await at.run(AN_HOUR_S, worker)
        for subscription in subscriptions:
            [invoice] = await house.invoices(subscription)
            assert (await house.state(subscription), house.captures(invoice)) == (State.ACTIVE, 1)
        assert await house.broken() == {}


@pytest.mark.parametrize(
    ("off_s", "secret", "status"),
    [
        (-301, SECRET, 400),
        (301, SECRET, 400),
        (0, NEW, 401),
        (-299, SECRET, 200),
        (299, SECRET, 200),
    ],
)
async def test_a_stale_a_future_and_a_forged_webhook_are_refused_and_change_nothing(
    stage: OpenStage, off_s: int, secret: Secret, status: int
) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer(), run=False)
        house.door.answers = [503]
        await house.drain()
        row = await house.s.owner.fetchrow("select event_id, body from payments.notifications where action = 'initial'")
        assert row is not None
        now = await house.s.clock.now()
        headers = signed_headers([secret], row["event_id"], now + timedelta(seconds=off_s), row["body"])
        answered, _ = await house.door._take({name.lower(): value for name, value in headers.items()}, row["body"])
        assert answered == status
        assert await house.state(subscription) is (State.ACTIVE if status == 200 else State.INCOMPLETE)


async def test_a_new_signing_secret_loses_no_delivery(stage: OpenStage) -> None:
    """As the page has it, whichever of the two is restarted first at each step."""
    async with open_house(stage) as house:
        old, new = SECRET, NEW
        steps = (
            ((old,), (old,)),
            ((old, new), (old,)),
            ((old,), (old, new)),
            ((old, new), (old, new)),
            ((new, old), (old, new)),
            ((old, new), (new, old)),
            ((new, old), (new, old)),
            ((new,), (new, old)),
            ((new, old), (new,)),
            ((new,), (new,)),
        )
        for number, (signs, takes) in enumerate(steps):
            verdicts: list[bool] = []

            async def door(scope: Any, receive: Any, send: Any, takes: Any = takes, verdicts: Any = verdicts) -> None:
                body = (await receive())["body"]
                headers = {name.decode(): value.decode() for name, value in scope["headers"]}
                found = await Receiver("billing.subscriptions", takes, Scheme.OLDER).receive(
                    house.s.read, headers, body
                )
                verdicts.append(isinstance(found, Received))
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"{}"})

            await house.s.owner.execute(
                "insert into payments.notifications (event_id, account_id, action, body) values ($1, 'a', 'trial', $2)",
                f"evt-{number}",
                b'{"event_id": "evt"}',
            )
            now, body = await house.s.clock.now(), b'{"event_id": "evt"}'
            async with open_notification_sender(
                "https://s.example", signs, house.s.database, transport=door, aside=False
            ) as notifier:
                await notifier.at_once(Notice(f"evt-{number}", None, None, "a", Action.TRIAL, body, "a", now))
            assert verdicts == [True], f"step {number}"


async def attempts_of(at: RedisHouse) -> list[tuple[str, int]]:
    rows = await at.house.s.owner.fetch(
        """
        select way, response_code from payments.webhook_outbound_requests join payments.notifications using (event_id)
        where action = 'initial' order by id
        """
    )
    return [tuple(row) for row in rows]


def hold(door: Door) -> tuple[asyncio.Event, asyncio.Event]:
    """The next one that comes waits: whoever knocks is inside, until it is let go."""
    inside, let_go = asyncio.Event(), asyncio.Event()
    take = type(door)._take

    async def waiting(headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        inside.set()
        await let_go.wait()
        return await take(door, headers, body)

    setattr(door, "_take", waiting)  # noqa: B010 - an instance of the stage's own
    return inside, let_go
