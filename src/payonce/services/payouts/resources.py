"""External resources of payouts: the exchange, the wallet and GCHostPay, with the configuration."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from payonce.engine.database.connections import Database
from payonce.engine.database.rate_limits import SharedBudget, budget_share
from payonce.engine.messages.push import Target
from payonce.engine.messages.transaction import Reader
from payonce.engine.monitoring.vendor_calls import call_observer
from payonce.kit.ids import process_name
from payonce.kit.log import get_logger
from payonce.kit.outcomes import Invalid, NotSent, Unavailable, Unknown
from payonce.services.payouts.domain.config import PayoutConfig
from payonce.services.payouts.handlers.external_hostpay import ExternalHostPay
from payonce.services.payouts.handlers.wallet import HostWallet
from payonce.services.payouts.model import ETH
from payonce.services.payouts.policies import FOLLOW, HOSTPAY, VENDOR_TIMEOUT_S
from payonce.services.payouts.settings import PayoutsSettings
from payonce.services.payouts.store import wallet_limits
from payonce.settings import Settings, revealed

if TYPE_CHECKING:
    from payonce.kit.webhooks.secrets import Secret
    from payonce.queues.cloudtasks.client import TaskService
    from payonce.vendors.changenow.simulator import ChangeNowSimulator
    from payonce.vendors.evm.client import EvmClient
    from payonce.vendors.evm.exchange_bridge import ExchangeBridge
    from payonce.vendors.evm.simulator import ChainSimulator

CHANGENOW_ADDRESS: Final = "https://api.changenow.io"
SIMULATED_KEY: Final = "simulated"
CHAIN: Final = "evm"
"""The vendor's name in metrics and on pages."""
SIMULATED_SECRET: Final = "host"  # noqa: S105 - of a wallet that holds nothing but simulated ether
SIMULATED_BLOCK_S: Final = 2.0
SIMULATED_OPENING_ETH: Final = "1000"
HOSTPAY_DEADLINE_S: Final = 600.0
"""So long the task service waits for GCHostPay's answer: Cloud Tasks' default."""
NEVER_MADE: Final = frozenset(
    {
        "NOT_FOUND",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "INVALID_ARGUMENT",
        "FAILED_PRECONDITION",
        "RESOURCE_EXHAUSTED",
    }
)
"""Status codes that guarantee that the task service did not create the task."""
CARRY_EVERY_S: Final = 2.0
"""How often deposits are passed from the simulated chain to the exchange, and refunds back."""

log = get_logger(__name__)


@asynccontextmanager
async def open_payouts(settings: Settings, database: Database) -> AsyncIterator[Sequence[object]]:
    """The exchange's client, the configuration and the wallet. Vendors without an address are simulated in the process.

    A simulated wallet cannot pay the real exchange: then there is no wallet, and no role of payouts starts
    (`PayoutsSettings.check`). Statements can still be read."""
    payouts = settings.of(PayoutsSettings)
    async with AsyncExitStack() as stack:
        changenow, *simulated = await stack.enter_async_context(open_changenow(settings, database))
        wallet: EvmClient | None = None
        if payouts.external_hostpay:
            await _refuse_pending_payments(database)
            yield [changenow, _config(settings), await stack.enter_async_context(_external_hostpay(settings))]
            return
        if payouts.chain_url is not None:
            if payouts.changenow_url is None:
                raise Invalid(
                    "PAYONCE_CHAIN_URL is set and CHANGENOW_URL is not: a simulated wallet cannot pay the "
                    "real exchange; set CHANGENOW_URL to the simulated one, or neither"
                )
            wallet = await stack.enter_async_context(_wallet_at(payouts.chain_url))
        elif simulated:
            wallet = await stack.enter_async_context(_simulated_wallet(settings, simulated[0]))  # type: ignore[arg-type]
        address = payouts.host_wallet_address or (None if wallet is None else wallet.address)
        if address is None:
            raise Invalid(
                "HOST_WALLET_ADDRESS is not set, and without it the exchange could not send anything back; "
                "set it to the address of the wallet that pays"
            )
        if wallet is not None and address.lower() != wallet.address.lower():
            raise Invalid(
                f"HOST_WALLET_ADDRESS is {address}, and the wallet that pays is {wallet.address}: refunds "
                "would go where nobody counts them; set it to that one, or leave it unset"
            )
        if wallet is not None:
            await _warn_of_no_limit(database)
        yield [
            changenow,
            _config(settings, address),
            *([] if wallet is None else [HostWallet(wallet, database, process_name())]),
        ]


@asynccontextmanager
async def open_changenow(settings: Settings, database: Database) -> AsyncIterator[Sequence[object]]:
    """The client of ChangeNOW; and, when neither key nor address is set, the simulator behind it, for the simulated
    wallet to tell of deposits."""
    from payonce.kit.http import HttpClient
    from payonce.vendors.changenow import port
    from payonce.vendors.changenow.client import ChangeNowClient

    payouts = settings.of(PayoutsSettings)
    key, private_key = revealed(payouts.changenow_api_key), revealed(payouts.changenow_private_api_key)
    url = payouts.changenow_url
    if key is None and url is not None:
        raise Invalid("CHANGENOW_URL is set and CHANGENOW_API_KEY is not; set both, or neither to have it simulated")
    budget = SharedBudget(database, "changenow", *budget_share(port, payouts.changenow_per_s), port.TURN_MAX_S)

    def client(http: HttpClient, its_key: str) -> ChangeNowClient:
        return ChangeNowClient(http, its_key, budget, private_key=private_key, watch=call_observer("changenow"))

    if key is not None:
        root = (url or CHANGENOW_ADDRESS).rstrip("/").removesuffix("/v2")
        # The operator wrote the address: it may well lie in their own network.
        async with HttpClient(
            "changenow", root, timeout_s=payouts.changenow_answer_s, allow_private=url is not None
        ) as http:
            yield [client(http, key)]
        return
    with simulated_changenow(settings) as simulator:
        async with HttpClient("changenow", "https://changenow.example", transport=simulator) as http:
            yield [client(http, SIMULATED_KEY), simulator]


@contextmanager
def simulated_changenow(settings: Settings) -> Iterator["ChangeNowSimulator"]:
    """The simulated exchange, with its journal in the data folder."""
    from payonce.vendors.changenow.simulator import ChangeNowSimulator

    journal = settings.simulators_dir / "changenow.journal"
    log.warning("vendor_simulated", vendor="changenow", journal=str(journal), instead="set CHANGENOW_API_KEY")
    with closing(ChangeNowSimulator(journal)) as simulator:
        yield simulator


def _config(settings: Settings, host_wallet: str | None = None) -> PayoutConfig:
    payouts = settings.of(PayoutsSettings)
    return PayoutConfig(
        [secret.key for secret in payouts.signing_keys(settings)],
        host_wallet or payouts.host_wallet_address or "",
        payouts.fee_percent,
        payouts.allow_missing_payment_id,
        external_hostpay=payouts.external_hostpay,
        six_fields=payouts.webhook_format == "six-field",
    )


async def _refuse_pending_payments(database: Database) -> None:
    """Raises Invalid while our own hostpay has open messages: only it knows their state and can finish them."""
    left = await database.engine.fetchval(
        "select count(*) from payonce.live_messages where queue = any($1) and state <> 'parked'",
        [HOSTPAY.queue, FOLLOW.queue],
    )
    if left:
        raise Invalid(
            f"PAYOUTS_HOSTPAY is external and {left:,} messages to our own hostpay are open; run "
            "payouts.hostpay with PAYOUTS_HOSTPAY=internal until `payonce queues list` shows none"
        )


@asynccontextmanager
async def _external_hostpay(settings: Settings) -> AsyncIterator[ExternalHostPay]:
    # Not at the top: Google's client and the ciphers take a while to load.
    from payonce.app.resources import cloud_tasks
    from payonce.queues.cloudtasks.client import TaskService
    from payonce.services.payouts.messages.tokens import HOST_PAY

    payouts = settings.of(PayoutsSettings)
    assert payouts.hostpay_url is not None
    service = TaskService(cloud_tasks(settings))
    try:
        keys = payouts.hostpay_keys(settings)
        yield external_hostpay(service, payouts.called(HOST_PAY.queue), payouts.hostpay_url, keys)
    finally:
        await service.close()


def external_hostpay(service: "TaskService", queue: str, url: str, keys: "Sequence[Secret]") -> ExternalHostPay:
    """Creates and deletes tasks for the operator's GCHostPay: `{"token": "…"}` of version 1, under given names."""
    from payonce.kit.crypto import to_base64url
    from payonce.queues.cloudtasks.client import ALREADY_EXISTS, OK, TaskRequest
    from payonce.services.payouts.messages.tokens import HOST_PAY, HostPay
    from payonce.services.payouts.messages.tokens.packed import Packer

    packer, parts = Packer(HOST_PAY, keys), urlsplit(url)

    async def create(name: str, fields: HostPay) -> str:
        body = json.dumps({"token": to_base64url(packer.make(fields, time.time()))}).encode()
        task = service.config.location.task(queue, name)
        task_request = TaskRequest(task, url, f"{parts.scheme}://{parts.netloc}", body, HOSTPAY_DEADLINE_S)
        try:
            [status] = await service.create(queue, [task_request])
        except Unavailable as error:
            raise NotSent(str(error)) from error
        if status.code in (OK, ALREADY_EXISTS):
            return task
        reason = f"the task service answered {status.code} to a task for {url}: {status.text}"
        raise NotSent(reason) if status.code in NEVER_MADE else Unknown(reason)

    async def delete(name: str) -> None:
        await service.delete(service.config.location.task(queue, name))

    return ExternalHostPay(create, delete)


async def _warn_of_no_limit(database: Database) -> None:
    limit = await wallet_limits.limit_of(Reader(database), ETH)
    if limit is not None and limit.per_payment is None and limit.per_day is None:
        log.warning(
            "wallet_without_limits",
            asset=ETH.code,
            pays="any amount without being asked",
            instead="set the wallet's limits in the console, Vendors",
        )


@asynccontextmanager
async def _wallet_at(url: str) -> AsyncIterator["EvmClient"]:
    """Of a simulated chain that several processes share."""
    from payonce.kit.http import HttpClient
    from payonce.vendors.evm.chain import CHAIN_ID
    from payonce.vendors.evm.client import EvmClient
    from payonce.vendors.evm.simulated_key import SimulatedKey

    async with HttpClient("chain", url, timeout_s=VENDOR_TIMEOUT_S, allow_private=True) as http:
        yield EvmClient(http, SimulatedKey(SIMULATED_SECRET, CHAIN_ID), watch=call_observer(CHAIN))


@asynccontextmanager
async def _simulated_wallet(settings: Settings, changenow: "ChangeNowSimulator") -> AsyncIterator["EvmClient"]:
    from payonce.kit.http import HttpClient
    from payonce.vendors.evm.client import EvmClient
    from payonce.vendors.evm.simulated_key import SimulatedKey

    async with (
        simulated_chain(settings, changenow) as node,
        HttpClient("chain", "https://chain.example", transport=node) as http,
    ):
        yield EvmClient(http, SimulatedKey(SIMULATED_SECRET, node.chain.chain_id), watch=call_observer(CHAIN))


@asynccontextmanager
async def simulated_chain(settings: Settings, changenow: "ChangeNowSimulator") -> AsyncIterator["ChainSimulator"]:
    """The node of a simulated chain with its journal in the data folder. Its wallet is funded, and its deposits reach
    the exchange."""
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
            node = ChainSimulator(chain, watcher=bridge.notify_deposit)
            carrying = asyncio.create_task(_carry(node, bridge), name="simulated chain")
            try:
                yield node
            finally:
                carrying.cancel()
                await asyncio.gather(carrying, return_exceptions=True)
    finally:
        chain.close()


async def _carry(node: "ChainSimulator", bridge: "ExchangeBridge") -> None:
    """Lets chain and exchange progress, for as long as the process lives."""
    while True:
        await asyncio.sleep(CARRY_EVERY_S)
        try:
            await bridge.carry(node)
        except (NotSent, Unknown) as silence:
            log.warning("simulated_exchange_silent", reason=silence.reason)


def runnable(settings: Settings, roles: Sequence[str]) -> list[str]:
    return settings.of(PayoutsSettings).runnable(roles)


def payout_targets(settings: Settings) -> Sequence[Target]:
    """Which queues of payouts a task service brings, where to, and in which tokens. Needs no key before the first
    token is made or read: commands that only look know the queues as well."""
    # Not at the top: the ciphers take a while to load.
    from payonce.services.payouts.messages.tokens import HOPS, HOST_PAY
    from payonce.services.payouts.messages.tokens.codec import TokenCodec

    payouts = settings.of(PayoutsSettings)
    urls = {
        "orchestrator": payouts.gcsplit1_url,
        "estimator": payouts.gcsplit2_url,
        "swapper": payouts.gcsplit3_url,
        "hostpay": None if payouts.hostpay_url is None else payouts.hostpay_url.rstrip("/"),
    }
    return [
        Target(
            hop.queue,
            hop.path,
            urls[hop.role],
            TokenCodec(
                hop,
                partial(payouts.hostpay_keys if hop is HOST_PAY else payouts.signing_keys, settings),
                accept_v1=payouts.accepts_v1,
                emit_v1=payouts.emits_v1,
            ),
            payouts.called(hop.queue),
            payouts.changenow_per_s,
        )
        for hop in HOPS
    ]
