"""Gift cards, ordered over HTTP and issued by a mint that loses answers: a service in a package of its own."""

from giftcards.handlers import expire_cards, issue_card
from giftcards.invariants import INVARIANTS
from giftcards.policies import EXPIRY
from giftcards.scopes import SCOPES
from giftcards.settings import GiftcardsSettings
from giftcards.store import REFERENCES
from payonce import Daily, Demo, Schedule, Service, lazily

SERVICE = Service(
    "giftcards",
    "giftcards",
    {"worker": [issue_card, expire_cards]},
    INVARIANTS,
    schedules=[Schedule("giftcards-expiry", EXPIRY, every=Daily("03:00", "UTC"))],
    settings=GiftcardsSettings,
    resources=lazily("giftcards.resources:open_mint"),
    references=REFERENCES,
    console=lazily("giftcards.console:pages"),
    scenarios=lazily("giftcards.scenario:scenarios"),
    routes=lazily("giftcards.api:build_routes"),
    scopes=SCOPES,
    tenant_scopes=tuple(SCOPES),
    demos=[
        Demo(
            "giftcards",
            lazily("giftcards.demo:demonstrate"),
            "Cards issued by a mint of which one call in five goes wrong, while three workers are killed and stopped "
            "again and again. At the end the mint's books and ours are compared.",
            size_flag="--cards",
        )
    ],
)
