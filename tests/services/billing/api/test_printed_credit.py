"""An invoice that was taken back or given up does not say that it was paid from credit which its customer has again."""

import io
from datetime import timedelta
from decimal import Decimal

import pypdf

from payonce.services.billing.scopes import CHARGE
from tests.services.billing.api.conftest import OpenShop
from tests.services.billing.api.counter import Shop
from tests.services.billing.api.test_credit_api import ADJUSTMENTS, balance_of, order
from tests.services.billing.billing_stage import BEGIN, DECLINES

PAID, BACK = "Paid from credit", "Credit given back"


async def given_credit(ask: Shop, ada: Shop) -> None:
    till = await ask.with_key("till", CHARGE)
    assert (await till.order(ADJUSTMENTS, order(ada, "14.00", change="add"))).status < 300


async def printed(ada: Shop) -> tuple[str, str]:
    """State and text of the newest invoice."""
    invoice = (await ada.get("/v1/invoices")).json["invoices"][0]
    document = (await ada.get(f"/v1/invoices/{invoice['id']}/pdf")).body
    text = pypdf.PdfReader(io.BytesIO(document)).pages[0].extract_text().replace("\N{NO-BREAK SPACE}", " ")
    return invoice["state"], text


async def test_a_void_invoice_says_that_its_credit_was_given_back(shop: OpenShop) -> None:
    async with shop() as ask:
        ada = await ask.customer("ada@example.com", DECLINES)
        await given_credit(ask, ada)
        made = await ada.subscribed()
        state, text = await printed(ada)
        assert (state, f"{PAID}\n-14.00 AED" in text, BACK in text) == ("open", True, False)
        await ada.order(f"/v1/subscriptions/{made['id']}/cancel", {"at": "now"})
        assert await balance_of(ada) == "14.00"
        state, text = await printed(ada)
        assert (state, f"{BACK}\n14.00 AED\nAmount due\n0.00 AED" in text, PAID in text) == ("void", True, False)


async def test_an_uncollectible_invoice_says_how_much_of_its_credit_was_given_back(shop: OpenShop) -> None:
    """Half of the month was served, and took up most of the credit."""
    async with shop() as ask:
        ada = await ask.customer("ada@example.com")
        await ada.subscribed()
        await given_credit(ask, ada)
        [token] = ask.house.gateway.cards
        ask.house.gateway.script(token, *["insufficient_funds"] * 6)
        await ask.house.go_to(BEGIN + timedelta(days=50))
        back = Decimal(await balance_of(ada))
        assert 0 < back < 14
        state, text = await printed(ada)
        served = Decimal("14.00") - back
        assert state == "uncollectible"
        assert f"{PAID}\n-{served} AED\n{BACK}\n{back} AED" in text
        assert await ask.house.broken() == {}
