"""What payouts need from outside: the exchange, the wallet and what was agreed with their callers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from payonce.engine.database import Database
from payonce.engine.transaction import Reader
from payonce.kit.ids import process_name
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid, NotSent, Unknown
from payonce.outside import open_changenow
from payonce.services.payouts import wallet_limits
from payonce.services.payouts.model import ETH
from payonce.services.payouts.policies import VENDOR_TIMEOUT_S
from payonce.services.payouts.terms import Terms
from payonce.services.payouts.wallet import HostWallet
from payonce.settings import Settings

if TYPE_CHECKING:
    from payonce.vendors.changenow.simulator import ChangeNowSimulator
    from payonce.vendors.evm.client import EvmClient
    from payonce.vendors.evm.exchange_bridge import ExchangeBridge
    from payonce.vendors.evm.simulator import ChainSimulator

SIMULATED_SECRET: Final = "host"  # noqa: S105 - of a wallet that holds nothing but simulated ether
SIMULATED_BLOCK_S: Final = 2.0
SIMULATED_OPENING_ETH: Final = "1000"
CARRY_EVERY_S: Final = 2.0
"""How often the simulated chain tells the simulated exchange of deposits, and brings refunds back."""

log = get_logger(__name__)


@asynccontextmanager
async def open_payouts(settings: Settings, database: Database) -> AsyncIterator[Sequence[object]]:
    """The exchange's client, the terms and the wallet. What has no address is simulated in this process.

    At the real exchange a simulated wallet would promise deposits that never come: then there is none, and no role of
    payouts starts (`Settings.check_roles`). Statements can be read all the same."""
    async with AsyncExitStack() as stack:
        changenow, *simulated = await stack.enter_async_context(open_changenow(settings, database))
        wallet: EvmClient | None = None
        if settings.chain_url is not None:
            if settings.changenow_url is None:
                raise Invalid("PAYONCE_CHAIN_URL is set and CHANGENOW_URL is not: a simulated wallet cannot pay the "
                              "real exchange; set CHANGENOW_URL to the simulated one, or neither")  # fmt: skip
            wallet = await stack.enter_async_context(_wallet_at(settings.chain_url))
        elif simulated:
            wallet = await stack.enter_async_context(_simulated_wallet(settings, simulated[0]))  # type: ignore[arg-type]
        address = settings.payouts.host_wallet_address or (None if wallet is None else wallet.address)
        if address is None:
            raise Invalid("HOST_WALLET_ADDRESS is not set, and without it the exchange could not send anything back; "
                          "set it to the address of the wallet that pays")  # fmt: skip
        if wallet is not None and address.lower() != wallet.address.lower():
            raise Invalid(f"HOST_WALLET_ADDRESS is {address}, and the wallet that pays is {wallet.address}: refunds "
                          "would go where nobody counts them; set it to that one, or leave it unset")  # fmt: skip
        terms = Terms(
            [secret.key for secret in settings.signing_keys()], address, settings.payouts.fee_percent,
            settings.payouts.allow_missing_payment_id,
        )  # fmt: skip
        if wallet is not None:
            await _warn_of_no_limit(database)
        yield [changenow, terms, *([] if wallet is None else [HostWallet(wallet, database, process_name())])]


async def _warn_of_no_limit(database: Database) -> None:
    limit = await wallet_limits.limit_of(Reader(database), ETH)
    if limit is not None and limit.per_payment is None and limit.per_day is None:
        log.warning("wallet_without_limits", asset=ETH.code, pays="any amount without being asked",
                    instead="set the wallet's limits in the console, Vendors")  # fmt: skip


@asynccontextmanager
async def _wallet_at(url: str) -> AsyncIterator["EvmClient"]:
    """Of a simulated chain that several processes share."""
    from payonce.kit.http import HttpClient
    from payonce.vendors.evm.chain import CHAIN_ID
    from payonce.vendors.evm.client import EvmClient
    from payonce.vendors.evm.simulated_key import SimulatedKey

    async with HttpClient("chain", url, timeout_s=VENDOR_TIMEOUT_S, allow_private=True) as http:
        yield EvmClient(http, SimulatedKey(SIMULATED_SECRET, CHAIN_ID))


@asynccontextmanager
async def _simulated_wallet(settings: Settings, changenow: "ChangeNowSimulator") -> AsyncIterator["EvmClient"]:
    from payonce.kit.http import HttpClient
    from payonce.vendors.evm.client import EvmClient
    from payonce.vendors.evm.simulated_key import SimulatedKey

    async with (
        simulated_chain(settings, changenow) as node,
        HttpClient("chain", "https://chain.example", transport=node) as http,
    ):
        yield EvmClient(http, SimulatedKey(SIMULATED_SECRET, node.chain.chain_id))


@asynccontextmanager
async def simulated_chain(settings: Settings, changenow: "ChangeNowSimulator") -> AsyncIterator["ChainSimulator"]:
    """The node of a chain with the books that it left in the data folder. Its wallet has ether, and what is deposited
    there reaches the exchange."""
    from payonce.kit.http import HttpClient
    from payonce.kit.money import Amount
    from payonce.vendors.evm.chain import Chain
    from payonce.vendors.evm.exchange_bridge import ExchangeBridge
    from payonce.vendors.evm.simulated_key import SimulatedKey
    from payonce.vendors.evm.simulator import ChainSimulator

    journal = settings.simulators_dir / "chain.journal"
    log.warning("vendor_simulated", vendor="chain", journal=str(journal), instead="set PAYONCE_CHAIN_URL")
    chain = Chain(journal, block_s=SIMULATED_BLOCK_S)
    wallet = SimulatedKey(SIMULATED_SECRET, chain.chain_id).address
    chain.fund(wallet, Amount.from_decimal(SIMULATED_OPENING_ETH, ETH))
    try:
        async with HttpClient("exchange", "https://changenow.example", transport=changenow) as behind:
            bridge = ExchangeBridge(chain, behind)
            node = ChainSimulator(chain, watcher=bridge.tell_deposit)
            carrying = asyncio.create_task(_carry(node, bridge), name="simulated chain")
            try:
                yield node
            finally:
                carrying.cancel()
                await asyncio.gather(carrying, return_exceptions=True)
    finally:
        chain.close()


async def _carry(node: "ChainSimulator", bridge: "ExchangeBridge") -> None:
    """What chain and exchange would do by themselves, for as long as the process lives."""
    while True:
        await asyncio.sleep(CARRY_EVERY_S)
        try:
            await bridge.carry(node)
        except (NotSent, Unknown) as silence:
            log.warning("simulated_exchange_silent", reason=silence.reason)
