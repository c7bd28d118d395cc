"""The list of payouts, by any filter."""

import re
from typing import Any, Final

from starlette.responses import Response

from payonce.console.forms import PAGE_ROWS, choice_of, moment_of, name_of, text_of
from payonce.console.links import link
from payonce.console.page import Visit
from payonce.console.reads import bounded
from payonce.kit.outcomes import Invalid
from payonce.services.payouts.model import State
from payonce.services.payouts.store import queries
from payonce.services.payouts.store.queries import WITH_PEOPLE, PayoutFilter

FILTERS: Final = ("reference", "currency", "network", "wallet", "channel", "user", "since", "until")
USER_ID_LIMIT: Final = 2**63
WAITING: Final = (State.HELD, State.REVIEW)


async def list_payouts(visit: Visit) -> Response:
    asked = visit.query
    state = choice_of(asked, "state", ("all", WITH_PEOPLE, *State), "all")
    wanted = PayoutFilter(
        states=_states(state),
        currency=_lower(name_of(asked, "currency")),
        network=_lower(name_of(asked, "network")),
        wallet=name_of(asked, "wallet"),
        channel=name_of(asked, "channel"),
        user_id=_user_of(asked),
        reference=name_of(asked, "reference"),
        since=moment_of(asked, "since"),
        until=moment_of(asked, "until"),
    )
    before = name_of(asked, "before")
    async with bounded(visit) as read:
        totals = await queries.totals(read, wanted)
        found = await queries.list_payouts(read, wanted, before, PAGE_ROWS + 1)
    rows, typed = found[:PAGE_ROWS], {name: text_of(asked, name) for name in FILTERS}
    return visit.page(
        "payouts/list.html",
        "Payouts",
        rows=rows,
        typed=typed,
        chosen=state,
        totals=totals,
        everything=sum(each.count for each in totals),
        with_people=WITH_PEOPLE,
        filtered=any(typed.values()),
        waiting=sum(each.count for each in totals if each.state in WAITING),
        first=link("/payouts", **typed, state=state) if before else None,
        next=link("/payouts", **typed, state=state, before=rows[-1].id) if len(found) > PAGE_ROWS else None,
    )


def _states(chosen: str) -> tuple[State, ...] | None:
    if chosen == "all":
        return None
    return WAITING if chosen == WITH_PEOPLE else (State(chosen),)


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()


def _user_of(asked: Any) -> int | None:
    text = text_of(asked, "user")
    if not text:
        return None
    if not re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII) or not -USER_ID_LIMIT <= int(text) < USER_ID_LIMIT:
        raise Invalid(f"user is {text[:40]!r}; it must be a whole number, as Telegram's ids are")
    return int(text)
