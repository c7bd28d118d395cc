"""What payouts read from the environment, under the names that their operators know.

| variable | meaning | unset |
|---|---|---|
| SUCCESS_URL_SIGNING_KEY | verifies the webhook and signs the tokens between the roles; several keys may be separated by spaces: the first signs, all verify | generated for the private database, else no role starts |
| TPS_HOSTPAY_SIGNING_KEY | signs the tokens to hostpay; several keys may be separated by spaces: the first signs, all verify | generated for the private database, else no role starts |
| TP_FLAT_FEE | our fee in percent | 3 |
| HOST_WALLET_ADDRESS | address for ChangeNOW's refunds: that of the wallet that pays | the wallet's own |
| GCSPLIT1_URL | address of `payouts.orchestrator`; required with CLOUD_TASKS_PROJECT_ID | this process |
| GCSPLIT2_URL | address of `payouts.estimator`; required with CLOUD_TASKS_PROJECT_ID | this process |
| GCSPLIT3_URL | address of `payouts.swapper`; required with CLOUD_TASKS_PROJECT_ID | this process |
| HOSTPAY_WEBHOOK_URL | address of `payouts.hostpay`, or of your own GCHostPay; required with CLOUD_TASKS_PROJECT_ID | this process |
| GCSPLIT2_QUEUE | queue to the estimator, as the task service calls it | gcsplit-usdt-eth-estimate-queue |
| GCSPLIT3_QUEUE | queue to the swapper, as the task service calls it | gcsplit-eth-client-swap-queue |
| HOSTPAY_QUEUE | queue to hostpay, as the task service calls it | gcsplit-hostpay-trigger-queue |
| ESTIMATOR__GCSPLIT1_RESPONSE_QUEUE | queue from the estimator to the orchestrator, as the task service calls it | gcsplit-usdt-eth-response-queue |
| SWAPPER__GCSPLIT1_RESPONSE_QUEUE | queue from the swapper to the orchestrator, as the task service calls it | gcsplit-eth-client-response-queue |
| GCSPLIT1_RESPONSE_QUEUE | older name of the response queues' settings; it cannot rename a queue | none |
| PAYOUTS_ALLOW_MISSING_PAYMENT_ID | accept webhooks without a payment_id | false |
| PAYOUTS_TOKENS_V1 | accept, or also emit, the tokens of older services | off |
| PAYOUTS_HOSTPAY | who pays: our wallet, or your own GCHostPay at HOSTPAY_WEBHOOK_URL | internal |
| PAYOUTS_WEBHOOK_FORMAT | six-field accepts webhooks without payment_id and timestamp | full |
| CHANGENOW_REQUESTS_PER_S | ChangeNOW's rate limit for your key, per second; payonce uses four fifths of it | 30 |
| CHANGENOW_TIMEOUT_S | seconds to wait for an answer of ChangeNOW | 14 |
| CHANGENOW_API_KEY | API key of ChangeNOW | simulated in the process, if CHANGENOW_URL is unset too |
| CHANGENOW_PRIVATE_API_KEY | API key for ChangeNOW's list of exchanges, which some partners need | CHANGENOW_API_KEY |
| CHANGENOW_URL | address of ChangeNOW | https://api.changenow.io |
| PAYONCE_CHAIN_URL | the simulated chain of `payonce simulators`; set CHANGENOW_URL too | simulated in the process |

Each may be projects/…/secrets/…/versions/… instead; see payonce.settings.references.
"""  # noqa: E501

import re
import secrets
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from payonce.kit.outcomes import Invalid
from payonce.settings.data_folder import KEY_BYTES, kept
from payonce.settings.service import ServiceSettings, checked_url, checked_word

if TYPE_CHECKING:
    from payonce.kit.webhooks.secrets import Secret
    from payonce.settings import Settings

HOSTPAY_ROLE: Final = "payouts.hostpay"
SIGNING_KEY: Final = "SUCCESS_URL_SIGNING_KEY"
HOSTPAY_KEY: Final = "TPS_HOSTPAY_SIGNING_KEY"
SIGNING_KEY_FILE_NAME: Final = "payouts-signing-key"
HOSTPAY_KEY_FILE_NAME: Final = "payouts-hostpay-key"
FEE_PERCENT_DECIMALS: Final = 6
RESPONSE_QUEUES: Final = ("gcsplit-usdt-eth-response-queue", "gcsplit-eth-client-response-queue")

QUEUES: Final = {
    "gcsplit-usdt-eth-estimate-queue": "gcsplit2_queue",
    "gcsplit-usdt-eth-response-queue": "estimator_response_queue",
    "gcsplit-eth-client-swap-queue": "gcsplit3_queue",
    "gcsplit-eth-client-response-queue": "swapper_response_queue",
    "gcsplit-hostpay-trigger-queue": "hostpay_queue",
}
"""By its own name, the field that says what a queue is called at the task service."""

_KEY_RULE: Final = "each key must have 16 to 256 printable characters; make one with `openssl rand -hex 32`"
_QUEUE_RULE: Final = "it must be the id of a queue: letters, digits and dashes, at most 100"
_WORD_RULE: Final = "it must be one word of printable ASCII, as the vendor gave it out"
_URL_RULE: Final = "it must be an address such as https://gcsplit1-10-26-xxx.run.app"
_PERCENT: Final = re.compile(rf"\d{{1,2}}(?:\.\d{{1,{FEE_PERCENT_DECIMALS}}})?", re.ASCII)
_QUEUE: Final = re.compile(r"[A-Za-z0-9-]{1,100}", re.ASCII)
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)


class PayoutsSettings(ServiceSettings):
    signing_key: SecretStr | None = Field(None, validation_alias=SIGNING_KEY, description=_KEY_RULE)
    hostpay_signing_key: SecretStr | None = Field(None, validation_alias=HOSTPAY_KEY, description=_KEY_RULE)
    fee_percent: Decimal = Field(
        Decimal(3),
        validation_alias="TP_FLAT_FEE",
        description=f"it must be a percentage from 0 to below 100, with at most {FEE_PERCENT_DECIMALS} decimals",
    )
    host_wallet_address: str | None = Field(
        None, validation_alias="HOST_WALLET_ADDRESS", description="it must be 0x and 40 hexadecimal digits"
    )
    gcsplit1_url: str | None = Field(None, validation_alias="GCSPLIT1_URL", description=_URL_RULE)
    gcsplit2_url: str | None = Field(None, validation_alias="GCSPLIT2_URL", description=_URL_RULE)
    gcsplit3_url: str | None = Field(None, validation_alias="GCSPLIT3_URL", description=_URL_RULE)
    hostpay_url: str | None = Field(None, validation_alias="HOSTPAY_WEBHOOK_URL", description=_URL_RULE)
    gcsplit2_queue: str | None = Field(None, validation_alias="GCSPLIT2_QUEUE", description=_QUEUE_RULE)
    gcsplit3_queue: str | None = Field(None, validation_alias="GCSPLIT3_QUEUE", description=_QUEUE_RULE)
    hostpay_queue: str | None = Field(None, validation_alias="HOSTPAY_QUEUE", description=_QUEUE_RULE)
    estimator_response_queue: str | None = Field(
        None, validation_alias="ESTIMATOR__GCSPLIT1_RESPONSE_QUEUE", description=_QUEUE_RULE
    )
    swapper_response_queue: str | None = Field(
        None, validation_alias="SWAPPER__GCSPLIT1_RESPONSE_QUEUE", description=_QUEUE_RULE
    )
    response_queue: str | None = Field(
        None,
        validation_alias="GCSPLIT1_RESPONSE_QUEUE",
        description=f"it must be {' or '.join(RESPONSE_QUEUES)}: for another name write "
        "ESTIMATOR__GCSPLIT1_RESPONSE_QUEUE or SWAPPER__GCSPLIT1_RESPONSE_QUEUE, which say whose it is",
    )
    allow_missing_payment_id: bool = Field(
        False, validation_alias="PAYOUTS_ALLOW_MISSING_PAYMENT_ID", description="it must be true or false"
    )
    tokens_v1: Literal["off", "accept", "emit"] = Field(
        "off", validation_alias="PAYOUTS_TOKENS_V1", description="it must be off, accept or emit"
    )
    hostpay: Literal["internal", "external"] = Field(
        "internal", validation_alias="PAYOUTS_HOSTPAY", description="it must be internal or external"
    )
    webhook_format: Literal["full", "six-field"] = Field(
        "full", validation_alias="PAYOUTS_WEBHOOK_FORMAT", description="it must be full or six-field"
    )
    changenow_per_s: float = Field(
        30.0,
        ge=0.1,
        le=10_000,
        allow_inf_nan=False,
        validation_alias="CHANGENOW_REQUESTS_PER_S",
        description="it must be a number from 0.1 to 10000, as the vendor allows your key",
    )
    changenow_answer_s: float = Field(
        14.0,
        ge=0.1,
        le=14,
        allow_inf_nan=False,
        validation_alias="CHANGENOW_TIMEOUT_S",
        description="it must be a number of seconds from 0.1 to 14",
    )
    changenow_api_key: SecretStr | None = Field(None, validation_alias="CHANGENOW_API_KEY", description=_WORD_RULE)
    changenow_private_api_key: SecretStr | None = Field(
        None, validation_alias="CHANGENOW_PRIVATE_API_KEY", description=_WORD_RULE
    )
    changenow_url: str | None = Field(
        None, validation_alias="CHANGENOW_URL", description="it must be an address such as https://api.changenow.io"
    )
    chain_url: str | None = Field(
        None, validation_alias="PAYONCE_CHAIN_URL", description="it must be an address such as http://127.0.0.1:8545"
    )

    @field_validator("signing_key", "hostpay_signing_key")
    @classmethod
    def _are_keys(cls, text: SecretStr | None) -> SecretStr | None:
        if text is not None:
            from payonce.kit.webhooks.secrets import secrets_of

            secrets_of(text.get_secret_value())
        return text

    @field_validator("fee_percent", mode="before")
    @classmethod
    def _is_percent(cls, text: object) -> object:
        if isinstance(text, str) and not _PERCENT.fullmatch(text):
            raise ValueError("no percentage")
        return text

    @field_validator("host_wallet_address")
    @classmethod
    def _is_an_address(cls, text: str | None) -> str | None:
        if text is not None and not _ADDRESS.fullmatch(text):
            raise ValueError("no address")
        return text

    @field_validator("changenow_api_key", "changenow_private_api_key")
    @classmethod
    def _is_one_word(cls, key: SecretStr | None) -> SecretStr | None:
        return checked_word(key)

    @field_validator("changenow_url", "chain_url")
    @classmethod
    def _is_a_url(cls, url: str | None) -> str | None:
        return checked_url(url)

    @field_validator("gcsplit1_url", "gcsplit2_url", "gcsplit3_url", "hostpay_url")
    @classmethod
    def _is_http(cls, url: str | None, info: ValidationInfo) -> str | None:
        checked_url(url)
        # Somebody else's GCHostPay may answer at the address as it is written, and nowhere else.
        return url if url is None or info.field_name == "hostpay_url" else url.rstrip("/")

    @field_validator(*QUEUES.values())
    @classmethod
    def _is_a_queue(cls, text: str | None) -> str | None:
        if text is not None and not _QUEUE.fullmatch(text):
            raise ValueError("no queue")
        return text

    @field_validator("response_queue")
    @classmethod
    def _is_known(cls, text: str | None) -> str | None:
        # Two roles read it as two queues, and any process makes the tasks of both.
        if text is not None and text not in RESPONSE_QUEUES:
            raise ValueError("whose queue?")
        return text

    def called(self, queue: str) -> str:
        """What the task service calls this queue."""
        name: str | None = getattr(self, QUEUES[queue])
        return name or queue

    def check(self, settings: "Settings", roles: Sequence[str]) -> None:
        """Any process of payouts may be the one that makes the tasks of all of them, so each needs all keys."""
        self.signing_keys(settings)
        self.hostpay_keys(settings)
        self._check_hostpay(roles)
        if settings.cloud_tasks_project is not None:
            self._check_addresses()

    def signing_keys(self, settings: "Settings") -> "tuple[Secret, ...]":
        """Sign the webhook and the tokens: the first key signs, all verify."""
        return _keys(settings, self.signing_key, SIGNING_KEY, SIGNING_KEY_FILE_NAME)

    def hostpay_keys(self, settings: "Settings") -> "tuple[Secret, ...]":
        """The same for tokens to hostpay."""
        return _keys(settings, self.hostpay_signing_key, HOSTPAY_KEY, HOSTPAY_KEY_FILE_NAME)

    def _check_addresses(self) -> None:
        """Google brings tasks to addresses alone: any process may be the one that makes them, so each knows all."""
        urls = {
            "GCSPLIT1_URL": self.gcsplit1_url,
            "GCSPLIT2_URL": self.gcsplit2_url,
            "GCSPLIT3_URL": self.gcsplit3_url,
            "HOSTPAY_WEBHOOK_URL": self.hostpay_url,
        }
        missing = [variable for variable, url in urls.items() if url is None]
        if missing:
            raise Invalid(f"CLOUD_TASKS_PROJECT_ID is set and {missing[0]} is not; {_URL_RULE}")

    @property
    def external_hostpay(self) -> bool:
        return self.hostpay == "external"

    def runnable(self, roles: Sequence[str]) -> list[str]:
        """Of these roles, those that a process of all of them runs: where somebody else pays, not hostpay."""
        return [role for role in roles if role != HOSTPAY_ROLE or not self.external_hostpay]

    def _check_hostpay(self, roles: Sequence[str]) -> None:
        """No role takes part in payments that nobody could make."""
        has_key = self.changenow_api_key is not None
        if self.external_hostpay:
            self._check_external_hostpay(real_exchange=has_key or self.changenow_url is not None)
            if HOSTPAY_ROLE in roles:
                raise Invalid(f"PAYOUTS_HOSTPAY is external, so your own GCHostPay pays; do not run {HOSTPAY_ROLE}")
        elif has_key and self.chain_url is None:
            raise Invalid(
                "CHANGENOW_API_KEY is set and there is no wallet: this version has none that holds real money, so "
                "payouts could be taken and never paid; unset it to have exchange and wallet simulated, or set "
                "CHANGENOW_URL and PAYONCE_CHAIN_URL as `payonce simulators` prints them, or set "
                "PAYOUTS_HOSTPAY=external to have your own GCHostPay pay"
            )

    def _check_external_hostpay(self, *, real_exchange: bool) -> None:
        """Refuses what would have somebody's own GCHostPay pay nowhere, or nobody be told."""
        if self.hostpay_url is None:
            raise Invalid(
                f"PAYOUTS_HOSTPAY is external and HOSTPAY_WEBHOOK_URL is not set; {_URL_RULE}, where your "
                "GCHostPay takes its tasks"
            )
        if self.host_wallet_address is None:
            raise Invalid(
                "PAYOUTS_HOSTPAY is external and HOST_WALLET_ADDRESS is not set; set it to the address of "
                "the wallet that your GCHostPay pays from, where the exchange sends refunds"
            )
        if not real_exchange:
            raise Invalid(
                "PAYOUTS_HOSTPAY is external and the exchange is simulated in this process: your GCHostPay "
                "would be told to pay addresses that nobody has; set CHANGENOW_API_KEY"
            )

    @property
    def accepts_v1(self) -> bool:
        """Who emits version 1 is answered in it."""
        return self.tokens_v1 != "off"

    @property
    def emits_v1(self) -> bool:
        return self.tokens_v1 == "emit"


def _keys(settings: "Settings", text: SecretStr | None, variable: str, file_name: str) -> "tuple[Secret, ...]":
    from payonce.kit.webhooks.secrets import secrets_of

    if text is not None:
        return secrets_of(text.get_secret_value())
    if not settings.embedded:
        raise Invalid(
            f"{variable} is not set, and without it payouts could not tell a forged message from a true one; make "
            "one with `openssl rand -hex 32` and give it to every process of payouts"
        )
    return secrets_of(kept(settings.data_dir / file_name, lambda: secrets.token_hex(KEY_BYTES)))
