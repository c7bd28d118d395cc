"""Queues: the list, and one queue with its depth, policy, messages and pause."""

from starlette.responses import Response

from payonce.console.forms import PAGE_ROWS, choice_of, id_of, reason_of
from payonce.console.links import link
from payonce.console.live import columns
from payonce.console.page import Page, Visit, get, post
from payonce.engine.messages import bulk
from payonce.engine.messages.declarations import queue_declaration
from payonce.engine.messages.model import State
from payonce.engine.monitoring.history import history, runs_by_queue
from payonce.engine.operators import Role

OPERATIONS_SHOWN = 3
STATES = ("parked", "ready", "leased", "alone")


async def list_queues(visit: Visit) -> Response:
    only = choice_of(visit.query, "only", ("all", "paused"), "all")
    depths = [depth for depth in visit.summary.depths if only == "all" or depth.paused]
    return visit.page(
        "queues.html", "Queues", only=only, depths=depths, runs=await runs_by_queue(visit.context.read, 60)
    )


async def show_queue(visit: Visit) -> Response:
    queue, admin = visit.path["queue"], visit.context.admin
    depth = await admin.depth(queue)
    state = choice_of(visit.query, "state", STATES, "parked" if depth.parked else "ready")
    after = id_of(visit.query, "after")
    found = await admin.peek(queue, State(state), PAGE_ROWS + 1, after)
    rows = found[:PAGE_ROWS]
    here = f"/queues/{queue}"
    more = link(here, state=state, after=rows[-1].message.id) if len(found) > PAGE_ROWS else None
    return visit.page(
        "queue.html",
        queue,
        queue=queue,
        depth=depth,
        state=state,
        states=STATES,
        counts={**vars(depth), "ready": depth.ready + depth.delayed},
        rows=rows,
        first=link(here, state=state) if after is not None else None,
        more=more,
        declared=await queue_declaration(visit.context.read, queue),
        operations=await bulk.operations(visit.context.read, queue, OPERATIONS_SHOWN),
        chart=None if visit.is_refresh else columns(await history(visit.context.read, 60, queue)),
    )


async def ask_pause(visit: Visit) -> Response:
    queue = visit.path["queue"]
    return visit.page("queue_pause.html", f"Pause {queue}", queue=queue, depth=await visit.context.admin.depth(queue))


async def pause(visit: Visit) -> Response:
    queue = visit.path["queue"]
    await visit.context.admin.pause(queue, reason_of(visit.form), visit.person.name)
    return visit.done(f"/queues/{queue}", f"{queue} is paused. Runs in progress finish; no new ones start.")


async def resume(visit: Visit) -> Response:
    queue = visit.path["queue"]
    await visit.context.admin.resume(queue, visit.person.name)
    return visit.done(f"/queues/{queue}", f"{queue} is running again.")


PAGE = Page(
    "Queues",
    "/queues",
    (
        get("/queues", list_queues),
        get("/queues/{queue}", show_queue),
        get("/queues/{queue}/pause", ask_pause, Role.OPERATOR),
        post("/queues/{queue}/pause", pause),
        post("/queues/{queue}/resume", resume),
    ),
    group="Work",
    badge="parked",
)
