"""Safeguards around customers of a merchant, each taken out: a named test misses it."""

from typing import Any

import pytest

from payonce.engine.messages.transaction import Tx
from payonce.services.billing.subscriptions.model import Account
from payonce.services.billing.subscriptions.store import customers, password_tokens
from tests.ablations import Ablations, cases, given, missed, patched
from tests.services.billing.api import test_customers, test_password_tokens
from tests.services.billing.api.conftest import OpenCounter


async def _nothing(*_: Any, **__: Any) -> None:
    return None


_edit = customers.edit


async def _edit_of_any_revision(tx: Tx, account_id: str, revision: int, changes: Any, by: str) -> Account:
    """The last writer wins."""
    locked = "select revision from subscriptions.accounts where id = $1 for no key update"
    return await _edit(tx, account_id, await tx.fetchval(locked, account_id), changes, by)


ANY_TOKEN = """
    select a.id from subscriptions.password_tokens t join subscriptions.accounts a on a.id = t.account_id
    where t.digest = $1 and ($2 = a.role or true)"""

GOOD_UNTIL_USED = test_password_tokens.test_a_token_that_is_no_longer_good_changes_nothing

ABLATIONS: Ablations = {
    "the check of the revision": (
        patched(customers, "edit", _edit_of_any_revision),
        [
            given(test_customers.test_an_edit_changes_what_it_names_and_a_stale_one_nothing),
            given(test_customers.test_of_many_edits_of_one_revision_one_is_made),
        ],
    ),
    "the events of customers": (
        patched(customers, "announce_customer", _nothing),
        [given(test_customers.test_webhooks_hear_of_every_new_and_edited_customer)],
    ),
    "the role that customers have": (
        patched(customers, "CUSTOMER", "operator"),
        [given(test_customers.test_pages_hold_every_customer_once_and_no_operator)],
    ),
    "the conditions of a password token": (
        patched(password_tokens, "_GOOD", ANY_TOKEN),
        [given(GOOD_UNTIL_USED, how) for how in ("expired", "a password was set since", "became an operator")],
    ),
    "the end of logins with a new password": (
        patched(password_tokens, "revoke_refresh_tokens", _nothing),
        [given(test_password_tokens.test_a_new_password_ends_every_login)],
    ),
}


@pytest.mark.parametrize(("name", "number"), cases(ABLATIONS))
async def test_without_a_safeguard_its_test_fails(counter: OpenCounter, name: str, number: int) -> None:
    await missed(ABLATIONS, name, number, counter)  # type: ignore[arg-type]
