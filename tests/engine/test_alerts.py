"""Alerts, the money meter and the timeline of one payment, read after real runs."""

from uuid import UUID, uuid4

import pytest

from payonce.engine.audit import note
from payonce.engine.controls import freeze
from payonce.engine.controls.quarantine.state import begin_quarantine
from payonce.engine.effects.meter import asset_flows
from payonce.engine.ledger import Line, Posting, Reference
from payonce.engine.messages.ports import Depth
from payonce.engine.monitoring.alerts import alerts
from payonce.engine.monitoring.timeline import Kind, read_timeline
from payonce.kit.money import Amount, well_known
from payonce.testing import OpenStage, Stage

EUR, JPY = well_known("EUR"), well_known("JPY")


async def effect(stage: Stage, state: str, amount: Amount | None, *, ago_s: float = 0, trace: str = "trace-1") -> UUID:
    """A row as an effect leaves it; the code that writes such rows has tests of its own."""
    effect_id = uuid4()
    await stage.owner.execute(
        """
        insert into payonce.effects (id, kind, key, version, safety, state, request, outcome, review_cause,
            first_attempt_at, message_id, trace_id, asset, exponent, amount_minor, created_at)
        values ($1, 'bank.pay', $2, 1, 'keyed', $3, '{}', case when $3 = 'performed' then '{}'::json end,
            case when $3 = 'review' then 'blind' end, payonce.due_now(), $4, $5, $6, $7, $8,
            payonce.due_now() - make_interval(secs => $9))
        """,
        effect_id,
        str(effect_id),
        state,
        uuid4(),
        trace,
        amount and amount.asset.code,
        amount and amount.asset.exponent,
        amount and amount.minor,
        float(ago_s),
    )
    await stage.owner.execute(
        "insert into payonce.effect_attempts (effect_id, attempt, event, detail) values ($1, 1, 'started', 'sent')",
        effect_id,
    )
    return effect_id


async def test_nothing_to_look_at_is_quiet(stage: OpenStage) -> None:
    async with stage() as s:
        found = await alerts(s.read, [Depth("work", ready=5)])
        assert found.quiet
        assert found.badge("parked") == found.badge("reviews") == found.badge(None) == 0


async def test_each_alert_is_counted_and_breaks_the_quiet(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(await s.clock.now())
        await effect(s, "review", Amount(500, EUR), ago_s=60)
        await effect(s, "review", Amount(7, JPY), ago_s=10)
        await effect(s, "unknown", Amount(100, EUR), ago_s=30)
        await effect(s, "unknown", None)
        await effect(s, "intended", Amount(1, EUR))
        async with s.begin() as tx:
            await freeze(tx, vendor="bank", reason="it lies", by="ann")
        found = await alerts(s.read, [Depth("a", parked=2), Depth("b", parked=1, paused=True)])
        assert not found.quiet
        assert (found.parked, list(found.paused), found.freezes) == (3, ["b"], 1)
        assert (found.reviews.count, found.reviews.oldest_s) == (2, 60.0)
        assert list(found.reviews.amounts) == [Amount(500, EUR), Amount(7, JPY)]
        assert (found.unknown.count, list(found.unknown.amounts)) == (2, [Amount(100, EUR)])
        assert found.badge("reviews") == 2


async def test_a_quarantine_is_told_with_its_reason(stage: OpenStage) -> None:
    async with stage() as s:
        async with s.begin() as tx:
            await begin_quarantine(tx, "restored from a backup", "ann", await s.clock.now())
        found = await alerts(s.read, [])
        assert found.quarantine == "restored from a backup"
        assert not found.quiet


async def test_the_meter_tells_hour_day_and_what_is_open_by_asset(stage: OpenStage) -> None:
    async with stage() as s:
        await s.clock.freeze(await s.clock.now())
        await effect(s, "performed", Amount(100, EUR), ago_s=60)
        await effect(s, "performed", Amount(50, EUR), ago_s=7_200)
        await effect(s, "performed", Amount(9_999, EUR), ago_s=86_500)
        await effect(s, "unknown", Amount(3, EUR), ago_s=100)
        await effect(s, "refused", Amount(1_000, EUR))
        await effect(s, "performed", Amount(7, JPY))
        await effect(s, "performed", None)
        eur, jpy = await asset_flows(s.read)
        assert (eur.last_hour, eur.last_hour_count) == (Amount(100, EUR), 1)
        assert (eur.last_day, eur.last_day_count) == (Amount(150, EUR), 2)
        assert (eur.open, eur.open_count) == (Amount(3, EUR), 1)
        assert jpy.last_hour == jpy.last_day == Amount(7, JPY)


async def test_the_meter_of_nothing_is_empty(stage: OpenStage) -> None:
    async with stage() as s:
        assert await asset_flows(s.read) == []


async def test_a_story_has_effects_postings_and_notes_in_time_order(stage: OpenStage) -> None:
    async with stage() as s:
        effect_id = await effect(s, "performed", Amount(250, EUR))
        await effect(s, "performed", Amount(1, EUR), trace="another")
        async with s.begin() as tx:
            lines = (Line("bank/account", Amount(-250, EUR)), Line("customers/ann", Amount(250, EUR)))
            await tx.post(Posting("p-1", Reference("payout", "p-1"), lines, "paid out", trace_id="trace-1"))
            await note(tx.connection, "brakes.answer", str(effect_id), "looked at it", actor="ann")
        for what in ("trace-1", str(effect_id)):
            told = await read_timeline(s.read, what)
            assert list(told.trace_ids) == ["trace-1"]
            assert [scene.kind for scene in told.entries] == [Kind.EFFECT, Kind.POSTING, Kind.NOTE]
            assert list(told.moved) == [Amount(250, EUR)]
            assert [path for path, _ in told.entries[1].lines] == ["bank/account", "customers/ann"]
            assert told.entries[2].who == "ann"
            assert not told.truncated


@pytest.mark.parametrize("what", ["nothing", "00000000-0000-7000-8000-000000000000", "%", "'; drop table x"])
async def test_a_story_of_nothing_has_no_scenes(stage: OpenStage, what: str) -> None:
    async with stage() as s:
        await effect(s, "performed", Amount(250, EUR))
        assert not (await read_timeline(s.read, what)).entries
