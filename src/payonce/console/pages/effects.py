"""Effects: lists by state, details, and safe answers to those in review."""

from typing import Any, Final

from starlette.responses import Response

from payonce.console.forms import PAGE_ROWS, choice_of, id_of, name_of, number_of, reason_of, text_of
from payonce.console.links import link
from payonce.console.page import Page, Visit, get, post
from payonce.engine.controls import Executed, ReviewAnswer, describe_consequence, preview, submit, waiting_approval
from payonce.engine.effects.model import OPEN, State
from payonce.engine.effects.queries import EffectDetails, effect_details, effects, open_counts
from payonce.engine.effects.review import Answer, parsed_outcome
from payonce.kit.money import loads_exact
from payonce.kit.outcomes import Invalid, PayonceError, Stale

ACTION: Final = "answer review"
OUTCOME_MAX_LENGTH: Final = 20_000
TABS: Final = ("review", "unknown", "intended", "performed", "refused", "abandoned")

CHOICES: Final = {
    Answer.HAPPENED: (
        "It happened",
        "The vendor executed it. The handler continues with the outcome you enter, and nothing is sent.",
    ),
    Answer.DID_NOT: (
        "It did not happen, and no longer can",
        "This send has ended. The handler may send again, so be sure: otherwise money moves twice.",
    ),
    Answer.SEND_AGAIN: (
        "Send it again",
        "The stored request is sent again. If the vendor can be queried, it is queried first, and fenced if possible.",
    ),
    Answer.LOOK_AGAIN: (
        "Query the vendor again",
        "Nothing is decided yet. The vendor's response counts like any other.",
    ),
}
"""The label and consequence of each answer."""


async def inbox(visit: Visit) -> Response:
    state = State(choice_of(visit.query, "state", TABS, "review"))
    vendor, asset, queue = (name_of(visit.query, name) for name in ("vendor", "asset", "queue"))
    after = id_of(visit.query, "after")
    read = visit.context.read
    found = await effects(
        read,
        [state],
        vendor=vendor,
        asset=asset,
        queue=queue,
        limit=PAGE_ROWS + 1,
        after=after,
        newest_first=state not in OPEN,
    )
    page, query = found[:PAGE_ROWS], {"state": state, "vendor": vendor, "asset": asset, "queue": queue}
    return visit.page(
        "effects.html",
        "Effects",
        counts=await open_counts(read),
        tabs=TABS,
        chosen=state,
        rows=page,
        query=query,
        first=link("/effects", **query) if after else None,
        next=link("/effects", **query, after=page[-1].effect.id) if len(found) > PAGE_ROWS else None,
    )


async def one_effect(visit: Visit) -> Response:
    return await _page(visit, await _shown(visit))


async def answer(visit: Visit) -> Response:
    """Shows the consequences first; with `sure` it executes, or requests approval."""
    found = await _shown(visit)
    effect = found.listed.effect
    try:
        given = _given(visit, found)
        if text_of(visit.form, "sure") != "yes":
            return await _check(visit, found, given)
        async with visit.context.begin() as tx:
            end = await submit(tx, visit.context.actions[ACTION], given, visit.person.name, given.note)
    except (Invalid, Stale) as error:
        return await _page(visit, await _shown(visit), error)
    if isinstance(end, Executed):
        text = f"The effect is {end.result['state']}; {describe_consequence(end.result)}."
        return visit.done(f"/effects/{effect.id}", text)
    return visit.awaiting_approval(end.id)


async def _shown(visit: Visit) -> EffectDetails:
    effect_id = id_of(visit.path, "id")
    assert effect_id is not None
    return await effect_details(visit.context.read, effect_id)


def _given(visit: Visit, found: EffectDetails) -> ReviewAnswer:
    said = text_of(visit.form, "answer")
    if said not in tuple(Answer):
        raise Invalid(f"there is no answer {said[:40]!r}; choose one of those offered")
    revision = number_of(visit.form, "revision")
    if revision is None:
        raise Invalid("the form has no revision; reload the page")
    outcome_text, vendor_ref = text_of(visit.form, "outcome"), name_of(visit.form, "vendor_ref")
    happened = Answer(said) is Answer.HAPPENED
    if len(outcome_text) > OUTCOME_MAX_LENGTH:
        raise Invalid(f"the outcome has {len(outcome_text):,} characters; give at most {OUTCOME_MAX_LENGTH:,}")
    outcome = parsed_outcome(outcome_text, "the outcome") if happened and outcome_text else None
    return ReviewAnswer(
        found.listed.effect.id, revision, Answer(said), reason_of(visit.form), outcome, vendor_ref if happened else None
    )


async def _check(visit: Visit, found: EffectDetails, given: ReviewAnswer) -> Response:
    async with visit.context.begin() as tx:
        seen = await preview(tx, visit.context.actions[ACTION], given, visit.person.name)
    label, consequence = CHOICES[given.answer]
    hidden = {name: text_of(visit.form, name) for name in ("answer", "revision", "outcome", "vendor_ref", "why")}
    path = f"/effects/{found.listed.effect.id}"
    return visit.page(
        "check_change.html",
        f"{label}?",
        crumbs=[("Effects", "/effects"), (found.listed.effect.label, path)],
        sentences=[found.question, consequence],
        amounts=seen.assessment.amounts,
        because=seen.because,
        document=given.outcome,
        note=given.note,
        action=f"{path}/answer",
        back=path,
        button="Ask a second person" if seen.because else label,
        hidden={**hidden, "sure": "yes"},
        danger=False,
    )


async def _page(visit: Visit, found: EffectDetails, problem: PayonceError | None = None) -> Response:
    effect = found.listed.effect
    status = 200 if problem is None else 409 if isinstance(problem, Stale) else 400
    return visit.page(
        "effect.html",
        f"{effect.kind} {effect.key}",
        status=status,
        shown=found,
        listed=found.listed,
        effect=effect,
        request=_document(effect.request),
        outcome=_document(effect.outcome),
        example=_document(found.example_outcome),
        choices=[(each, *CHOICES[each]) for each in Answer if each in found.allowed],
        waiting=await waiting_approval(visit.context.read, ACTION, str(effect.id)),
        problem="" if problem is None else str(problem),
        typed={name: text_of(visit.form, name) for name in ("answer", "outcome", "vendor_ref", "why")},
    )


def _document(text: str | None) -> Any:
    return None if text is None else loads_exact(text)


PAGE = Page(
    "Effects",
    "/effects",
    (get("/effects", inbox), get("/effects/{id}", one_effect), post("/effects/{id}/answer", answer)),
    group="Money",
    badge="reviews",
)
