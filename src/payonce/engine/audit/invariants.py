"""Invariants of the engine's own rows. Each is one query that returns nothing when the data is sound."""

from dataclasses import dataclass
from typing import Final

from payonce.engine.effects.orphans import ORPHANED

_EFFECT: Final = "e.kind || ' ' || e.key || ':' || e.generation"


@dataclass(frozen=True)
class Invariant:
    query: str
    """Returns one sentence per violation, in the column `finding`."""
    way_out: str


INVARIANTS: Final = {
    "performed effect without an outcome": Invariant(
        f"""
        select format('%s (%s) is performed, and its outcome is not on record', {_EFFECT}, e.id) as finding
        from payonce.effects e where e.state = 'performed' and e.outcome is null
        """,
        "look up the outcome at the vendor; the handlers that need it cannot continue without it",
    ),
    "performed effect without evidence": Invariant(
        f"""
        select format('%s (%s) is performed, and no try, question or person says so', {_EFFECT}, e.id) as finding
        from payonce.effects e
        where e.state = 'performed' and not exists (
            select from payonce.effect_attempts a
            where a.effect_id = e.id and a.event in ('performed', 'found', 'answered'))
        """,
        "somebody changed the row manually: ask the vendor whether it happened, and check the audit log",
    ),
    "orphaned effect": Invariant(
        f"""
        select format('%s (%s) is %s, and its message %s is parked or gone', {_EFFECT}, e.id, e.state, e.message_id)
            as finding
        from payonce.effects e where {ORPHANED}
        """,
        "a running process opens a review within a minute; if the finding stays, no process is the leader: start one",
    ),
    "two open generations": Invariant(
        """
        select format('%s %s has %s open generations: %s', e.kind, e.key, count(*),
            string_agg(format('%s is %s', e.generation, e.state), ', ' order by e.generation)) as finding
        from payonce.effects e
        where e.state in ('intended', 'unknown', 'review') and not e.superseded
        group by e.kind, e.key having count(*) > 1
        """,
        "freeze the vendor, and ask it about each generation before anything is sent again",
    ),
    "generation begun before the last one ended": Invariant(
        f"""
        select format('%s (%s) is %s, and generation %s was begun', {_EFFECT}, e.id, e.state, n.generation) as finding
        from payonce.effects e
        join payonce.effects n on n.kind = e.kind and n.key = e.key and n.generation = e.generation + 1
        where e.state in ('intended', 'unknown')
        """,
        "freeze the vendor, and ask it about both generations: the same money may have moved twice",
    ),
    "effect without its first attempt": Invariant(
        f"""
        select format('%s (%s) has no line that says it was started', {_EFFECT}, e.id) as finding
        from payonce.effects e
        where not exists (select from payonce.effect_attempts a where a.effect_id = e.id and a.event = 'started')
        """,
        "attempts are append-only: compare with a backup, and find out who can write as the owner",
    ),
    "overlooked outcome": Invariant(
        f"""
        select format('the vendor said that %s (%s) happened, and it is %s', {_EFFECT}, e.id, e.state) as finding
        from payonce.effects e
        where (e.state in ('intended', 'unknown', 'refused') or (e.state = 'abandoned' and e.safety <> 'harmless'))
          and exists (select from payonce.effect_attempts a
              where a.effect_id = e.id and a.event in ('performed', 'found')
                and not exists (select from payonce.effect_attempts d
                    where d.effect_id = e.id and d.id > a.id and d.event = 'answered'))
        """,
        "compare with the vendor's statement before anything is sent again; the money has probably moved",
    ),
}
