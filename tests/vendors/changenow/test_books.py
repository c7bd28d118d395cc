"""The simulator's books: what was deposited, traded, paid and returned adds up, and outlives the process."""

import random
from collections import Counter
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from payonce.kit.http import HttpClient
from payonce.kit.outcomes import Invalid, NotSent, Retry, Unavailable, Unknown
from payonce.testing.faults import FaultPlan, Odds
from payonce.testing.faulty import Faulty
from payonce.testing.server import serving
from payonce.vendors.changenow.books import AT_ONCE, Fate
from payonce.vendors.changenow.client import ChangeNowClient
from payonce.vendors.changenow.fates import Fates
from payonce.vendors.changenow.port import Exchange, Order, Range, Status, Swap
from payonce.vendors.changenow.simulator import ChangeNowSimulator
from tests.vendors.changenow.at import ETH_BTC, HOST, TX, AtChangeNow, OpenChangeNow, order

ETH = Decimal("0.05")
TRIES = 20


async def paid(at: AtChangeNow, fate: Fate = Fate.FINISH) -> Swap:
    swap = await at.client.create(order())
    at.simulator.decide(swap.id, fate)
    at.simulator.deposit(swap.payin_address, "eth", swap.from_amount, TX)
    return swap


async def found(at: AtChangeNow, swap: Swap) -> Exchange:
    exchange = await at.client.exchange(swap.id)
    assert exchange is not None
    return exchange


async def test_a_second_payment_is_a_second_deposit_and_buys_nothing(open_changenow: OpenChangeNow) -> None:
    async with open_changenow() as at:
        swap = await paid(at)
        again = at.simulator.deposit(swap.payin_address.upper().replace("0X", "0x"), "ETH", ETH, TX.upper())
        assert again.number == 1, "the chain told of the same payment once more"
        at.clock.advance(60)
        second = at.simulator.deposit(swap.payin_address, "eth", ETH, "0x02")
        assert (second.number, second.moved_it, second.exchange_id) == (2, False, swap.id)
        books = at.simulator.settle_all()
        assert [each.moved_it for each in books.deposits_of(swap.id)] == [True, False]
        assert [each.amount for each in books.payouts] == [swap.to_amount]
        assert books.held() == {"ETH.ETH": ETH}


async def test_a_deposit_that_nobody_waits_for_is_kept_and_shown(open_changenow: OpenChangeNow) -> None:
    async with open_changenow() as at:
        nobody = at.simulator.deposit(HOST, "eth", ETH, "0x01")
        assert (nobody.exchange_id, nobody.moved_it) == (None, False)
        swap = await at.client.create(order())
        other = at.simulator.deposit(swap.payin_address, "usdt", Decimal("125.5"), "0x02")
        assert (other.exchange_id, other.moved_it, other.asset) == (swap.id, False, "USDT.ETH")
        at.clock.advance(7_200)
        assert (await found(at, swap)).status is Status.EXPIRED
        late = at.simulator.deposit(swap.payin_address, "eth", ETH, "0x03")
        assert (late.exchange_id, late.moved_it) == (swap.id, False)
        assert (await found(at, swap)).status is Status.EXPIRED
        assert at.simulator.books.held() == {"ETH.ETH": ETH * 2, "USDT.ETH": Decimal("125.5")}
        with pytest.raises(Invalid, match="more than the 18 decimals"):
            at.simulator.deposit(swap.payin_address, "eth", Decimal("1e-19"), "0x04")


async def test_a_refund_returns_what_was_paid_less_its_fee(open_changenow: OpenChangeNow) -> None:
    async with open_changenow() as at:
        swap = await paid(at, Fate.REFUND)
        at.clock.advance(60)
        exchange = await found(at, swap)
        assert (exchange.status, exchange.refund_amount) == (Status.REFUNDED, Decimal("0.0495"))
        [refund] = at.simulator.books.refunds
        assert (refund.address, refund.amount, refund.tx_hash) == (HOST, Decimal("0.0495"), exchange.refund_hash)
        assert not at.simulator.books.payouts


async def test_verifying_lasts_until_somebody_decides(open_changenow: OpenChangeNow) -> None:
    async with open_changenow() as at:
        swap, other = await paid(at, Fate.VERIFY), await at.client.create(order())
        at.simulator.deposit(other.payin_address, "eth", ETH, "0x02")
        at.simulator.decide(other.id, Fate.VERIFY)
        at.clock.advance(86_400)
        assert (await found(at, swap)).status is Status.VERIFYING
        assert at.simulator.decide(swap.id, Fate.FINISH) is Status.EXCHANGING
        at.clock.advance(60)
        assert (await found(at, swap)).status is Status.FINISHED
        assert (await found(at, other)).status is Status.VERIFYING
        assert at.simulator.decide(other.id, Fate.REFUND) is Status.REFUNDED


async def test_a_failed_exchange_keeps_the_money_until_it_is_returned(open_changenow: OpenChangeNow) -> None:
    async with open_changenow() as at:
        swap = await paid(at, Fate.FAIL)
        at.clock.advance(60)
        assert (await found(at, swap)).status is Status.FAILED
        assert at.simulator.books.held() == {"ETH.ETH": ETH}
        assert at.simulator.decide(swap.id, Fate.REFUND) is Status.REFUNDED
        assert at.simulator.books.held() == {}


async def test_steps_move_it_on_without_the_clock(open_changenow: OpenChangeNow) -> None:
    async with open_changenow() as at:
        swap = await paid(at)
        steps = [at.simulator.step(swap.id) for _ in range(4)]
        assert steps == [Status.EXCHANGING, Status.SENDING, Status.FINISHED, Status.FINISHED]


async def test_an_outage_lasts_as_long_as_the_books_clock_says(open_changenow: OpenChangeNow) -> None:
    async with open_changenow() as at:
        at.simulator.take_down(for_s=120)
        with pytest.raises(Retry, match="answered 503"):
            await at.client.range(ETH_BTC)
        at.simulator.advance(119)
        with pytest.raises(Retry, match="answered 503"):
            await at.client.range(ETH_BTC)
        at.simulator.advance(1)
        await at.client.range(ETH_BTC)
        at.simulator.take_down()
        at.simulator.advance(1e6)
        with pytest.raises(Retry, match="answered 503"):
            await at.client.range(ETH_BTC)
        at.simulator.bring_up()
        at.simulator.set_range(ETH_BTC, Decimal("0.01"), None)
        assert await at.client.range(ETH_BTC) == Range(Decimal("0.01"), None)


@pytest.mark.parametrize("seed", range(5))
async def test_the_books_add_up_in_every_asset(seed: int) -> None:
    chance = random.Random(seed)
    simulator = ChangeNowSimulator(
        seed=seed, limit_per_s=None, pace=AT_ONCE, fates=Fates(seed, fail=0.2, refund=0.2, verify=0.2)
    )
    async with HttpClient("changenow", "https://changenow.example", transport=simulator) as http:
        client = ChangeNowClient(http, "k")
        for number in range(60):
            amount = Decimal(chance.randrange(2 * 10**15, 2 * 10**18)).scaleb(-18)
            swap = await client.create(order(amount=str(amount)))
            for again in range(chance.choice((0, 1, 1, 1, 2))):
                simulator.deposit(swap.payin_address, "eth", swap.from_amount, f"0x{number:x}{again:x}")
    books = simulator.settle_all()
    ends = Counter(each.status for each in books.entries.values())
    assert set(ends) == {Status.WAITING, Status.FINISHED, Status.FAILED, Status.REFUNDED, Status.VERIFYING}
    stays = (Status.FAILED, Status.VERIFYING)
    kept = sum(
        each.amount
        for each in books.deposits
        if each.exchange_id and (not each.moved_it or books.entries[each.exchange_id].status in stays)
    )
    assert books.held() == {"ETH.ETH": kept}
    assert len(books.payouts) == ends[Status.FINISHED]
    for paid_out in books.payouts:
        entry = books.entries[paid_out.exchange_id]
        assert paid_out.amount == entry.amount_to == entry.expected_to
    for code in ("ETH.ETH", "BTC.BTC"):
        total = Counter[str]()
        for account in ("chain", "desk", "stock", "fees"):
            for each in books.money.balances(account):
                if each.asset.code == code:
                    total[code] += each.minor
        assert total[code] == 0


async def test_the_books_and_the_switches_outlive_the_process(tmp_path: Path) -> None:
    journal = tmp_path / "changenow.journal"

    async def with_client(simulator: ChangeNowSimulator) -> AtChangeNow:
        http = HttpClient("changenow", "https://changenow.example", transport=simulator)
        return AtChangeNow(simulator, ChangeNowClient(http, "k"), None, None, http)  # type: ignore[arg-type]

    with closing(ChangeNowSimulator(journal)) as first:
        at = await with_client(first)
        swap = await paid(at)
        verified = await at.client.create(order(payload="p-2"))
        first.decide(verified.id, Fate.VERIFY)
        first.advance(35)
        assert (await found(at, swap)).status is Status.EXCHANGING
        first.set_range(ETH_BTC, Decimal("0.01"), Decimal(1))
        first.take_down()
        with pytest.raises(Unavailable, match="another process"):
            ChangeNowSimulator(journal)
        before = first.books
    with journal.open("ab") as torn:
        torn.write(b'{"event":"created","id":"0')
    with closing(ChangeNowSimulator(journal)) as again:
        assert (again.books.entries, again.books.deposits) == (before.entries, before.deposits)
        at = await with_client(again)
        with pytest.raises(Retry, match="answered 503"):
            await found(at, swap)
        again.bring_up()
        again.advance(60)
        assert (await found(at, swap)).status is Status.FINISHED
        assert (await found(at, verified)).payload == "p-2"
        assert await at.client.range(ETH_BTC) == Range(Decimal("0.01"), Decimal(1))
        assert again.deposit(swap.payin_address, "eth", ETH, TX).number == 1, "a payment is remembered"


async def test_another_process_tells_of_deposits_and_reads_the_books() -> None:
    simulator = ChangeNowSimulator(limit_per_s=30)
    async with serving(simulator) as url, HttpClient("changenow", url, allow_private=True) as http:
        client = ChangeNowClient(http, "k")
        swap = await client.create(order())

        async def tell(path: str, **what: object) -> tuple[int, dict[str, object]]:
            answer = await http.request("POST", f"/simulator/{path}", json=what)
            return answer.status, answer.json()

        told = {"payinAddress": swap.payin_address, "asset": "ETH", "amount": "0.05", "txHash": TX}
        for _ in range(2):
            status, seen = await tell("deposits", **told)
            assert (status, seen["number"], seen["exchangeId"], seen["movedIt"]) == (200, 1, swap.id, True)
        assert (await tell("deposits", **told | {"amount": "much"}))[0] == 400
        assert (await tell("deposits", payinAddress="0x1"))[0] == 400
        assert await tell("fates", id=swap.id) == (200, {"status": "exchanging"})
        assert await tell("fates", id=swap.id, fate="refund") == (200, {"status": "exchanging"})
        assert (await tell("fates", id="nobody"))[0] == 400
        assert (await tell("clock", advanceS=60))[0] == 200
        assert (await tell("outage", down=True))[0] == 200
        with pytest.raises(Retry):
            await client.exchange(swap.id)
        assert (await tell("outage", down=False))[0] == 200
        pair = {"fromCurrency": "eth", "fromNetwork": "eth", "toCurrency": "btc", "toNetwork": "btc"}
        assert (await tell("pairs", **pair, active=True, least="0.01"))[0] == 200
        assert await client.min_amount(ETH_BTC) == Decimal("0.01")
        books = (await http.request("GET", "/simulator/books")).json()
    assert [each["status"] for each in books["exchanges"]] == ["refunded"]
    assert [(each["amount"], each["address"]) for each in books["refunds"]] == [("0.0495", HOST)]
    assert (books["payouts"], books["held"], books["turnedAway"]) == ([], {}, 0)
    assert books["requests"] == 3, "what is below /simulator is not the vendor's"


async def test_on_a_bad_day_what_is_paid_is_paid_out_once() -> None:
    """Three calls of ten go wrong; who obeys the outcomes creates anew what is in doubt and pays what was answered."""
    simulator = ChangeNowSimulator(seed=3, limit_per_s=None)
    spared = {f"{method} /simulator": Odds(0.0) for method in ("GET", "POST")}
    faulty = Faulty(simulator, FaultPlan(11, 0.3, routes=spared), slow_s=0.0, retry_after_s=0)
    async with HttpClient("changenow", "https://changenow.example", transport=faulty) as http:
        client = ChangeNowClient(http, "k")
        paid_in: dict[str, Swap] = {}
        for number in range(100):
            swap = await eventually_created(client, order(amount=f"0.{number + 10:03}", payload=f"p-{number}"))
            told = {"payinAddress": swap.payin_address, "asset": "eth", "amount": str(swap.from_amount)}
            for _ in range(2):
                await http.request("POST", "/simulator/deposits", json=told | {"txHash": f"0x{number:x}"})
            paid_in[swap.id] = swap
        simulator.advance(60)
        for swap in paid_in.values():
            assert (await eventually_found(client, swap)).status is Status.FINISHED
        await faulty.close()
    books = simulator.settle_all()
    assert sum(faulty.enacted.values()) > 50
    assert len(books.entries) > len(paid_in), "some were made and not answered"
    assert {each.exchange_id: each.amount for each in books.payouts} == {
        each.id: each.to_amount for each in paid_in.values()
    }
    assert len(books.deposits) == len(books.payouts) == len(paid_in)
    assert books.held() == {}


async def eventually_created(client: ChangeNowClient, wanted: Order) -> Swap:
    for _ in range(TRIES):
        try:
            return await client.create(wanted)
        except (NotSent, Unknown):
            continue
    raise AssertionError(f"not created within {TRIES} tries")


async def eventually_found(client: ChangeNowClient, swap: Swap) -> Exchange:
    for _ in range(TRIES):
        try:
            exchange = await client.exchange(swap.id)
        except Retry:
            continue
        assert exchange is not None
        return exchange
    raise AssertionError(f"not answered within {TRIES} tries")
