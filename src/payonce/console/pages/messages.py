"""One message: its payload, its runs, and why it runs next when it does."""

from starlette.exceptions import HTTPException
from starlette.responses import Response

from payonce.console.forms import id_of
from payonce.console.page import Page, Visit, get
from payonce.engine.messages import job_log
from payonce.engine.messages.declarations import queue_declaration
from payonce.engine.messages.explanation import why_next
from payonce.engine.messages.search import find


async def show_message(visit: Visit) -> Response:
    queue, context = visit.path["queue"], visit.context
    message_id = id_of(visit.path, "id")
    assert message_id is not None
    stored = await find(context.admin, queue, message_id)
    entries = [entry for entry in await job_log.of_message(context.read, message_id) if entry.queue == queue]
    runs = [entry for entry in entries if not entry.live]
    if stored is None and not runs:
        raise HTTPException(404, f"{queue} has no message {message_id}, and the job log has no run of it")
    known = await queue_declaration(context.read, queue)
    why = []
    if stored is not None:
        paused = known.paused_reason if known is not None else None
        why = why_next(stored, None if known is None else known.policy, runs, visit.now, paused)
    return visit.page(
        "message.html",
        f"Message {message_id}",
        queue=queue,
        message_id=message_id,
        stored=stored,
        message=None if stored is None else stored.message,
        trace_id=stored.message.trace if stored is not None else runs[-1].trace_id,
        correlation_id=stored.message.correlation_id if stored is not None else runs[-1].correlation_id,
        runs=list(reversed(runs)),
        why=why,
    )


PAGE = Page("Message", "/queues/message", (get("/queues/{queue}/messages/{id}", show_message),))
