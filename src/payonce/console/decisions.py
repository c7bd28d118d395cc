"""The form of a decision: a confirmation page first, then the change or a request for approval."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from starlette.responses import Response

from payonce.console.forms import text_of
from payonce.console.page import Visit
from payonce.engine.controls import Assessment, Executed, preview, submit
from payonce.kit.outcomes import Invalid, PayonceError, Retry, Stale


class Noted(Protocol):
    """A decision, which carries the operator's reason."""

    @property
    def note(self) -> str: ...


Decision = TypeVar("Decision", bound=Noted)


@dataclass(frozen=True)
class Confirmation:
    """The texts of a confirmation page, and the form fields that it submits again."""

    title: str
    crumbs: Sequence[tuple[str, str]]
    sentences: Sequence[str]
    button: str
    """The label if no approval is needed."""
    fields: Sequence[str]
    danger: bool = False


@dataclass(frozen=True)
class DecisionForm(Generic[Decision]):
    """A form on the page at `path`, which posts to `path`/`verb`."""

    action: str
    """The name of the action in `Actions`."""
    path: str
    read: Callable[[], Decision]
    """Reads the decision from the form; raises Invalid or Stale."""
    confirm: Callable[[Decision, Assessment], Confirmation]
    done: Callable[[Decision, Executed], Response]
    refused: Callable[[PayonceError], Awaitable[Response]]
    """Shows the page again with the error."""
    verb: str = "decide"
    trace_id: str | None = None
    """The trace of the decision: with the subject's own, the consequences appear in its timeline."""


async def decide(visit: Visit, form: DecisionForm[Decision]) -> Response:
    """The first submission shows the consequences; with `sure` the decision is executed, or approval is requested."""
    try:
        decision = form.read()
        if text_of(visit.form, "sure") != "yes":
            return await _confirmation(visit, form, decision)
        async with visit.context.begin(form.trace_id) as tx:
            end = await submit(tx, visit.context.actions[form.action], decision, visit.person.name, decision.note)
    except (Invalid, Stale) as error:
        return await form.refused(error)
    except Retry as error:
        return await form.refused(Stale(error.reason))
    return form.done(decision, end) if isinstance(end, Executed) else visit.awaiting_approval(end.id)


async def _confirmation(visit: Visit, form: DecisionForm[Decision], decision: Decision) -> Response:
    async with visit.context.begin(form.trace_id) as tx:
        found = await preview(tx, visit.context.actions[form.action], decision, visit.person.name)
    shown = form.confirm(decision, found.assessment)
    return visit.page(
        "check_change.html",
        shown.title,
        crumbs=shown.crumbs,
        sentences=shown.sentences,
        amounts=found.assessment.amounts,
        because=found.because,
        document=None,
        note=decision.note,
        action=f"{form.path}/{form.verb}",
        back=form.path,
        button="Ask a second person" if found.because else shown.button,
        hidden={**{name: text_of(visit.form, name) for name in shown.fields}, "sure": "yes"},
        danger=shown.danger,
    )
