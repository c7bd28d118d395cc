"""The check before every send: nothing is sent while the database may have forgotten earlier sends."""

from typing import Final

from payonce.engine.effects.send import Sending
from payonce.engine.messages.transaction import Tx
from payonce.kit.outcomes import Held

LOOK_AGAIN_S: Final = 30.0
"""How often a held message is retried. More often would only keep the queue busy while people work."""


async def refuse_in_quarantine(tx: Tx, sending: Sending) -> None:
    """Runs in the intent transaction: a quarantine that begins waits until it has ended, and a later check sees the
    quarantine. Also refuses on a server that no process has recognised as a new one yet, since connections fail over by
    themselves.

    Queries to a vendor do not pass this check and stay possible.
    """
    state = await tx.fetchrow("select began_at, reason, served, serving from payonce.sending_state()")
    if state["began_at"] is not None:
        raise Held(
            f"{sending.kind} {sending.key} is not sent: the database is in quarantine since "
            f"{state['began_at'].isoformat(timespec='seconds')} ({state['reason']}); see: payonce db quarantine",
            LOOK_AGAIN_S,
        )
    if None not in (state["served"], state["serving"]) and state["served"] != state["serving"]:
        raise Held(
            f"{sending.kind} {sending.key} is not sent: the database was served by {state['served']} and is now "
            f"served by {state['serving']}; a process will begin a quarantine within seconds",
            LOOK_AGAIN_S,
        )
