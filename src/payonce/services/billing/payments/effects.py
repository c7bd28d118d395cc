"""What payments do at the gateway, and how a doubt about it is ended."""

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
"""The gateway counts its day by its own clock: what is nearly forgotten is looked for, not sent again."""
RECORD_MARGIN_S: Final = 5.0
"""Beyond the call itself, so that its own end is what ends it."""
REASON_MAX_CHARS: Final = 200
"""Of a refund's reason, as the gateway is told it."""

NO_CARD: Final = "no_payment_method"
REFUSED_CODE: Final = "refused"
"""The code of a no that is neither the card's nor the gateway's, as when a person said that it is not to be."""
_HARD_REFUSALS: Final = frozenset({RefusalCode.NO_SUCH_TOKEN.value})
_REFUSED: Final = re.compile(r"refused \((?P<code>\w{1,64})\): .*", re.ASCII | re.DOTALL)


class GatewayResult(msgspec.Struct, frozen=True):
    """That it happened, under the gateway's name for it. No more: a line of the gateway's statement tells as much."""

    id: str


class ChargeCard(Effect[ChargeOrder, GatewayResult]):
    """In doubt the same order goes out again under the same key, and happens once. When the gateway may have forgotten
    the key it is asked; what it does not show then is before a person."""

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
        """Asked only when the gateway may have forgotten the key. One that was declined captured nothing."""
        found = await self.gateway.find_charge(request.reference)
        if found is None or found.status is not ChargeStatus.SUCCEEDED:
            return DidNot()
        return _matching_result(found, request)

    def amount(self, request: ChargeOrder) -> Amount:
        return self.transaction.amount

    def vendor_ref(self, outcome: GatewayResult) -> str:
        return outcome.id


class RefundCharge(Effect[RefundOrder, GatewayResult]):
    """Gives back some or all of a charge, in doubt as a charge is made."""

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
    """Of another amount it is not ours to book: subscriptions would be told what nobody took."""
    if (found.amount, found.currency) == (request.amount, request.currency):
        return Happened(GatewayResult(found.id))
    return CannotTell(
        f"{found.id} is of {found.amount} {found.currency} in minor units, and {request.amount} {request.currency} "
        "was asked for; a person has to look"
    )


@dataclass(frozen=True)
class ChargeFailure:
    """Why a charge failed."""

    code: str
    hard: bool
    """Another try with this card is of no use."""
    reason: str
    charge_id: str | None = None
    """Of a declined charge, which is on the gateway's books although it captured nothing."""


def read_failure(refused: Refused) -> ChargeFailure:
    """A refusal, fresh or from the record, which keeps its sentence alone."""
    declined = Declined.read(refused)
    if declined is not None:
        return ChargeFailure(declined.code, declined.hard, declined.message, declined.charge_id)
    match = _REFUSED.fullmatch(refused.reason)
    code = REFUSED_CODE if match is None else match["code"]
    return ChargeFailure(code, code in _HARD_REFUSALS, refused.reason)


_FIRST: Final = ":1"


def sent_as(reference: str) -> str:
    """What the gateway knows an effect by: its key, and from the second generation on, which only a person begins,
    the generation as well."""
    return reference.removesuffix(_FIRST)


def reference_of(sent: str, *, key_colons: int) -> str:
    """The effect's `key:generation` again, of a key with so many colons in it."""
    return f"{sent}{_FIRST}" if sent.count(":") == key_colons else sent
