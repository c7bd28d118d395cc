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
    ParkedSelection,
    StoredEntry,
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
    EntryStatus,
    OverdueEntry,
    SettleOutcome,
    accept_without_entry,
    end_durable,
    entry_statuses,
    hold_durable,
    overdue_entries,
    put_back,
    put_durable,
    settle_durable,
)
from payonce.engine.outbox.entries import declare_relays, put_out
from payonce.engine.outbox.log_relay import LogRelay
from payonce.engine.outbox.model import (
    EVENTS,
    Answer,
    Deferred,
    Delivered,
    Entry,
    Refusal,
    Relay,
    RelayConfig,
    State,
    wake_name,
)
from payonce.engine.outbox.relay_steps import relay_step

__all__ = [
    "EVENTS",
    "Answer",
    "Deferred",
    "Delivered",
    "Entry",
    "EntryStatus",
    "Lag",
    "LogRelay",
    "OverdueEntry",
    "ParkedSelection",
    "Refusal",
    "Relay",
    "RelayConfig",
    "SettleOutcome",
    "State",
    "StoredEntry",
    "accept_without_entry",
    "all_parked",
    "declare_relays",
    "discard_entries",
    "end_durable",
    "entry_statuses",
    "hold_durable",
    "lag",
    "overdue_entries",
    "parked_entries",
    "pause_relay",
    "put_back",
    "put_durable",
    "put_out",
    "redrive_all",
    "redrive_entries",
    "relay_step",
    "resume_relay",
    "settle_durable",
    "wake_name",
]
