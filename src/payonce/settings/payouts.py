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
| INSTANCE_CONNECTION_NAME | Cloud SQL instance, used where DATABASE_URL is unset | none |
| DB_NAME | database of the Cloud SQL instance; required with INSTANCE_CONNECTION_NAME | none |
| DB_USER | login of the Cloud SQL instance; required with INSTANCE_CONNECTION_NAME | none |
| DB_PASSWORD | password of the Cloud SQL login; required with INSTANCE_CONNECTION_NAME | none |

Each may be projects/…/secrets/…/versions/… instead; see payonce.settings.references.
"""  # noqa: E501

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Final, Literal
from urllib.parse import quote, urlencode

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator

from payonce.kit.outcomes import Invalid

HOSTPAY_ROLE: Final = "payouts.hostpay"
SIGNING_KEY: Final = "SUCCESS_URL_SIGNING_KEY"
HOSTPAY_KEY: Final = "TPS_HOSTPAY_SIGNING_KEY"
FEE_PERCENT_DECIMALS: Final = 6
CLOUD_SQL_FOLDER: Final = "/cloudsql"
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
_URL_RULE: Final = "it must be an address such as https://gcsplit1-10-26-xxx.run.app"
_PERCENT: Final = re.compile(rf"\d{{1,2}}(?:\.\d{{1,{FEE_PERCENT_DECIMALS}}})?", re.ASCII)
_QUEUE: Final = re.compile(r"[A-Za-z0-9-]{1,100}", re.ASCII)
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
_INSTANCE: Final = re.compile(r"[\w.-]+(?::[\w.-]+){2,3}", re.ASCII)


class PayoutsSettings(BaseModel):
    """Each description completes the sentence that refuses a bad value: what it must be."""

    model_config = ConfigDict(frozen=True, extra="ignore")

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
    instance: str | None = Field(
        None,
        validation_alias="INSTANCE_CONNECTION_NAME",
        description="it must read project:region:instance, as `gcloud sql instances describe` shows it",
    )
    db_name: str | None = Field(None, validation_alias="DB_NAME", description="it must name a database")
    db_user: str | None = Field(None, validation_alias="DB_USER", description="it must name a login")
    db_password: SecretStr | None = Field(None, validation_alias="DB_PASSWORD", description="it must be a password")

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

    @field_validator("host_wallet_address", "instance")
    @classmethod
    def _has_its_shape(cls, text: str | None, info: ValidationInfo) -> str | None:
        shape = _ADDRESS if info.field_name == "host_wallet_address" else _INSTANCE
        if text is not None and not shape.fullmatch(text):
            raise ValueError("another shape")
        return text

    @field_validator("gcsplit1_url", "gcsplit2_url", "gcsplit3_url", "hostpay_url")
    @classmethod
    def _is_http(cls, url: str | None, info: ValidationInfo) -> str | None:
        if url is not None:
            from payonce.kit.http import parse_url

            parse_url(url)
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

    def check_addresses(self) -> None:
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

    def check_hostpay(self, roles: Sequence[str], *, has_key: bool, has_url: bool, has_chain: bool) -> None:
        """No role takes part in payments that nobody could make."""
        if self.external_hostpay:
            self._check_external_hostpay(real_exchange=has_key or has_url)
            if HOSTPAY_ROLE in roles:
                raise Invalid(f"PAYOUTS_HOSTPAY is external, so your own GCHostPay pays; do not run {HOSTPAY_ROLE}")
        elif has_key and not has_chain:
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

    def cloud_sql_url(self, folder: str = CLOUD_SQL_FOLDER) -> str | None:
        """The database behind Cloud SQL's socket; None if no instance is named."""
        if self.instance is None:
            return None
        wanted = {"DB_NAME": self.db_name, "DB_USER": self.db_user, "DB_PASSWORD": self.db_password}
        if missing := [name for name, value in wanted.items() if value is None]:
            raise Invalid(
                f"INSTANCE_CONNECTION_NAME is {self.instance!r} and {missing[0]} is not set; set it, or name "
                "the database by DATABASE_URL"
            )
        assert self.db_name is not None
        assert self.db_user is not None
        assert self.db_password is not None
        login = f"{quote(self.db_user, safe='')}:{quote(self.db_password.get_secret_value(), safe='')}"
        socket = urlencode({"host": f"{folder}/{self.instance}"})
        return f"postgresql://{login}@/{quote(self.db_name, safe='')}?{socket}"
