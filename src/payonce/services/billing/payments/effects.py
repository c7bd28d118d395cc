"""The effects of payments at the gateway, and how uncertain results are resolved."""

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from payonce.engine.effects import CannotTell, DidNot, Effect, Happened, Keyed
from payonce.kit.money import Amount
from payonce.kit.outcomes import Refused
from payonce.services.billing.payments.model import Refund, Transaction
from payonce.vendors.gateway.port import (
    CALL_MAX_S,
    INVOICE,
    KEYS_KEPT_S,
    ChargeOrder,
    ChargeStatus,
    Declined,
    Gateway,
    RefundOrder,
    RefusalCode,
)
from payonce.vendors.gateway.port import Charge as GatewayCharge
from payonce.vendors.gateway.port import Refund as GatewayRefund

KEY_MARGIN_S: Final = 3_600.0
"""The gateway counts 24 hours by its own clock: keys near their expiry are looked up, not sent again."""
RECORD_MARGIN_S: Final = 5.0
"""Beyond the call's own timeout, which should fire first."""
REASON_MAX_CHARS: Final = 200
"""The longest refund reason that is sent to the gateway."""

NO_CARD: Final = "no_payment_method"
REFUSED_CODE: Final = "refused"
"""The code of a refusal by neither the card nor the gateway, such as an operator's decision."""
_HARD_REFUSALS: Final = frozenset({RefusalCode.NO_SUCH_TOKEN.value})
_REFUSED: Final = re.compile(r"refused \((?P<code>\w{1,64})\): .*", re.ASCII | re.DOTALL)


class GatewayResult(msgspec.Struct, frozen=True):
    """The gateway's id of the completed operation. It holds nothing else, since a line of the gateway's statement has
    no more."""

    id: str


class ChargeCard(Effect[ChargeOrder, GatewayResult]):
    """Charges a card. An uncertain order is sent again under the same key and executed once. If the gateway may have
    forgotten the key, the charge is looked up; if it is not found, a person decides."""

    kind, version, timeout_s = "gateway.charge", 1, CALL_MAX_S + RECORD_MARGIN_S
    safety = Keyed(KEYS_KEPT_S - KEY_MARGIN_S)

    def __init__(self, gateway: Gateway, transaction: Transaction, token: str) -> None:
        self.gateway = gateway
        self.transaction = transaction
        self.token = token

    async def prepare(self) -> ChargeOrder:
        transaction, key = self.transaction, sent_as(self.reference)
        metadata = {"transaction": transaction.id, "account": transaction.account_id}
        if transaction.invoice_id is not None:
            metadata[INVOICE] = transaction.invoice_id
        amount = transaction.amount
        return ChargeOrder(key, amount.minor, amount.asset.code, self.token, key, metadata)

    async def perform(self, request: ChargeOrder) -> GatewayResult:
        return GatewayResult((await self.gateway.charge(request)).id)

    async def resolve(self, request: ChargeOrder) -> Happened[GatewayResult] | DidNot | CannotTell:
        """Used only when the gateway may have forgotten the key. A declined charge captured nothing."""
        found = await self.gateway.find_charge(request.reference)
        if found is None or found.status is not ChargeStatus.SUCCEEDED:
            return DidNot()
        return _matching_result(found, request)

    def amount(self, request: ChargeOrder) -> Amount:
        return self.transaction.amount

    def vendor_ref(self, outcome: GatewayResult) -> str:
        return outcome.id


class RefundCharge(Effect[RefundOrder, GatewayResult]):
    """Refunds a charge in full or in part, with the same resolution as a charge."""

    kind, version, timeout_s = "gateway.refund", 1, CALL_MAX_S + RECORD_MARGIN_S
    safety = Keyed(KEYS_KEPT_S - KEY_MARGIN_S)

    def __init__(self, gateway: Gateway, refund: Refund, charge_id: str) -> None:
        self.gateway = gateway
        self.refund = refund
        self.charge_id = charge_id

    async def prepare(self) -> RefundOrder:
        key, amount = sent_as(self.reference), self.refund.amount
        reason = self.refund.reason[:REASON_MAX_CHARS]
        return RefundOrder(key, self.charge_id, amount.minor, amount.asset.code, key, reason)

    async def perform(self, request: RefundOrder) -> GatewayResult:
        return GatewayResult((await self.gateway.refund(request)).id)

    async def resolve(self, request: RefundOrder) -> Happened[GatewayResult] | DidNot | CannotTell:
        found = await self.gateway.find_refund(request.reference)
        return DidNot() if found is None else _matching_result(found, request)

    def amount(self, request: RefundOrder) -> Amount:
        return self.refund.amount

    def vendor_ref(self, outcome: GatewayResult) -> str:
        return outcome.id


def _matching_result(
    found: GatewayCharge | GatewayRefund, request: ChargeOrder | RefundOrder
) -> Happened[GatewayResult] | CannotTell:
    """A result with another amount is not booked: subscriptions would be notified of an amount that nobody
    requested."""
    if (found.amount, found.currency) == (request.amount, request.currency):
        return Happened(GatewayResult(found.id))
    return CannotTell(
        f"{found.id} is {found.amount} {found.currency} in minor units, but {request.amount} {request.currency} "
        "was requested; a person must decide"
    )


@dataclass(frozen=True)
class ChargeFailure:
    """The reason of a failed charge."""

    code: str
    hard: bool
    """Another attempt with this card cannot succeed."""
    reason: str
    charge_id: str | None = None
    """The gateway's id of a declined charge, which its books contain although nothing was captured."""


def read_failure(refused: Refused) -> ChargeFailure:
    """Parses a refusal, new or from the effect's record, which keeps only its text."""
    declined = Declined.read(refused)
    if declined is not None:
        return ChargeFailure(declined.code, declined.hard, declined.message, declined.charge_id)
    match = _REFUSED.fullmatch(refused.reason)
    code = REFUSED_CODE if match is None else match["code"]
    return ChargeFailure(code, code in _HARD_REFUSALS, refused.reason)


_FIRST: Final = ":1"


def sent_as(reference: str) -> str:
    """The gateway's name of an effect: its key, and from the second generation on, which only a person starts, also the
    generation."""
    return reference.removesuffix(_FIRST)


def reference_of(sent: str, *, key_colons: int) -> str:
    """The inverse of `sent_as`: the effect's `key:generation`, for keys with this number of colons."""
    return f"{sent}{_FIRST}" if sent.count(":") == key_colons else sent
