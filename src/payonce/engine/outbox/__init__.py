"""The outbox: what leaves for queues and logs that live elsewhere, at least once, from the transaction it follows from.

entries   putting them in
model     the relay port, and what follows a delivery
relaying  one step of a relay
kept      entries that live until they are settled
admin     the operator's hand
log       the relay of an installation without a broker
"""

from payonce.engine.outbox.admin import (
    Lag,
    ParkedThen,
    Stored,
    all_parked,
    discard_entries,
    lag,
    parked_entries,
    pause_relay,
    redrive_all,
    redrive_entries,
    resume_relay,
)
from payonce.engine.outbox.durable_copy import (
    Fate,
    Kept,
    Standing,
    accept_unkept,
    end_kept,
    hold_kept,
    overdue_kept,
    put_back,
    put_kept,
    settle_kept,
    standings,
)
from payonce.engine.outbox.entries import declare_relays, put_out
from payonce.engine.outbox.log_relay import LogRelay
from payonce.engine.outbox.model import (
    EVENTS,
    Answer,
    Delivered,
    Entry,
    NotNow,
    Refusal,
    Relay,
    State,
    Terms,
    wake_name,
)
from payonce.engine.outbox.relay_steps import relay_step

__all__ = [
    "EVENTS",
    "Answer",
    "Delivered",
    "Entry",
    "Fate",
    "Kept",
    "Lag",
    "LogRelay",
    "NotNow",
    "ParkedThen",
    "Refusal",
    "Relay",
    "Standing",
    "State",
    "Stored",
    "Terms",
    "accept_unkept",
    "all_parked",
    "declare_relays",
    "discard_entries",
    "end_kept",
    "hold_kept",
    "lag",
    "overdue_kept",
    "parked_entries",
    "pause_relay",
    "put_back",
    "put_kept",
    "put_out",
    "redrive_all",
    "redrive_entries",
    "relay_step",
    "resume_relay",
    "settle_kept",
    "standings",
    "wake_name",
]
