"""Customers as managed by a merchant's back end: created, found by the merchant's own id, and edited.

A customer is an account with the role `customer`. Operators' accounts are neither listed nor edited here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import asyncpg

from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.ids import new_id
from payonce.services.billing.subscriptions.domain.refusals import Conflict, NotFound
from payonce.services.billing.subscriptions.handlers.merchant_events import announce_customer
from payonce.services.billing.subscriptions.model import Account, Invoice
from payonce.services.billing.subscriptions.store.accounts import (
    CUSTOMER,
    LOCATION,
    account,
    account_from,
    check_place,
    checked_email,
)

EXTERNAL_ID_MAX_CHARS: Final = 200
LISTED_MAX: Final = 500
EDITABLE: Final = ("email", "name", "external_id", "time_zone", "locale")


@dataclass(frozen=True)
class NewCustomer:
    email: str
    name: str = ""
    external_id: str | None = None
    time_zone: str = "UTC"
    locale: str = "en"


class EmailTaken(Conflict):
    """Another account has the e-mail address."""

    kind = "urn:payonce:problem:email-taken"


class ExternalIdTaken(Conflict):
    """Another customer has the external id."""

    kind = "urn:payonce:problem:external-id-taken"


class StaleRevision(Conflict):
    """The customer was edited since the caller read it."""

    kind = "urn:payonce:problem:stale-revision"


async def create(tx: Tx, new: NewCustomer, by: str) -> Account:
    """Creates a customer without a password. Raises EmailTaken or ExternalIdTaken, also after a race with another
    request."""
    email = checked_email(new.email)
    check_place(new.time_zone, new.locale)
    row = await tx.fetchrow(
        """
        insert into subscriptions.accounts (id, email, name, external_id, time_zone, locale)
        values ($1, $2, $3, $4, $5, $6) on conflict do nothing returning *
        """,
        str(new_id()),
        email,
        new.name,
        new.external_id,
        new.time_zone,
        new.locale,
    )
    if row is None:
        raise await _taken(tx, email, new.external_id)
    created = account_from(row)
    await tx.audit(LOCATION, created.id, "customer created", actor=by)
    await announce_customer(tx, "created", created)
    return created


async def edit(tx: Tx, account_id: str, revision: int, changes: Mapping[str, Any], by: str) -> Account:
    """Changes these fields of EDITABLE if `revision` is current. An edit that changes nothing returns the customer at
    any revision, so that requests can be repeated. Raises NotFound, StaleRevision, EmailTaken or ExternalIdTaken."""
    assert set(changes) <= set(EDITABLE)
    row = await tx.fetchrow(
        "select * from subscriptions.accounts where id = $1 and role = $2 for no key update", account_id, CUSTOMER
    )
    if row is None:
        raise NotFound(f"there is no customer {account_id!r}")
    wanted = {name: changes.get(name, row[name]) for name in EDITABLE}
    wanted["email"] = checked_email(wanted["email"])
    changed = [name for name in EDITABLE if wanted[name] != row[name]]
    if not changed:
        return account_from(row)
    check_place(wanted["time_zone"], wanted["locale"])
    _check_revision(account_id, revision, row["revision"])
    edited = await _update(tx, account_id, revision, wanted)
    await tx.execute(
        """
        insert into subscriptions.customer_edits (account_id, revision, email, name, locale)
        values ($1, $2, $3, $4, $5)
        """,
        account_id,
        revision,
        row["email"],
        row["name"],
        row["locale"],
    )
    await tx.audit(LOCATION, account_id, f"customer edited: {', '.join(changed)}", actor=by)
    await announce_customer(tx, "updated", edited)
    return edited


async def find(read: Reader | Tx, account_id: str) -> Account | None:
    row = await read.fetchrow("select * from subscriptions.accounts where id = $1 and role = $2", account_id, CUSTOMER)
    return None if row is None else account_from(row)


async def listed(
    read: Reader | Tx, external_id: str | None, email: str | None, after: str | None, limit: int
) -> list[Account]:
    """Newest first; `after` is the last id of the previous page. Raises Invalid for a malformed e-mail address."""
    asked = (
        ("external_id = {}", external_id),
        ("email = {}", None if email is None else checked_email(email)),
        ("(created_at, id) < (select created_at, id from subscriptions.accounts where id = {})", after),
    )
    # The statement contains only the given filters, so that it can use an index.
    given = [(condition, value) for condition, value in asked if value is not None]
    where = "".join(f" and {condition.format(f'${n}')}" for n, (condition, _) in enumerate(given, start=2))
    rows = await read.fetch(
        f"""
        select * from subscriptions.accounts where role = $1{where}
        order by created_at desc, id desc limit {min(limit, LISTED_MAX)}
        """,
        CUSTOMER,
        *(value for _, value in given),
    )
    return [account_from(row) for row in rows]


async def as_invoiced(read: Reader | Tx, invoice: Invoice) -> Account:
    """The customer with name, e-mail address and locale as of the invoice's issue."""
    customer = await account(read, invoice.account_id)
    row = await read.fetchrow(
        """
        select e.email, e.name, e.locale
        from subscriptions.customer_edits e join subscriptions.invoices i on i.account_id = e.account_id
        where i.id = $1 and e.replaced_at > i.created_at order by e.revision limit 1
        """,
        invoice.id,
    )
    return customer if row is None else replace(customer, **row)


def _check_revision(account_id: str, read: int, current: int) -> None:
    if read != current:
        raise StaleRevision(
            f"revision {read} of customer {account_id} is outdated, the current one is {current}; read the "
            "customer again, and repeat the edit if it is still wanted"
        )


async def _update(tx: Tx, account_id: str, revision: int, wanted: Mapping[str, Any]) -> Account:
    try:
        # In a nested transaction, so that the cause of a violation can be looked up.
        async with tx.savepoint():
            row = await tx.fetchrow(
                """
                update subscriptions.accounts
                set email = $3, name = $4, external_id = $5, time_zone = $6, locale = $7, revision = revision + 1,
                    updated_at = payonce.due_now()
                where id = $1 and revision = $2 returning *
                """,
                account_id,
                revision,
                *(wanted[name] for name in EDITABLE),
            )
    except asyncpg.UniqueViolationError as error:
        raise await _taken(tx, wanted["email"], wanted["external_id"], but=account_id) from error
    assert row is not None, "the row is locked"
    return account_from(row)


async def _taken(tx: Tx, email: str, external_id: str | None, but: str = "") -> Conflict:
    row = await tx.fetchrow(
        """
        select id, external_id from subscriptions.accounts
        where (email = $1 or external_id = $2) and id <> $3 order by external_id = $2 desc nulls last limit 1
        """,
        email,
        external_id,
        but,
    )
    if row is None:
        return Conflict("another customer had this e-mail address or external_id a moment ago; try again")
    if external_id is not None and row["external_id"] == external_id:
        return ExternalIdTaken(
            f"external_id {external_id!r} belongs to customer {row['id']}; edit that customer, or give another "
            "external_id"
        )
    return EmailTaken(
        f"the e-mail address {email!r} belongs to account {row['id']}; edit that customer, or give another address"
    )
