"""Typed payloads: a queue declares a struct; mypy checks what is sent and read, and the engine what arrives."""

from contextlib import AbstractAsyncContextManager
from typing import Any, cast

import msgspec
import pytest

from payonce.engine.database.leases import acquire
from payonce.engine.messages.contract import Contract
from payonce.engine.messages.policy import Policy
from payonce.engine.messages.transaction import Tx
from payonce.engine.messages.work import Work, handles
from payonce.kit.outcomes import Invalid, Stale
from payonce.testing import OpenStage


class Order(msgspec.Struct, frozen=True):
    gift_card: str
    cents: int = 500


ORDERS = Policy("typed-orders", payload=Order, max_attempts=1)


def test_the_payload_is_a_contract_of_one_type() -> None:
    assert ORDERS.contract == Contract({"": Order})
    assert ORDERS.described()["actions"] == [""]


def test_a_payload_that_is_no_struct_is_refused_and_so_are_two_declarations() -> None:
    with pytest.raises(Invalid, match=r"typed-orders: the payload <class 'dict'> must be a msgspec\.Struct"):
        Policy("typed-orders", payload=dict)
    with pytest.raises(Invalid, match="give payload or contract, not both"):
        Policy("typed-orders", payload=Order, contract=Contract({"other": Order}))


async def test_what_is_sent_is_what_the_handler_reads(stage: OpenStage) -> None:
    read: list[Order] = []

    @handles(ORDERS)
    async def take(work: Work[Order]) -> None:
        read.append(work.payload)
        async with work.commit():
            pass

    async with stage() as s:
        await s.feed.declare([ORDERS])
        async with s.begin() as tx:
            await tx.send(ORDERS, Order("g-1"))
            await tx.send(ORDERS, cast(Any, {"gift_card": "g-2", "cents": 700}))
            await tx.send(ORDERS, cast(Any, {"gift_card": 3}))
        await s.drain(await s.worker(take))
        assert (await s.admin.depth(ORDERS.queue)).parked == 1
    assert sorted(read, key=lambda order: order.gift_card) == [Order("g-1"), Order("g-2", 700)]


async def test_another_struct_is_a_type_error_and_a_text_is_refused(stage: OpenStage) -> None:
    async with stage() as s:
        await s.feed.declare([ORDERS])
        with pytest.raises(Invalid, match="a payload is a struct or a mapping, and this is str"):
            async with s.begin() as tx:
                await tx.send(ORDERS, "g-1")  # type: ignore[misc]


async def audit_and_fail(begun: AbstractAsyncContextManager[Tx]) -> None:
    async with begun as tx:
        await tx.audit("giftcards.refunds", "g-1", "refunded", actor="ada")
        raise ArithmeticError


async def undo(tx: Tx) -> None:
    async with tx.savepoint():
        await tx.audit("giftcards.refunds", "g-1", "undone", actor="ada")
        raise ArithmeticError


async def test_an_audit_entry_and_many_rows_belong_to_the_transaction(stage: OpenStage) -> None:
    count = "select count(*) from payonce.audit_log where location = 'giftcards.refunds'"
    async with stage() as s:
        with pytest.raises(ArithmeticError):
            await audit_and_fail(s.begin())
        assert await s.owner.fetchval(count) == 0
        async with s.begin() as tx:
            with pytest.raises(ArithmeticError):
                await undo(tx)
            await tx.audit("giftcards.refunds", "g-1", "refunded", actor="ada")
        assert await s.owner.fetchval(count) == 1


async def test_a_transaction_is_fenced_by_a_lease(stage: OpenStage) -> None:
    async with stage() as s:
        lease = await acquire(s.database, "wallet", "one", 60.0)
        assert lease is not None
        async with s.begin() as tx:
            await tx.fence(lease)
        await s.owner.execute("update payonce.leases set holder = 'two', epoch = epoch + 1 where name = 'wallet'")
        with pytest.raises(Stale):
            async with s.begin() as tx:
                await tx.fence(lease)
