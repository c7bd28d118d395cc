"""The outbox: entries for external queues and logs, delivered at least once, put in the transaction they follow from.

entries         putting entries
model           the relay port, and the decision after a delivery
relay_steps     one step of a relay
durable_copy    entries that live until they are settled
admin           operator actions
log_relay       the relay of an installation without a broker
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
