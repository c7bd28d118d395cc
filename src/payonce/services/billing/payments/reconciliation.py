"""Reconciles the gateway's balance transactions with our charges and refunds, in both directions."""

from bisect import bisect_left
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from payonce.engine.ledger.model import Reads
from payonce.engine.reconcile import Entry, Flow, StatementSource
from payonce.services.billing.payments.effects import ChargeCard, GatewayResult, RefundCharge, reference_of
from payonce.services.billing.payments.ledger import CLEARING
from payonce.vendors.gateway.port import Gateway, LineKind, StatementLine

RECONCILE_EVERY_S: Final = 600.0
SHOWN_WITHIN_S: Final = 60.0
"""The gateway books at once; its clock and ours may differ by this much."""
PLACES_MAX: Final = 100_000
"""Page starts that are cached; at the limit, every second one of the older half is dropped."""

CHARGE_KEY_COLONS: Final = 1
"""`invoice:attempt`."""
REFUND_KEY_COLONS: Final = 0


class GatewayStatement(StatementSource):
    """Every capture and refund under our keys. A declined charge moved no money and has no line."""

    vendor = "gateway"
    kinds: Mapping[str, Flow] = {ChargeCard.kind: Flow.IN, RefundCharge.kind: Flow.OUT}
    mirror = CLEARING
    lag_s = SHOWN_WITHIN_S
    every_s = RECONCILE_EVERY_S

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._moments: list[datetime] = []
        self._places: list[str] = []
        """The last line of each page that was read, by its time: the gateway has no query by time."""

    async def entries(self, since: datetime, until: datetime) -> AsyncIterator[Entry]:
        after = self._place_before(since)
        while True:
            page = await self._gateway.statement(after)
            for line in page.lines:
                if since <= line.created < until:
                    yield _entry(line)
            if page.after is None or page.lines[-1].created >= until:
                return
            after = page.after
            self._remember(page.lines[-1])

    async def expects(self, read: Reads, entry: Entry) -> bool:
        split = entry.key_and_generation
        key = None if split is None else split[0]
        minor, asset = abs(entry.amount).minor, entry.amount.asset
        if entry.kind == ChargeCard.kind:
            return bool(
                await read.fetchval(
                    """
                    select exists (select from payments.transactions where charge_key = $1 and amount_minor = $2
                        and currency = $3 and exponent = $4 and state = 'pending')
                    """,
                    key,
                    minor,
                    asset.code,
                    asset.exponent,
                )
            )
        return bool(
            await read.fetchval(
                """
                select exists (select from payments.refunds where id = $1 and amount_minor = $2 and state = 'pending')
                """,
                key,
                minor,
            )
        )

    def _place_before(self, since: datetime) -> str | None:
        index = bisect_left(self._moments, since)
        return self._places[index - 1] if index else None

    def _remember(self, line: StatementLine) -> None:
        if self._moments and line.created <= self._moments[-1]:
            return
        self._moments.append(line.created)
        self._places.append(line.id)
        if len(self._places) > PLACES_MAX:
            half = PLACES_MAX // 2
            self._moments[:half] = self._moments[:half:2]
            self._places[:half] = self._places[:half:2]


def statements(resources: Sequence[object]) -> list[StatementSource]:
    return [GatewayStatement(each) for each in resources if isinstance(each, Gateway)]


def _entry(line: StatementLine) -> Entry:
    charge = line.kind is LineKind.CHARGE
    kind = ChargeCard.kind if charge else RefundCharge.kind
    colons = CHARGE_KEY_COLONS if charge else REFUND_KEY_COLONS
    reference = reference_of(line.reference, key_colons=colons) if line.reference else None
    return Entry(line.source, reference, kind, line.money, line.created, GatewayResult(line.source))
