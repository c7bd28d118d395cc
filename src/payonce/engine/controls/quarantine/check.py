"""The check before every send: none while the database may have forgotten what it sent before."""

from typing import Final

from payonce.engine.effects.send import Sending
from payonce.engine.messages.transaction import Tx
from payonce.kit.outcomes import Held

LOOK_AGAIN_S: Final = 30.0
"""How often a held message asks again; more often would only keep the queue busy while people work."""


async def refuse_in_quarantine(tx: Tx, sending: Sending) -> None:
    """Part of the intent transaction: who begins a quarantine waits until this one has ended, and whoever looks later
    finds it. Also refuses on a server that nobody has noticed yet to be another one: connections move by themselves.

    Questions to a vendor do not pass here and stay possible.
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
            f"{sending.kind} {sending.key} is not sent: the database was served by {state['served']} and is now served "
            f"by {state['serving']}; a quarantine begins with the next look of a process",
            LOOK_AGAIN_S,
        )
