"""payonce: money moves once. Durable queues and recorded effects on PostgreSQL.

Everything that a service is written with is imported from here: `from payonce import Policy, Service, Work, handles`.
Routes are written with `payonce.http.kit`, console pages with `payonce.console.kit`, demonstrations with
`payonce.cli.demo.kit` and tests with `payonce.testing`; `payonce.vendors` has the clients of vendors. All other modules
are internal.
"""

import os
from typing import TYPE_CHECKING, Final

from payonce.kit.lazy import lazy_names
from payonce.kit.version import __version__

if TYPE_CHECKING:
    from payonce.engine.audit.run import Audit
    from payonce.engine.controls import Action, Approval, Assessment, Executed, Link, preview, submit
    from payonce.engine.database.connections import Connection, Database
    from payonce.engine.database.notifier import Notifier
    from payonce.engine.database.rate_limits import SharedBudget
    from payonce.engine.effects import (
        Answer,
        Blind,
        CannotTell,
        DidNot,
        Effect,
        EffectRecord,
        Findable,
        Happened,
        Harmless,
        Keyed,
        Rebroadcast,
        Review,
        answer_review,
        next_generation,
        reviews,
    )
    from payonce.engine.janitors import Daily, Every, Janitor, Schedule
    from payonce.engine.ledger import (
        Account,
        Finding,
        Line,
        Overdrawn,
        Posting,
        Reference,
        audit_ledger,
        balance,
        moved,
        post,
        statement,
        trial_balance,
    )
    from payonce.engine.ledger.model import Reads
    from payonce.engine.messages.contract import Contract, NoPayload, Payload
    from payonce.engine.messages.inbox import accept
    from payonce.engine.messages.model import Message
    from payonce.engine.messages.policy import Exponential, Fixed, Policy, Steps
    from payonce.engine.messages.ports import Admin
    from payonce.engine.messages.push import Target
    from payonce.engine.messages.transaction import NotifyingFeed, Reader, Tx, begin
    from payonce.engine.messages.work import Handler, Work, handles
    from payonce.engine.monitoring.attention import Attention, AttentionSource
    from payonce.engine.monitoring.lookup import Lookup, LookupResult
    from payonce.engine.monitoring.vendor_calls import call_observer
    from payonce.engine.outbox import Relay
    from payonce.engine.reconcile import Entry, Flow, StatementSource
    from payonce.engine.webhooks import Received, Receiver, announce
    from payonce.kit.budget import Budget, Unlimited
    from payonce.kit.http import Application, HttpClient, Response, Watch, request_within
    from payonce.kit.http.transport import Transport
    from payonce.kit.ids import new_id
    from payonce.kit.log import get_logger
    from payonce.kit.money import Amount, Asset, Rounding, well_known
    from payonce.kit.outcomes import (
        Invalid,
        KeyReused,
        NotSent,
        PayonceError,
        Refused,
        Retry,
        Stale,
        Unavailable,
        Unknown,
        Unprocessable,
    )
    from payonce.kit.webhooks import Refusal, Scheme, Secret
    from payonce.service import Demo, DemoReport, Forwarding, Option, Running, Served, Service, Simulators, lazily
    from payonce.settings import Settings
    from payonce.settings.service import ServiceSettings, checked_url, checked_word

_HOMES: Final = {
    "payonce.engine.audit.run": "Audit",
    "payonce.engine.controls": "Action Approval Assessment Executed Link preview submit",
    "payonce.engine.database.connections": "Connection Database",
    "payonce.engine.database.notifier": "Notifier",
    "payonce.engine.database.rate_limits": "SharedBudget",
    "payonce.engine.effects": (
        "Answer Blind CannotTell DidNot Effect Findable Happened Harmless Keyed Rebroadcast Review "
        "EffectRecord answer_review next_generation reviews"
    ),
    "payonce.engine.janitors": "Daily Every Janitor Schedule",
    "payonce.engine.ledger": (
        "Account Finding Line Overdrawn Posting Reference audit_ledger balance moved post statement trial_balance"
    ),
    "payonce.engine.ledger.model": "Reads",
    "payonce.engine.messages.contract": "Contract NoPayload Payload",
    "payonce.engine.messages.inbox": "accept",
    "payonce.engine.messages.model": "Message",
    "payonce.engine.messages.policy": "Exponential Fixed Policy Steps",
    "payonce.engine.messages.ports": "Admin",
    "payonce.engine.messages.push": "Target",
    "payonce.engine.messages.transaction": "NotifyingFeed Reader Tx begin",
    "payonce.engine.messages.work": "Handler Work handles",
    "payonce.engine.monitoring.attention": "Attention AttentionSource",
    "payonce.engine.monitoring.lookup": "Lookup LookupResult",
    "payonce.engine.monitoring.vendor_calls": "call_observer",
    "payonce.engine.outbox": "Relay",
    "payonce.engine.reconcile": "Entry Flow StatementSource",
    "payonce.engine.webhooks": "Received Receiver announce",
    "payonce.kit.budget": "Budget Unlimited",
    "payonce.kit.http": "Application HttpClient Response Watch request_within",
    "payonce.kit.http.transport": "Transport",
    "payonce.kit.ids": "new_id",
    "payonce.kit.log": "get_logger",
    "payonce.kit.money": "Amount Asset Rounding well_known",
    "payonce.kit.outcomes": (
        "Invalid KeyReused NotSent PayonceError Refused Retry Stale Unavailable Unknown Unprocessable"
    ),
    "payonce.kit.webhooks": "Refusal Scheme Secret",
    "payonce.service": "Demo DemoReport Forwarding Option Running Served Service Simulators lazily",
    "payonce.settings": "Settings",
    "payonce.settings.service": "ServiceSettings checked_url checked_word",
}
"""The public names by the modules that define them; a module is imported when one of its names is used."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "Account",
    "Action",
    "Admin",
    "Amount",
    "Answer",
    "Application",
    "Approval",
    "Assessment",
    "Asset",
    "Attention",
    "AttentionSource",
    "Audit",
    "Blind",
    "Budget",
    "CannotTell",
    "Connection",
    "Contract",
    "Daily",
    "Database",
    "Demo",
    "DemoReport",
    "DidNot",
    "Effect",
    "EffectRecord",
    "Entry",
    "Every",
    "Executed",
    "Exponential",
    "Findable",
    "Finding",
    "Fixed",
    "Flow",
    "Forwarding",
    "Handler",
    "Happened",
    "Harmless",
    "HttpClient",
    "Invalid",
    "Janitor",
    "KeyReused",
    "Keyed",
    "Line",
    "Link",
    "Lookup",
    "LookupResult",
    "Message",
    "NoPayload",
    "NotSent",
    "Notifier",
    "NotifyingFeed",
    "Option",
    "Overdrawn",
    "Payload",
    "PayonceError",
    "Policy",
    "Posting",
    "Reader",
    "Reads",
    "Rebroadcast",
    "Received",
    "Receiver",
    "Reference",
    "Refusal",
    "Refused",
    "Relay",
    "Response",
    "Retry",
    "Review",
    "Rounding",
    "Running",
    "Schedule",
    "Scheme",
    "Secret",
    "Served",
    "Service",
    "ServiceSettings",
    "Settings",
    "SharedBudget",
    "Simulators",
    "Stale",
    "StatementSource",
    "Steps",
    "Target",
    "Transport",
    "Tx",
    "Unavailable",
    "Unknown",
    "Unlimited",
    "Unprocessable",
    "Watch",
    "Work",
    "__version__",
    "accept",
    "announce",
    "answer_review",
    "audit_ledger",
    "balance",
    "begin",
    "call_observer",
    "checked_url",
    "checked_word",
    "get_logger",
    "handles",
    "lazily",
    "moved",
    "new_id",
    "next_generation",
    "post",
    "preview",
    "request_within",
    "reviews",
    "statement",
    "submit",
    "trial_balance",
    "well_known",
]

# gRPC's own handlers of fork() end one child in four with a segmentation fault while calls are under way, before it
# becomes the program it was forked for. Nothing here calls gRPC in a forked child.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
# A port that is taken is told by us; gRPC's own line about it stands among log lines that are read as JSON.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
