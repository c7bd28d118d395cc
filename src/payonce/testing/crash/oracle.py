"""The invariants that must hold when everything has finished, whatever happened to the processes."""

from typing import Final

import asyncpg

from payonce.engine.ledger import audit_ledger
from payonce.testing.crash.backend import QueueProbe
from payonce.testing.crash.model import Violation
from payonce.testing.crash.scenario import Scenario, Simulators

SHOWN_ROWS: Final = 3


async def judge(
    scenario: Scenario, simulators: Simulators, read: asyncpg.Connection, probe: QueueProbe
) -> list[Violation]:
    """Checks a finished run. Returns no violations if nothing was lost, nothing happened twice, and both sides' records
    agree."""
    found = [
        Violation("happened twice", f"{reference} is in the vendor's books {times} times")
        for reference, times in sorted(scenario.happened(simulators).items())
        if times > 1
    ]
    found += [Violation("books differ", text) for text in await scenario.check(read, simulators)]
    found += [Violation("ledger", finding.text) for finding in await audit_ledger(read)]
    for name, query in {**scenario.invariants, **RULES}.items():
        if rows := await read.fetch(query):
            shown = "; ".join(", ".join(map(str, row.values())) for row in rows[:SHOWN_ROWS])
            found.append(Violation("invariant", f"{name}: {shown}"))
    found += await probe.left_over(scenario.expected_parked())
    return found


RULES: Final = {
    "every effect has come to its end": """
        select kind, key, generation, state from payonce.effects where state in ('intended', 'unknown', 'review')
    """,
    "every attempt of an effect was recorded at its start, and no other was": """
        select e.kind, e.key, e.generation, e.attempt from payonce.effects e
        where array(select a.attempt from payonce.effect_attempts a where a.effect_id = e.id and a.event = 'started'
                    order by a.attempt) <> array(select generate_series(1, e.attempt))
    """,
    "no outcome is recorded for an attempt that never began": """
        select a.effect_id, a.attempt, a.event from payonce.effect_attempts a
        where a.event in ('performed', 'refused', 'not_sent', 'unknown') and not exists (
            select from payonce.effect_attempts s
            where s.effect_id = a.effect_id and s.attempt = a.attempt and s.event = 'started' and s.id < a.id)
    """,
    "an effect is performed if and only if a result or an answer says so": """
        select e.kind, e.key, e.generation, e.state from payonce.effects e
        where e.state = 'performed' and not exists (
            select from payonce.effect_attempts a
            where a.effect_id = e.id and a.event in ('performed', 'found', 'answered') and a.outcome is not null)
    """,
    "of the generations of a key at most one is performed": """
        select kind, key, count(*) from payonce.effects
        where state = 'performed' and safety <> 'harmless' group by kind, key having count(*) > 1
    """,
    # The clock is stopped, so transaction ids give the order.
    "an answer wakes its message, whatever state that is in": """
        select e.kind, e.key, e.generation, a.created_at from payonce.effect_attempts a
        join payonce.effects e on e.id = a.effect_id
        where a.event = 'answered' and not exists (select from payonce.quarantines) and not exists (
            select from payonce.job_logs l
            where l.message_id = e.message_id
              and l.created_at <= a.created_at + interval '1 second'
              and (l.status in ('success', 'failed') or l.xmin::text::bigint > a.xmin::text::bigint))
    """,
    "nothing is left in the outbox": """
        select relay, queue, state, last_error from payonce.outbox where state in ('waiting', 'leased')
    """,
    "every message has one end in the job log": """
        select message_id, count(*) from payonce.job_logs where status in ('success', 'failed')
        group by message_id having count(*) > 1
    """,
}
"""Invariants of the engine, in addition to the services'."""
