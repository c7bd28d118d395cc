"""A new version of a plan is for new customers: who was promised an older one keeps it, until an operator moves them,
with notice and with effect from the next renewal."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from payonce.engine.audit import notes
from payonce.kit.money import Amount
from payonce.services.billing.policies import BILLING_CLOCK
from payonce.services.billing.subscriptions import schedules
from payonce.services.billing.subscriptions.domain.calendar import Interval, Unit
from payonce.services.billing.subscriptions.domain.refusals import Conflict
from payonce.services.billing.subscriptions.handlers import plan_migrations, plan_moves
from payonce.services.billing.subscriptions.handlers.plan_changes import ChangeTiming
from payonce.services.billing.subscriptions.handlers.plan_moves import MigrationState, PlanMigration
from payonce.services.billing.subscriptions.model import ChangeState, State, Subscription
from payonce.services.billing.subscriptions.store import plan_changes, plans
from payonce.services.billing.subscriptions.store import subscriptions as store
from payonce.services.billing.subscriptions.store.plans import Offer
from payonce.testing import OpenStage
from tests.services.billing.billing_stage import AED, House, aed, open_house
from tests.services.billing.test_announcing import heard, listen


async def offer(house: House, minor: int, code: str = "basic") -> None:
    async with house.s.begin() as tx:
        await plans.add_version(tx, Offer(code, code.title(), Amount(minor, AED), Interval(Unit.MONTH)))


async def order(house: House, older: str = "basic-v1", *, run: bool = True, notice_days: int = 0) -> PlanMigration:
    async with house.s.begin() as tx:
        migration = await plan_migrations.start(tx, older, None, "ann", "prices of 2027", notice_days)
    if run:
        await house.run()
    found = await plan_moves.find(house.s.read, migration.id)
    assert found is not None
    return found


async def pending(house: House, subscription: Subscription) -> dict[ChangeTiming, Any]:
    return dict(await plan_changes.pending(house.s.read, subscription.id))


async def test_a_trial_becomes_the_version_that_it_was_begun_with(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        trial = await house.start_trial(await house.customer())
        assert trial.converts_to_plan_id == "basic-v1"
        await offer(house, 3_900)
        await house.pass_days(15)
        converted = await house.subscription(trial)
        assert (converted.state, converted.plan_id) == (State.ACTIVE, "basic-v1")
        assert [each.due for each in await house.invoices(trial)] == [aed("1.00"), aed("29.00")]
        later = await house.start_trial(await house.customer())
        await house.pass_days(15)
        assert (await house.invoices(later))[-1].due == aed("39.00")
        assert await house.broken() == {}


async def test_a_trial_that_an_earlier_version_began_meanwhile_becomes_what_was_for_sale_then(stage: OpenStage) -> None:
    """In a rolling deployment its processes write no promise."""
    async with open_house(stage) as house:
        trial = await house.start_trial(await house.customer())
        await house.s.owner.execute("update subscriptions.subscriptions set converts_to_plan_id = null")
        await offer(house, 3_900)
        await house.pass_days(15)
        assert (await house.subscription(trial)).plan_id == "basic-v1"
        assert (await house.invoices(trial))[-1].due == aed("29.00")
        assert await house.broken() == {}


async def test_a_trial_becomes_what_it_was_begun_with_also_when_that_is_no_longer_for_sale(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        trial = await house.start_trial(await house.customer())
        async with house.s.begin() as tx:
            await plans.retire(tx, "trial")
            await plans.retire(tx, "basic")
        await house.pass_days(15)
        assert (await house.subscription(trial)).plan_id == "basic-v1"
        assert (await house.invoices(trial))[-1].due == aed("29.00")
        assert await house.broken() == {}


@pytest.mark.parametrize("when", [ChangeTiming.NOW, ChangeTiming.PERIOD_END])
async def test_whoever_chooses_the_plan_of_their_trial_by_its_code_gets_the_promised_version(
    stage: OpenStage, when: ChangeTiming
) -> None:
    """Also after another choice was taken back, and after a cancellation was."""
    async with open_house(stage) as house:
        trial = await house.start_trial(await house.customer())
        await offer(house, 3_900)
        await house.change_plan(trial, "pro", ChangeTiming.PERIOD_END)
        await house.change_plan(trial, "basic", ChangeTiming.PERIOD_END)
        assert (await house.subscription(trial)).next_plan_id is None
        await house.cancel(trial, ChangeTiming.PERIOD_END)
        await house.resume(trial)
        await house.change_plan(trial, "basic", when)
        await house.pass_days(15)
        assert (await house.subscription(trial)).plan_id == "basic-v1"
        assert (await house.invoices(trial))[-1].due == aed("29.00")
        assert await house.broken() == {}


async def test_a_migration_is_previewed_announced_and_takes_effect_with_the_next_renewal(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await listen(house)
        active = await house.subscribe(await house.customer())
        trial = await house.start_trial(await house.customer())
        other = await house.subscribe(await house.customer(), "pro")
        ending = await house.subscribe(await house.customer())
        await house.cancel(ending, ChangeTiming.PERIOD_END)
        await offer(house, 3_900)
        seen = await plan_migrations.preview(house.s.read, "basic-v1", notice_days=0)
        assert (seen.older.id, seen.newer.id, seen.subscriptions, seen.canceling) == ("basic-v1", "basic-v2", 2, 1)
        assert seen.by_state == {"active": 1, "trialing": 1}
        assert (seen.before, seen.after) == (aed("58.00"), aed("78.00"))
        assert (seen.first_at, seen.last_at) == (trial.period_end, active.period_end)
        await heard(house)
        migration = await order(house)
        assert (migration.state, migration.scheduled, migration.requested_by) == (MigrationState.DONE, 2, "ann")
        told = {
            data["id"]: data["plan_change"]
            for name, data in await heard(house)
            if name == "subscription.plan_change_scheduled"
        }
        assert set(told) == {active.id, trial.id}
        notice = told[active.id]
        assert (notice["previous_price"], notice["price"], notice["currency"]) == ("29.00", "39.00", "AED")
        assert (notice["note"], notice["migration_id"]) == ("prices of 2027", migration.id)
        assert active.period_end is not None
        assert (notice["effective_at"], notice["state"]) == (active.period_end.isoformat(), "pending")
        assert (await house.subscription(active)).next_plan_id == "basic-v2"
        [audited] = await notes(house.s.read, reference=migration.id)
        assert (audited.actor, audited.location) == ("ann", "billing.plan_migrations")
        assert "29.00" in audited.text
        assert "39.00" in audited.text
        await house.pass_days(32)
        for subscription in (active, trial):
            moved = await house.subscription(subscription)
            assert (moved.plan_id, moved.next_plan_id) == ("basic-v2", None)
            [change] = await plan_changes.of_subscription(house.s.read, subscription.id)
            assert (change.state, change.migration_id) == (ChangeState.APPLIED, migration.id)
        assert [each.due for each in await house.invoices(active)] == [aed("29.00"), aed("39.00")]
        assert (await house.invoices(trial))[1].due == aed("39.00")
        assert (await house.subscription(other)).plan_id == "pro-v1"
        assert (await house.invoices(ending))[-1].due == aed("29.00")
        assert [name for name, _ in await heard(house)].count("subscription.plan_changed") == 2
        assert await house.broken() == {}


async def test_a_price_that_was_moved_is_not_kept_by_canceling_and_taking_it_back(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        await offer(house, 3_900)
        await order(house)
        await house.cancel(subscription, ChangeTiming.PERIOD_END)
        await house.resume(subscription)
        for plan in ("basic", "basic-v2"):
            await house.change_plan(subscription, plan, ChangeTiming.PERIOD_END)
        with pytest.raises(Conflict, match="a plan migration moves the subscription"):
            await house.change_plan(subscription, "basic-v1", ChangeTiming.PERIOD_END)
        await house.pass_days(30)
        assert (await house.invoices(subscription))[-1].due == aed("39.00")
        assert await house.broken() == {}


@pytest.mark.parametrize("way", ["take it back", "cancel and resume"])
@pytest.mark.parametrize("trial", [False, True])
async def test_a_price_that_was_moved_is_not_kept_by_choosing_another_plan_in_between(
    stage: OpenStage, trial: bool, way: str
) -> None:
    async with open_house(stage) as house:
        customer = await house.customer()
        subscription = await (house.start_trial(customer) if trial else house.subscribe(customer))
        await offer(house, 3_900)
        migration = await order(house)
        await listen(house)
        await house.change_plan(subscription, "pro", ChangeTiming.PERIOD_END)
        if way == "take it back":
            with pytest.raises(Conflict, match="no longer for sale" if trial else "moves the subscription to basic-v2"):
                await house.change_plan(subscription, "basic-v1", ChangeTiming.PERIOD_END)
            await house.change_plan(subscription, "basic", ChangeTiming.PERIOD_END)
        else:
            await house.cancel(subscription, ChangeTiming.PERIOD_END)
            await house.resume(subscription)
            [change] = (await pending(house, subscription)).values()
            assert (change.to_plan_id, change.migration_id) == ("basic-v2", migration.id)
            notice = (await heard(house))[-1][1]["plan_change"]
            assert (notice["change_id"], notice["previous_price"], notice["price"]) == (change.id, "29.00", "39.00")
        await house.pass_days(30)
        assert (await house.subscription(subscription)).plan_id == "basic-v2"
        assert (await house.invoices(subscription))[1].due == aed("39.00")
        assert await house.broken() == {}


@pytest.mark.parametrize("way", ["take it back", "cancel and resume"])
async def test_a_choice_that_a_migration_moved_can_be_taken_back(stage: OpenStage, way: str) -> None:
    """The operator moves those with Pro. Who has Basic and only chose Pro for the next period may stay with Basic."""
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        await house.change_plan(subscription, "pro", ChangeTiming.PERIOD_END)
        await offer(house, 19_900, "pro")
        await order(house, "pro-v1")
        assert (await house.subscription(subscription)).next_plan_id == "pro-v2"
        if way == "take it back":
            await house.change_plan(subscription, "basic", ChangeTiming.PERIOD_END)
        else:
            await house.cancel(subscription, ChangeTiming.PERIOD_END)
            await house.resume(subscription)
        assert await pending(house, subscription) == {}
        await house.pass_days(30)
        assert [each.due for each in await house.invoices(subscription)] == [aed("29.00"), aed("29.00")]
        assert await house.broken() == {}


async def test_after_a_migration_was_canceled_the_older_version_can_be_kept(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        await offer(house, 3_900)
        migration = await order(house)
        await house.change_plan(subscription, "pro", ChangeTiming.PERIOD_END)
        async with house.s.begin() as tx:
            await plan_migrations.cancel(tx, migration.id, "bob", "too early")
        await house.run()
        await house.change_plan(subscription, "basic-v1", ChangeTiming.PERIOD_END)
        await house.pass_days(30)
        assert [each.due for each in await house.invoices(subscription)] == [aed("29.00"), aed("29.00")]
        assert await house.broken() == {}


async def test_another_plan_may_be_chosen_instead_and_the_migration_ends_visibly(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        await offer(house, 3_900)
        await order(house)
        await house.change_plan(subscription, "pro", ChangeTiming.NOW)
        [upgrade, moved] = await plan_changes.of_subscription(house.s.read, subscription.id)
        assert (upgrade.state, moved.state) == (ChangeState.APPLIED, ChangeState.CANCELED)
        assert moved.reason == f"replaced by change {upgrade.id}"
        assert (await house.subscription(subscription)).next_plan_id is None
        assert await house.broken() == {}


async def test_what_a_migration_has_scheduled_can_be_withdrawn(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        early = await house.subscribe(await house.customer())
        await house.pass_days(20)
        late = await house.subscribe(await house.customer())
        await offer(house, 3_900)
        migration = await order(house)
        await house.pass_days(12)
        async with house.s.begin() as tx:
            await plan_migrations.cancel(tx, migration.id, "bob", "too early")
        await house.run()
        found = await plan_moves.find(house.s.read, migration.id)
        assert found is not None
        assert (found.state, found.scheduled, found.withdrawn) == (MigrationState.CANCELED, 2, 1)
        await house.pass_days(40)
        assert (await house.subscription(early)).plan_id == "basic-v2", "it was renewed before"
        assert {each.due for each in await house.invoices(late)} == {aed("29.00")}
        assert "plan_change_canceled" in await house.timeline(late)
        assert await house.broken() == {}


async def test_many_are_moved_in_batches_and_a_batch_that_comes_twice_moves_nobody_twice(
    stage: OpenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_migrations, "BATCH", 2)
    async with open_house(stage) as house:
        subscriptions = [await house.subscribe(await house.customer()) for _ in range(5)]
        await offer(house, 3_900)
        migration = await order(house, run=False)
        for _ in range(2):
            async with house.s.begin() as tx:
                await plan_migrations.advance(tx, migration.id)
        await house.run()
        for each in subscriptions:
            assert [change.timing for change in (await pending(house, each)).values()] == [ChangeTiming.PERIOD_END]
            assert (await house.timeline(each)).count("plan_change_scheduled") == 1
        found = await plan_moves.find(house.s.read, migration.id)
        assert found is not None
        assert (found.state, found.scheduled) == (MigrationState.DONE, 5)
        again = await order(house)
        assert (again.state, again.scheduled) == (MigrationState.DONE, 0)
        assert await house.broken() == {}


async def test_a_migration_that_lost_its_message_is_taken_up_again(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        await offer(house, 3_900)
        migration = await order(house, run=False)
        await house.s.owner.execute("delete from payonce.messages where correlation_id = $1", migration.id)
        await put_back(house)
        assert list(await pending(house, subscription)) == [ChangeTiming.PERIOD_END]


async def put_back(house: House) -> None:
    await house.s.clock.freeze(await house.s.clock.now() + timedelta(seconds=1_000))
    async with house.s.begin() as tx:
        await tx.send(BILLING_CLOCK, {}, action=schedules.PUT_BACK)
    await house.run()


@pytest.mark.parametrize(
    ("older", "newer", "says"),
    [
        ("basic", None, "is the version for sale"),
        ("basic-v2", None, "is the version for sale"),
        ("basic-v1", "pro", "is not a version of basic"),
        ("trial-v1", None, "is a trial"),
        ("basic-v1", "basic-v1", "no longer for sale"),
    ],
)
async def test_a_migration_that_makes_no_sense_is_refused(
    stage: OpenStage, older: str, newer: str | None, says: str
) -> None:
    async with open_house(stage) as house:
        await offer(house, 3_900)
        async with house.s.begin() as tx:
            with pytest.raises(Conflict, match=says):
                await plan_migrations.start(tx, older, newer, "ann", "why")


async def test_one_migration_of_a_version_at_a_time(stage: OpenStage) -> None:
    async with open_house(stage) as house:
        await house.subscribe(await house.customer())
        await offer(house, 3_900)
        await order(house, run=False)
        with pytest.raises(Conflict, match="is in progress"):
            await order(house, run=False)


async def test_a_migration_meets_renewals_and_customers_and_every_change_ends(stage: OpenStage) -> None:
    """Scheduled as the subscription renews: this period or the next one is of the newer version, and no other."""
    async with open_house(stage) as house:
        subscription = await house.subscribe(await house.customer())
        await offer(house, 3_900)
        assert subscription.period_end is not None
        await house.s.clock.freeze(subscription.period_end)
        await order(house, run=False)
        await house.look()
        await house.run()
        await house.go_to(datetime(2026, 4, 1, tzinfo=UTC))
        dues = [each.due for each in await house.invoices(subscription)]
        assert dues in ([aed("29.00"), aed("39.00"), aed("39.00")], [aed("29.00"), aed("29.00"), aed("39.00")])
        assert await pending(house, subscription) == {}
        assert (await store.find(house.s.read, subscription.id)).plan_id == "basic-v2"  # type: ignore[union-attr]
        assert await house.broken() == {}
