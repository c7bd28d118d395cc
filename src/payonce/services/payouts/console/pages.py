"""The pages of payouts, and the host wallet on the Vendors page."""

from pathlib import Path
from typing import Final

from payonce.console.page import Page, ServicePages, VendorSection, get, post
from payonce.engine.operators import Role
from payonce.services.payouts.console.accumulation import show_accumulation
from payonce.services.payouts.console.days import show_days
from payonce.services.payouts.console.payout import decide_payout, show_payout
from payonce.services.payouts.console.payouts import list_payouts
from payonce.services.payouts.console.queries import if_installed
from payonce.services.payouts.console.wallet import change_limits, wallet_section

PAGES: Final = (
    Page(
        "Payouts",
        "/payouts",
        (
            get("/payouts", if_installed("Payouts", list_payouts)),
            get("/payouts/days", if_installed("Payouts by day", show_days)),
            get("/payouts/accumulating", if_installed("Accumulating by client", show_accumulation)),
            get("/payouts/{id}", if_installed("Payout", show_payout)),
            post("/payouts/{id}/decide", if_installed("Payout", decide_payout)),
            post("/vendors/wallet-limits", if_installed("Vendors", change_limits), Role.APPROVER),
        ),
        group="Money",
    ),
)

TONES: Final = {
    "received": "calm",
    "priced": "calm",
    "swap_creating": "calm",
    "swapped": "calm",
    "paying": "calm",
    "paid_in": "calm",
    "finished": "good",
    "accumulating": "plain",
    "held": "bad",
    "review": "bad",
    "rejected": "plain",
    "refunded": "warn",
    "creating": "calm",
    "created": "calm",
    "lapsed": "plain",
    "returned": "warn",
    "abandoned": "plain",
    "signed": "calm",
    "sent": "calm",
    "final": "good",
    "reverted": "bad",
    "lost": "bad",
}
"""Colours of the states of payouts, swaps and deposits."""


def service_pages() -> ServicePages:
    return ServicePages(
        PAGES,
        Path(__file__).parent / "templates",
        {"payout": TONES},
        (VendorSection(wallet_section, "payouts/wallet.html", "payouts/wallet_limits.html"),),
    )
