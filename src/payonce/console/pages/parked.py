"""Redrive and purge one message, a filter's or all: a preview, then exactly the previewed change."""

from collections.abc import Mapping
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from payonce.console.forms import choice_of, id_of, moment_of, name_of, number_of, reason_of, text_of
from payonce.console.page import Page, Visit, get, post
from payonce.engine.audit import Severity, note
from payonce.engine.controls import (
    Executed,
    Redrive,
    Selection,
    needs_second_person,
    redrive_request,
    select_messages,
    selected_ids,
    submit,
)
from payonce.engine.messages import bulk
from payonce.engine.messages.model import State
from payonce.engine.messages.ports import Filter
from payonce.engine.operators import Role
from payonce.kit.outcomes import Invalid

FIELDS = ("id", "action", "correlation_id", "error_contains", "after", "before")
Pinned = TypeVar("Pinned", bound=Selection)
PURGEABLE = ("parked", "ready", "alone")


async def ask_redrive(visit: Visit) -> Response:
    queue, which = visit.path["queue"], _filter(visit.query)
    admin = visit.context.admin
    preview = await admin.preview(queue, State.PARKED, which)
    async with visit.context.begin() as tx:
        asked = await redrive_request(tx, admin, queue, which)
        assessment = await visit.context.actions["redrive"].assess(tx, asked)
        because = await needs_second_person(tx, assessment)
    return visit.page(
        "redrive.html",
        f"Redrive messages of {queue}",
        queue=queue,
        asked=asked,
        pinned=msgspec.json.encode(asked).decode(),
        assessment=assessment,
        because=because,
        samples=[each for each in preview.samples if each.readable],
        unreadable=preview.unreadable,
        in_review=preview.in_review,
        given={name: text_of(visit.query, name) for name in FIELDS},
    )


async def redrive(visit: Visit) -> Response:
    """Redrives the previewed messages, or none if the fingerprint shows that others match by now."""
    queue, asked = visit.path["queue"], _asked(visit, Redrive)
    async with visit.context.begin() as tx:
        end = await submit(tx, visit.context.actions["redrive"], asked, visit.person.name, reason_of(visit.form))
    here = f"/queues/{queue}"
    if isinstance(end, Executed) and "operation" in end.result:
        return visit.done(here, _begun(end.result["operation"], "redrives", asked))
    if isinstance(end, Executed):
        return visit.done(here, f"{_messages(end.result['redriven'])} of {queue} redriven.")
    return visit.done(here, f"Nothing is redriven yet: a second person must grant approval {end.id}.")


async def ask_purge(visit: Visit) -> Response:
    queue, which = visit.path["queue"], _filter(visit.query)
    state = choice_of(visit.query, "state", PURGEABLE, "parked")
    async with visit.context.begin() as tx:
        asked = await select_messages(tx, visit.context.admin, queue, State(state), which)
    preview = await visit.context.admin.preview(queue, State(state), asked.which)
    return visit.page(
        "purge.html",
        f"Purge messages of {queue}",
        queue=queue,
        state=state,
        preview=preview,
        in_batches=asked.in_batches,
        pinned=msgspec.json.encode(asked).decode(),
        given={name: text_of(visit.query, name) for name in FIELDS},
    )


async def purge(visit: Visit) -> Response:
    """Purges the previewed messages by their ids, or none; messages that match only now are kept."""
    queue, admin, asked = visit.path["queue"], visit.context.admin, _asked(visit, Selection)
    state = choice_of(visit.form, "state", PURGEABLE, "parked")
    why = reason_of(visit.form)
    if text_of(visit.form, "typed") != queue:
        raise Invalid(f"nothing was purged; type the queue's name, {queue}, to confirm")
    if asked.in_batches:
        async with visit.context.begin() as tx:
            begun = await bulk.start(
                tx, bulk.Kind.PURGE, queue, State(state), asked.which, asked.count, visit.person.name, why
            )
        return visit.done(f"/queues/{queue}", _begun(begun.id, "purges", asked))
    async with visit.context.begin() as tx:
        which = Filter(ids=await selected_ids(tx, admin, asked, State(state)))
        preview = await admin.preview(queue, State(state), which)
        # Recorded before the purge, so that an interrupted one is on record as well.
        text = f"purges {_messages(preview.count - preview.with_open_effects)}, {state}: {why}"
        await note(tx.connection, "queues.purge", queue, text, actor=visit.person.name, severity=Severity.WARNING)
    gone = await admin.purge(queue, State(state), which, f"{visit.person.name} in the console: {why}")
    return visit.done(f"/queues/{queue}", f"{_messages(gone)} of {queue} purged. Each leaves an entry in the job log.")


async def stop(visit: Visit) -> Response:
    queue, number = visit.path["queue"], number_of(visit.path, "operation")
    found = None if number is None else await bulk.operation_of(visit.context.read, number)
    if found is None or found.queue != queue:
        raise HTTPException(404, f"{queue} has no operation {visit.path['operation']}; its page lists them")
    async with visit.context.begin() as tx:
        stopped = await bulk.stop(tx, found.id, visit.person.name)
    return visit.done(f"/queues/{queue}", f"Operation {stopped.id}: {stopped.text}.")


def _begun(operation_id: int, verb: str, asked: Selection) -> str:
    many = f"{_messages(asked.count)} of {asked.queue}"
    return f"Operation {operation_id} {verb} {many} in batches; this page shows the progress."


def _asked(visit: Visit, kind: type[Pinned]) -> Pinned:
    """The previewed selection, from the form."""
    queue = visit.path["queue"]
    try:
        asked = msgspec.json.decode(text_of(visit.form, "asked"), type=kind)
    except (msgspec.DecodeError, ValueError):
        raise Invalid("the form does not contain the preview; open the preview again") from None
    if asked.queue != queue:
        raise Invalid(f"the preview was of {asked.queue!r}, not of {queue!r}; open the preview again")
    if not asked.count:
        raise Invalid(f"no message of {queue} matches; choose another filter")
    return asked


def _filter(given: Mapping[str, Any]) -> Filter:
    message_id: UUID | None = id_of(given, "id")
    return Filter(
        ids=[] if message_id is None else [message_id],
        action=name_of(given, "action"),
        correlation_id=name_of(given, "correlation_id"),
        error_contains=name_of(given, "error_contains"),
        parked_after=moment_of(given, "after"),
        parked_before=moment_of(given, "before"),
    )


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count:,} messages"


PAGE = Page(
    "Parked",
    "/queues/parked",
    (
        get("/queues/{queue}/redrive", ask_redrive, Role.OPERATOR),
        post("/queues/{queue}/redrive", redrive),
        get("/queues/{queue}/purge", ask_purge, Role.OPERATOR),
        post("/queues/{queue}/purge", purge),
        post("/queues/{queue}/operations/{operation}/stop", stop),
    ),
)
