"""The page of gift cards in the console."""

from pathlib import Path
from typing import Final

from starlette.responses import Response

from giftcards.model import State, card_from
from payonce.console.kit import Page, ServicePages, Visit, bounded, choice_of, get

ROWS_MAX: Final = 100
TONES: Final = {"issued": "good", "refused": "bad", "expired": "plain", "ordered": "calm", "issuing": "calm"}


async def list_cards(visit: Visit) -> Response:
    state = choice_of(visit.query, "state", ("all", *State), "all")
    async with bounded(visit) as read:
        rows = await read.fetch(
            """
            select * from giftcards.cards where $1 in ('all', state) order by created_at desc limit $2
            """,
            state,
            ROWS_MAX,
        )
    return visit.page("giftcards/list.html", "Gift cards", cards=[(card_from(row), row) for row in rows], chosen=state)


def pages() -> ServicePages:
    return ServicePages(
        [Page("Gift cards", "/giftcards", (get("/giftcards", list_cards),), group="Gift cards")],
        Path(__file__).parent / "templates",
        tones={"giftcard": TONES},
    )
