"""The outbox: the lag of each relay, parked entries, and operator actions."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec
from starlette.responses import Response

from payonce.console.forms import PAGE_ROWS, id_of, reason_of, text_of
from payonce.console.links import link
from payonce.console.page import Page, Visit, get, post
from payonce.engine.outbox import (
    Lag,
    ParkedSelection,
    all_parked,
    discard_entries,
    lag,
    parked_entries,
    pause_relay,
    redrive_all,
    redrive_entries,
    resume_relay,
)
from payonce.kit.outcomes import Invalid
from payonce.kit.words import counted

CHOSEN_MAX: Final = PAGE_ROWS
"""Entries selected at once: one page."""


async def list_relays(visit: Visit) -> Response:
    return visit.page("outbox.html", "Outbox", rows=await lag(visit.context.database))


async def one_relay(visit: Visit) -> Response:
    relay, after = await _relay(visit), id_of(visit.query, "after")
    found = await parked_entries(visit.context.database, relay.relay, PAGE_ROWS + 1, after)
    page, path = found[:PAGE_ROWS], f"/outbox/{relay.relay}"
    return visit.page(
        "relay.html",
        relay.relay,
        relay=relay,
        rows=page,
        path=path,
        first=link(path) if after else None,
        next=link(path, after=page[-1].message.id) if len(found) > PAGE_ROWS else None,
    )


async def pause(visit: Visit) -> Response:
    relay = await _relay(visit)
    await pause_relay(visit.context.database, relay.relay, by=visit.person.name, reason=reason_of(visit.form))
    return visit.done(f"/outbox/{relay.relay}", f"{relay.relay} is paused; deliveries in progress finish.")


async def resume(visit: Visit) -> Response:
    relay = await _relay(visit)
    await resume_relay(visit.context.database, visit.context.notifier, relay.relay, by=visit.person.name)
    return visit.done(f"/outbox/{relay.relay}", f"{relay.relay} delivers again.")


async def redrive(visit: Visit) -> Response:
    """Redrives the selected entries, or with `all` every parked one. Shows the consequences first."""
    relay, ids = await _relay(visit), _selected(visit)
    everyone, as_new = text_of(visit.form, "all") == "yes", text_of(visit.form, "as_new") == "yes"
    if not ids and not everyone:
        raise Invalid("no entry is selected; select entries, or redrive all")
    if everyone and as_new:
        raise Invalid("expired entries cannot be redriven all at once; select those that no receiver has taken")
    if text_of(visit.form, "sure") != "yes":
        shown = await all_parked(visit.context.database, relay.relay) if everyone else None
        count = len(ids) if shown is None else shown.count
        said = f"{counted(count, 'parked entry', 'parked entries')} of {relay.relay} will be delivered again."
        kept = {"ids": " ".join(map(str, ids))}
        if shown is not None:
            kept = {"all": "yes", "shown": msgspec.json.encode(shown).decode()}
        return _check(visit, relay, "redrive", f"Redrive {_entries(count)}", [said], kept, offers_as_new=not everyone)
    context, by = visit.context, visit.person.name
    if everyone:
        count = await redrive_all(context.database, context.notifier, relay.relay, _shown(visit), by=by)
    else:
        count = await redrive_entries(context.database, context.notifier, relay.relay, by=by, ids=ids, as_new=as_new)
    return visit.done(f"/outbox/{relay.relay}", f"{_entries(count)} of {relay.relay} redriven.")


async def discard(visit: Visit) -> Response:
    """Discards the selected entries, for a reason. Shows the consequences first."""
    relay, ids = await _relay(visit), _selected(visit)
    if not ids:
        raise Invalid("no entry is selected; select those that must never be delivered")
    if text_of(visit.form, "sure") != "yes":
        said = (
            f"{counted(len(ids), 'parked entry', 'parked entries')} of {relay.relay} will be deleted permanently; "
            "each leaves a note in the audit log."
        )
        kept = {"ids": " ".join(map(str, ids))}
        return _check(visit, relay, "discard", f"Discard {_entries(len(ids))}", [said], kept, danger=True)
    count = await discard_entries(
        visit.context.database, relay.relay, ids, by=visit.person.name, why=reason_of(visit.form)
    )
    return visit.done(f"/outbox/{relay.relay}", f"{_entries(count)} of {relay.relay} discarded.")


def _entries(count: int) -> str:
    return counted(count, "entry", "entries")


def _shown(visit: Visit) -> ParkedSelection:
    try:
        return msgspec.json.decode(text_of(visit.form, "shown"), type=ParkedSelection)
    except (msgspec.DecodeError, ValueError):
        raise Invalid("the form does not contain the preview; open the preview again") from None


def _check(
    visit: Visit,
    relay: Lag,
    verb: str,
    button: str,
    sentences: list[str],
    kept: dict[str, str],
    *,
    danger: bool = False,
    offers_as_new: bool = False,
) -> Response:
    path = f"/outbox/{relay.relay}"
    return visit.page(
        "check_change.html",
        f"{button}?",
        crumbs=[("Outbox", "/outbox"), (relay.relay, path)],
        sentences=sentences,
        amounts=(),
        because="",
        document=None,
        note="",
        action=f"{path}/{verb}",
        back=path,
        button=button,
        hidden={**kept, "sure": "yes"},
        danger=danger,
        asks_why=danger,
        offers_as_new=offers_as_new,
    )


async def _relay(visit: Visit) -> Lag:
    name = str(visit.path["relay"])
    known = {each.relay: each for each in await lag(visit.context.database)}
    if name not in known:
        raise Invalid(f"there is no relay {name[:40]!r}; known are: {', '.join(known) or 'none'}")
    return known[name]


def _selected(visit: Visit) -> Sequence[UUID]:
    """The selected ids: checkboxes of the list, or a field of the confirmation page."""
    given = [str(each) for each in visit.form.getlist("id")] + text_of(visit.form, "ids").split()
    if len(given) > CHOSEN_MAX:
        raise Invalid(f"{len(given)} entries are selected; select at most {CHOSEN_MAX}")
    found = [id_of({"id": each}, "id") for each in given]
    return [each for each in found if each is not None]


PAGE = Page(
    "Outbox",
    "/outbox",
    (
        get("/outbox", list_relays),
        get("/outbox/{relay}", one_relay),
        post("/outbox/{relay}/pause", pause),
        post("/outbox/{relay}/resume", resume),
        post("/outbox/{relay}/redrive", redrive),
        post("/outbox/{relay}/discard", discard),
    ),
    group="Work",
    badge="outbox_parked",
)
