"""Payment methods: the gateway's tokens, and what people recognise a card by. A card number is never here."""

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
"""Of one account."""
TOKEN_MAX_CHARS: Final = 200
ALREADY_IN_USE: Final = "the token is in use already; let the customer's browser make another one"


class UnknownMethod(Invalid):
    """There is no such payment method, or it is somebody else's, which is not to be told apart."""


class InUse(Stale):
    """A charge is under way on the card."""


@dataclass(frozen=True)
class AttachedMethod:
    method: PaymentMethod
    notice: Notice | None
    """For subscriptions: what waits for a card may be tried."""


async def describe_token(gateway: Gateway, token: str) -> CardToken:
    """What the gateway knows of a token that a customer's browser got from it."""
    found = await gateway.token(token)
    if found is None or len(found.id) > TOKEN_MAX_CHARS:
        raise Invalid("the gateway knows no such token; let the customer's browser make one there, and send that")
    return found


async def attach(tx: Tx, account_id: str, card: CardToken) -> AttachedMethod:
    """The first is the default. The same token again is the same payment method."""
    await _lock(tx, account_id)
    known = await tx.fetchrow("select * from payments.payment_methods where token = $1 and removed_at is null", card.id)
    if known is not None:
        if known["account_id"] != account_id:
            raise Invalid(ALREADY_IN_USE)
        return AttachedMethod(method_from(known), None)
    others = await of_account(tx, account_id)
    if len(others) >= METHODS_MAX:
        raise Invalid(
            f"the account has {len(others)} payment methods, and more than {METHODS_MAX} are too many; remove one first"
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
        # Of another account, this very moment: their lock is another one.
        raise Invalid(ALREADY_IN_USE)
    method = method_from(row)
    return AttachedMethod(method, await _notify(tx, method) if method.is_default else None)


async def make_default(tx: Tx, account_id: str, method_id: str) -> AttachedMethod:
    """What is charged from now on. A charge that is under way stays with the card that it began with."""
    await _lock(tx, account_id)
    method = await _own(tx, account_id, method_id)
    if method.is_default:
        return AttachedMethod(method, None)
    await _drop_default(tx, account_id)
    chosen = await _choose(tx, method_id)
    return AttachedMethod(chosen, await _notify(tx, chosen))


async def remove(tx: Tx, account_id: str, method_id: str) -> None:
    """Refused while a charge is under way on it. If it was the default, the newest of the others is: no charge is
    tried because of that, for nobody asked for one."""
    await _lock(tx, account_id)
    method = await _own(tx, account_id, method_id)
    if await tx.fetchval(
        "select exists (select from payments.transactions where payment_method_id = $1 and state = 'pending')",
        method_id,
    ):
        raise InUse(f"payment method {method_id} cannot be removed now: a charge is under way on it; try again later")
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
    """The newest first."""
    rows = await read.fetch(
        """
        select * from payments.payment_methods where account_id = $1 and removed_at is null
        order by created_at desc, id desc
        """,
        account_id,
    )
    return [method_from(row) for row in rows]


async def hold(tx: Tx, account_id: str, method_id: str) -> PaymentMethod:
    """For a charge that is to be made on it: it is not removed before this transaction ends."""
    row = await tx.fetchrow(
        "select * from payments.payment_methods where id = $1 and account_id = $2 and removed_at is null for share",
        method_id,
        account_id,
    )
    if row is None:
        raise UnknownMethod(f"there is no payment method {method_id!r}")
    return method_from(row)


async def _lock(tx: Tx, account_id: str) -> None:
    """Two changes at the same moment would not see each other."""
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
