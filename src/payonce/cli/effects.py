"""`effects`: calls to vendors, their outcomes, and answers to effects in review."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer

from payonce.cli.arguments import ByOption, LimitOption, described_amount, operator_name, parsed_effect_id
from payonce.cli.confirmation import confirm
from payonce.cli.output import JsonOption, YesOption, open_app, run_async, show, table
from payonce.kit.outcomes import Invalid

if TYPE_CHECKING:
    from payonce.app.process import App
    from payonce.engine.controls import Approval, Executed
    from payonce.engine.effects.queries import EffectDetails, ListedEffect
    from payonce.engine.effects.review import Answer

OPEN: Final = ("review", "unknown", "intended")
STATES: Final = (*OPEN, "performed", "refused", "abandoned")

HELP: Final = """Inspect calls to vendors, and answer those in review.

\b
Examples:
  payonce effects list                    all effects with an open outcome
  payonce effects list --state review     effects that wait for an answer
  payonce effects show 0199…              one effect with its attempts and the safe answers
  payonce effects answer 0199… did_not --note 'not in their statement of today'
"""

commands = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode=None)
EffectArgument = Annotated[str, typer.Argument(metavar="ID", help="`payonce effects list` shows it.")]


def parsed_states(given: list[str] | None) -> list[str]:
    for text in given or ():
        if text not in STATES:
            raise Invalid(f"there is no state {text!r}; an effect is {', '.join(STATES[:-1])} or {STATES[-1]}")
    return given or list(OPEN)


@commands.command("list")
def list_effects(
    state: Annotated[
        list[str] | None, typer.Option(help="review, unknown, intended, performed, refused or abandoned; repeatable.")
    ] = None,
    vendor: Annotated[str | None, typer.Option(help="Only effects at this vendor.")] = None,
    asset: Annotated[str | None, typer.Option(help="Only effects that move this asset.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only effects whose messages are in this queue now.")] = None,
    limit: LimitOption = 50,
    after: Annotated[str | None, typer.Option(help="Continue after this effect, for the next page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List effects, oldest first; by default those with an open outcome."""
    states, behind = parsed_states(state), None if after is None else parsed_effect_id(after)

    async def act() -> None:
        from payonce.engine.effects.model import State
        from payonce.engine.effects.queries import effects

        async with open_app() as app:
            found = await effects(
                app.read,
                [State(each) for each in states],
                vendor=vendor,
                asset=asset,
                queue=queue,
                limit=limit,
                after=behind,
            )
        following = str(found[-1].effect.id) if len(found) == limit else None
        result = {"effects": [_described(each) for each in found], "next_after": following}
        show(result, as_json, _table(found) if found else f"no effect is {' or '.join(states)}")

    run_async(act())


@commands.command("show")
def show_effect(effect: EffectArgument, as_json: JsonOption = False) -> None:
    """Show an effect with its request and attempts, and, in review, the question and the safe answers."""
    effect_id = parsed_effect_id(effect)

    async def act() -> None:
        from payonce.engine.effects.queries import effect_details

        async with open_app() as app:
            found = await effect_details(app.read, effect_id)
        show(_details(found), as_json, *_rendered(found))

    run_async(act())


@commands.command("answer")
def answer(
    effect: EffectArgument,
    said: Annotated[str, typer.Argument(metavar="ANSWER", help="happened, did_not, send_again or look_again.")],
    remark: Annotated[str, typer.Option("--note", help="How you know; stored with the effect.")],
    outcome: Annotated[str | None, typer.Option(help="With happened: the vendor's response as JSON.")] = None,
    vendor_ref: Annotated[str | None, typer.Option(help="With happened: the vendor's reference.")] = None,
    revision: Annotated[int | None, typer.Option(help="The revision printed by `show`; required with --yes.")] = None,
    by: ByOption = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Answer an effect in review. Its message continues with the answer.

    Above the asset's threshold a second person must agree first (payonce approvals).

    Example: payonce effects answer 0199… happened --outcome '{"id": "tx-1"}' --note 'in their statement'
    """
    effect_id, stated = parsed_effect_id(effect), _parsed_outcome(said, outcome)
    if yes and revision is None:
        raise Invalid(f"--yes needs --revision, the one that you saw; see: payonce effects show {effect_id}")

    async def act() -> None:
        from payonce.engine.controls import ReviewAnswer, submit

        async with open_app() as app:
            seen = revision if yes else await _ask(app, effect_id, said, as_json)
            assert seen is not None
            given = ReviewAnswer(effect_id, seen, _answer(said), remark, stated, vendor_ref)
            async with app.begin() as tx:
                end = await submit(tx, app.actions["answer review"], given, operator_name(by), remark)
        _show_result(effect_id, end, as_json)

    run_async(act())


def _show_result(effect_id: UUID, end: "Executed | Approval", as_json: bool) -> None:
    from payonce.engine.controls import Executed, describe_consequence

    if isinstance(end, Executed):
        said = f"the effect is {end.result['state']}; {describe_consequence(end.result)}"
        show({"done": True, **end.result}, as_json, said)
        return
    said = f"a second person must run: payonce approvals grant {end.id}"
    show({"done": False, "effect": effect_id, "approval": end.id, "expires_at": end.expires_at}, as_json, said)


async def _ask(app: "App", effect_id: UUID, said: str, as_json: bool) -> int:
    """Shows the effect and asks for confirmation; returns the revision shown."""
    from payonce.engine.effects.queries import effect_details

    found = await effect_details(app.read, effect_id)
    confirm("an answer", f"answer {said}?", *_rendered(found), yes=False, as_json=as_json)
    return found.listed.effect.revision


def _answer(said: str) -> "Answer":
    from payonce.engine.effects.review import Answer

    try:
        return Answer(said)
    except ValueError:
        known = ", ".join(each.value for each in Answer)
        raise Invalid(
            f"there is no answer {said!r}; answers are {known}; `show` lists those that are safe now"
        ) from None


def _parsed_outcome(said: str, outcome: str | None) -> Any:
    from payonce.engine.effects.review import parsed_outcome

    happened = _answer(said).value == "happened"
    if outcome is None:
        return None
    if not happened:
        raise Invalid(f"--outcome goes with happened, not with {said}")
    return parsed_outcome(outcome, "--outcome")


def _described(listed: "ListedEffect") -> dict[str, Any]:
    from payonce.app.logging import without_secrets

    effect = listed.effect
    names = (
        "id",
        "kind",
        "key",
        "generation",
        "state",
        "safety",
        "revision",
        "attempt",
        "scope",
        "vendor_ref",
        "review_cause",
        "message_id",
        "trace_id",
    )
    return {
        **{name: getattr(effect, name) for name in names},
        "reason": without_secrets(effect.reason),
        "amount": None if listed.amount is None else described_amount(listed.amount),
        "vendor": listed.vendor,
        "service": listed.service,
        "tenant": listed.tenant,
        "age_s": listed.age_s,
        "created_at": listed.created_at,
        "updated_at": listed.updated_at,
    }


def _details(found: "EffectDetails") -> dict[str, Any]:
    effect = found.listed.effect
    lines = [
        {
            "attempt": line.attempt,
            "event": line.event,
            "detail": line.detail,
            "outcome": _document(line.outcome),
            "vendor_ref": line.vendor_ref,
            "at": line.at,
        }
        for line in found.evidence
    ]
    return {
        **_described(found.listed),
        "request": _document(effect.request),
        "outcome": _document(effect.outcome),
        "evidence": lines,
        "question": found.question,
        "answers": sorted(found.allowed),
        "example_outcome": _document(found.example_outcome),
        "queue": found.queue,
        "message_state": found.message_state,
    }


def _rendered(found: "EffectDetails") -> list[Any]:
    from rich.markup import escape

    details = _details(found)
    fields = (
        "kind",
        "key",
        "generation",
        "state",
        "revision",
        "vendor",
        "service",
        "tenant",
        "vendor_ref",
        "reason",
        "created_at",
        "request",
        "outcome",
        "trace_id",
        "message_id",
        "queue",
        "message_state",
    )
    rows = [(name, details[name]) for name in fields]
    rows.insert(4, ("amount", found.listed.amount))
    tries = [(line.at, line.attempt, line.event, line.detail, line.vendor_ref) for line in found.evidence]
    parts = [
        table(f"Effect {found.listed.effect.id}", ("field", "value"), rows),
        table("Tries", ("time", "attempt", "event", "detail", "vendor's name"), tries, right=("attempt",)),
    ]
    if found.question is not None:
        parts += [escape(found.question), f"Safe answers: {', '.join(sorted(found.allowed))}."]
        if details["example_outcome"] is not None:
            parts.append(escape(f"An outcome of this kind looks like {found.example_outcome}"))
    return parts


def _document(text: str | None) -> Any:
    from payonce.app.logging import without_secrets
    from payonce.kit.money import loads_exact

    return None if text is None else without_secrets(loads_exact(text))


def _table(found: "Sequence[ListedEffect]") -> Any:
    columns = ("id", "kind", "key", "state", "amount", "age s", "tries", "reason")
    rows = [
        (
            each.effect.id,
            each.effect.kind,
            f"{each.effect.key}:{each.effect.generation}",
            each.effect.state,
            each.amount,
            each.age_s,
            each.effect.attempt,
            each.effect.review_cause or each.effect.reason,
        )
        for each in found
    ]
    return table("Effects", columns, rows, right=("amount", "age s", "tries"))
