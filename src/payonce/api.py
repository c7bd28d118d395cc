"""The names a service is written with, in one place: `from payonce.api import Policy, Work, handles, …`.

Inside payonce every module imports from where a thing lives; this is for those who build on it.
"""

from payonce.engine.effects import (
    Blind,
    CannotTell,
    DidNot,
    Effect,
    Findable,
    Happened,
    Harmless,
    Keyed,
    Rebroadcast,
    next_generation,
)
from payonce.engine.janitors import Daily, Every, Schedule
from payonce.engine.ledger import Account, Line, Overdrawn, Posting, Reference, balance, moved
from payonce.engine.messages.model import Message
from payonce.engine.messages.policy import Exponential, Fixed, Policy, Steps
from payonce.engine.messages.transaction import Reader, Tx
from payonce.engine.messages.work import Handler, Work, handles
from payonce.engine.webhooks import Received, Receiver, announce
from payonce.kit.budget import Budget, Unlimited
from payonce.kit.http import HttpClient
from payonce.kit.money import Amount, Asset, Rounding, well_known
from payonce.kit.outcomes import Invalid, KeyReused, NotSent, Refused, Retry, Stale, Unavailable, Unknown
from payonce.kit.webhooks import Refusal, Scheme, Secret

__all__ = [
    "Account",
    "Amount",
    "Asset",
    "Blind",
    "Budget",
    "CannotTell",
    "Daily",
    "DidNot",
    "Effect",
    "Every",
    "Exponential",
    "Findable",
    "Fixed",
    "Handler",
    "Happened",
    "Harmless",
    "HttpClient",
    "Invalid",
    "KeyReused",
    "Keyed",
    "Line",
    "Message",
    "NotSent",
    "Overdrawn",
    "Policy",
    "Posting",
    "Reader",
    "Rebroadcast",
    "Received",
    "Receiver",
    "Reference",
    "Refusal",
    "Refused",
    "Retry",
    "Rounding",
    "Schedule",
    "Scheme",
    "Secret",
    "Stale",
    "Steps",
    "Tx",
    "Unavailable",
    "Unknown",
    "Unlimited",
    "Work",
    "announce",
    "balance",
    "handles",
    "moved",
    "next_generation",
    "well_known",
]
