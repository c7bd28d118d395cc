"""Payment methods: gateway tokens and recognisable card details, never a card number."""

from dataclasses import dataclass
from typing import Any, Final

from payonce.engine.messages.transaction import Reader, Tx
from payonce.kit.ids import new_id
from payonce.kit.outcomes import Invalid, Stale
from payonce.services.billing.payments.model import PaymentMethod
from payonce.services.billing.payments.store import notifications
from payonce.services.billing.payments.store.notifications import Notice
from payonce.vendors.gateway.port import CardToken, Gateway

METHODS_MAX: Final = 20
"""Per account."""
TOKEN_MAX_CHARS: Final = 200
ALREADY_IN_USE: Final = "the token is already in use; let the customer's browser create another one"


class UnknownMethod(Invalid):
    """There is no such payment method, or it belongs to another account; callers cannot tell which."""


class InUse(Stale):
    """A charge on the card is in progress."""


@dataclass(frozen=True)
class AttachedMethod:
    method: PaymentMethod
    notice: Notice | None
    """For subscriptions, which may charge overdue invoices."""


async def describe_token(gateway: Gateway, token: str) -> CardToken:
    """The gateway's details of a token that a customer's browser created. Raises Invalid for an unknown token."""
    found = await gateway.token(token)
    if found is None or len(found.id) > TOKEN_MAX_CHARS:
        raise Invalid("the gateway knows no such token; let the customer's browser create one there, and send that")
    return found


async def attach(tx: Tx, account_id: str, card: CardToken) -> AttachedMethod:
    """Adds a card; the first one is the default. A repeated token returns the same payment method."""
    await _lock(tx, account_id)
    known = await tx.fetchrow("select * from payments.payment_methods where token = $1 and removed_at is null", card.id)
    if known is not None:
        if known["account_id"] != account_id:
            raise Invalid(ALREADY_IN_USE)
        return AttachedMethod(method_from(known), None)
    others = await of_account(tx, account_id)
    if len(others) >= METHODS_MAX:
        raise Invalid(
            f"the account has {len(others)} payment methods, and at most {METHODS_MAX} are allowed; remove one first"
        )
    row = await tx.fetchrow(
        """
        insert into payments.payment_methods (
            id, account_id, token, brand, last4, exp_month, exp_year, is_default)
        values ($1, $2, $3, $4, $5, $6, $7, $8) on conflict (token) where removed_at is null do nothing returning *
        """,
        str(new_id()),
        account_id,
        card.id,
        card.brand[:40],
        card.last4,
        card.exp_month,
        card.exp_year,
        not others,
    )
    if row is None:
        # Another account is adding the token at this moment, behind a lock of its own.
        raise Invalid(ALREADY_IN_USE)
    method = method_from(row)
    return AttachedMethod(method, await _notify(tx, method) if method.is_default else None)


async def make_default(tx: Tx, account_id: str, method_id: str) -> AttachedMethod:
    """Selects the card for future charges. A charge in progress keeps its card."""
    await _lock(tx, account_id)
    method = await _own(tx, account_id, method_id)
    if method.is_default:
        return AttachedMethod(method, None)
    await _drop_default(tx, account_id)
    chosen = await _choose(tx, method_id)
    return AttachedMethod(chosen, await _notify(tx, chosen))


async def remove(tx: Tx, account_id: str, method_id: str) -> None:
    """Removes a card, unless a charge on it is in progress. If it was the default, the newest of the others becomes the
    default; that alone starts no charge, since nobody requested one."""
    await _lock(tx, account_id)
    method = await _own(tx, account_id, method_id)
    if await tx.fetchval(
        "select exists (select from payments.transactions where payment_method_id = $1 and state = 'pending')",
        method_id,
    ):
        raise InUse(f"payment method {method_id} cannot be removed now: a charge on it is in progress; try again later")
    await tx.execute(
        """
        update payments.payment_methods
        set removed_at = payonce.due_now(), is_default = false, updated_at = payonce.due_now() where id = $1
        """,
        method_id,
    )
    others = await of_account(tx, account_id)
    if method.is_default and others:
        await _choose(tx, others[0].id)


async def of_account(read: Reader | Tx, account_id: str) -> list[PaymentMethod]:
    """Newest first."""
    rows = await read.fetch(
        """
        select * from payments.payment_methods where account_id = $1 and removed_at is null
        order by created_at desc, id desc
        """,
        account_id,
    )
    return [method_from(row) for row in rows]


async def hold(tx: Tx, account_id: str, method_id: str) -> PaymentMethod:
    """Keeps the card from being removed until this transaction ends."""
    row = await tx.fetchrow(
        "select * from payments.payment_methods where id = $1 and account_id = $2 and removed_at is null for share",
        method_id,
        account_id,
    )
    if row is None:
        raise UnknownMethod(f"there is no payment method {method_id!r}")
    return method_from(row)


async def _lock(tx: Tx, account_id: str) -> None:
    """Concurrent changes would not see each other."""
    await tx.execute("select pg_advisory_xact_lock(hashtextextended('payments.methods ' || $1, 0))", account_id)


async def _own(tx: Tx, account_id: str, method_id: str) -> PaymentMethod:
    row = await tx.fetchrow(
        "select * from payments.payment_methods where id = $1 and account_id = $2 and removed_at is null for update",
        method_id,
        account_id,
    )
    if row is None:
        raise UnknownMethod(f"there is no payment method {method_id!r}")
    return method_from(row)


async def _drop_default(tx: Tx, account_id: str) -> None:
    await tx.execute(
        """
        update payments.payment_methods set is_default = false, updated_at = payonce.due_now()
        where account_id = $1 and is_default
        """,
        account_id,
    )


async def _choose(tx: Tx, method_id: str) -> PaymentMethod:
    return method_from(
        await tx.fetchrow(
            """
            update payments.payment_methods set is_default = true, updated_at = payonce.due_now()
            where id = $1 returning *
            """,
            method_id,
        )
    )


async def _notify(tx: Tx, method: PaymentMethod) -> Notice:
    notice = notifications.of_method(method, await tx.fetchval("select payonce.due_now()"))
    await notifications.record(tx, notice)
    await notifications.send(tx, notice)
    return notice


def method_from(row: Any) -> PaymentMethod:
    return PaymentMethod(
        id=row["id"],
        account_id=row["account_id"],
        token=row["token"],
        brand=row["brand"],
        last4=row["last4"],
        exp_month=row["exp_month"],
        exp_year=row["exp_year"],
        is_default=row["is_default"],
        created_at=row["created_at"],
    )
