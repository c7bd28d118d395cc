"""What billing reads from the environment, under the names that its operators know.

| variable | meaning | unset |
|---|---|---|
| JWT_SECRET_KEY | signs access tokens; several keys may be separated by spaces: the first signs, all verify | generated for the private database, else no role starts |
| ACCESS_TOKEN_EXPIRE_MINUTES | lifetime of an access token | 15 |
| REFRESH_TOKEN_EXPIRE_DAYS | lifetime of a refresh token | 30 |
| BILLING_REGISTRATIONS_MAX | accounts that one address may register within a quarter of an hour; 0 closes self-registration | 20 |
| WEBHOOK_SIGNING_SECRET | signs the notifications of payments to subscriptions; several secrets may be separated by spaces: the first signs, all verify | generated for the private database, else no role starts |
| WEBHOOK_TOLERANCE_SECONDS | how far the timestamp of an incoming webhook may be off | 300 |
| BILLING_SELLER | the seller's name and address on invoices | payonce |
| BILLING_INVOICE_FONTS | TrueType files for invoices, with semicolons between; a letter is taken from the first that has it, and after them from the bundled fonts | bundled fonts |
| BILLING_INVOICE_FONTS_BOLD | the same for bold text | bundled fonts |
| SUBSCRIPTION_SERVICE_URL | address of `billing.subscriptions`: payments send it notifications and ask it whether an access token still counts | this process if it runs both, else http://127.0.0.1:8001 |
| BILLING_DATABASE | which billing service's tables DATABASE_URL holds: both, subscriptions or payments | both |
| PAYMENT_SERVICE_URL | address of `billing.payments`, for subscriptions with a database of their own | http://127.0.0.1:8002 |
| BILLING_TEST_CLOCKS | allow test clocks; set it to the same value for both roles | true where the gateway is simulated in the process, else false |
| GATEWAY_URL | address of the card gateway | simulated in the process |
| GATEWAY_API_KEY | API key of the card gateway | simulated in the process |
| GATEWAY_WEBHOOK_SECRET | verifies the gateway's webhooks; several secrets may be separated by spaces | generated for the private database, else the gateway's webhooks are refused |
| GATEWAY_REQUESTS_PER_S | the gateway's rate limit for your key, per second; payonce uses four fifths of it | 100 |
| GATEWAY_TIMEOUT_S | seconds to wait for an answer of the gateway | 14 |

Each may be projects/…/secrets/…/versions/… instead; see payonce.settings.references.
A process that runs billing.subscriptions and nothing else listens on port 8001, one that runs billing.payments on 8002,
unless PAYONCE_PORT or --port says otherwise.
"""  # noqa: E501

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pydantic import Field, SecretStr, field_validator

from payonce.kit.outcomes import Invalid
from payonce.settings.data_folder import KEY_BYTES, kept
from payonce.settings.service import ServiceSettings, checked_url, checked_word

if TYPE_CHECKING:
    from payonce.kit.webhooks.secrets import Secret
    from payonce.settings import Settings

JWT_KEY: Final = "JWT_SECRET_KEY"
JWT_KEY_MIN_BYTES: Final = 32
JWT_KEY_MAX_BYTES: Final = 256
JWT_KEY_FILE_NAME: Final = "billing-jwt-key"
WEBHOOK_SECRET: Final = "WEBHOOK_SIGNING_SECRET"  # noqa: S105 - the name of a variable
GATEWAY_SECRET_FILE_NAME: Final = "gateway-webhook-secret"  # noqa: S105 - a file's name
WEBHOOK_SECRET_FILE_NAME: Final = "billing-webhook-secret"  # noqa: S105 - the name of a file
SUBSCRIPTIONS, PAYMENTS = "billing.subscriptions", "billing.payments"
PORTS: Final = {SUBSCRIPTIONS: 8001, PAYMENTS: 8002}
"""Where a process listens that runs this role alone."""

SELLER_LINES_MAX: Final = 9

_KEY_RULE: Final = (
    f"each key must have {JWT_KEY_MIN_BYTES} to {JWT_KEY_MAX_BYTES} printable characters; make one with "
    "`openssl rand -hex 32`"
)


FONTS_MAX: Final = 8
_FONTS_RULE: Final = f"it must be up to {FONTS_MAX} absolute paths of TrueType files, with semicolons between"


class BillingSettings(ServiceSettings):
    jwt_secret_key: SecretStr | None = Field(None, validation_alias=JWT_KEY, description=_KEY_RULE)
    access_minutes: int = Field(
        15,
        ge=1,
        le=1_440,
        validation_alias="ACCESS_TOKEN_EXPIRE_MINUTES",
        description="it must be a whole number of minutes from 1 to 1440",
    )
    refresh_days: int = Field(
        30,
        ge=1,
        le=366,
        validation_alias="REFRESH_TOKEN_EXPIRE_DAYS",
        description="it must be a whole number of days from 1 to 366",
    )
    registrations_max: int = Field(
        20,
        ge=0,
        le=1_000_000,
        validation_alias="BILLING_REGISTRATIONS_MAX",
        description="it must be a whole number from 0 to 1000000; 0 closes self-registration",
    )
    subscription_service_url: str | None = Field(
        None,
        validation_alias="SUBSCRIPTION_SERVICE_URL",
        description="it must be an address such as http://127.0.0.1:8001",
    )

    payment_service_url: str | None = Field(
        None,
        validation_alias="PAYMENT_SERVICE_URL",
        description="it must be an address such as http://127.0.0.1:8002",
    )
    database: Literal["both", "subscriptions", "payments"] = Field(
        "both",
        validation_alias="BILLING_DATABASE",
        description="it must be both, subscriptions or payments: the services whose tables DATABASE_URL holds",
    )

    seller: str = Field(
        "payonce",
        min_length=1,
        max_length=1_000,
        validation_alias="BILLING_SELLER",
        description="it must be a name and up to 8 lines of an address, with semicolons between",
    )

    invoice_fonts: str | None = Field(
        None, max_length=4_000, validation_alias="BILLING_INVOICE_FONTS", description=_FONTS_RULE
    )
    invoice_fonts_bold: str | None = Field(
        None, max_length=4_000, validation_alias="BILLING_INVOICE_FONTS_BOLD", description=_FONTS_RULE
    )

    test_clocks: bool | None = Field(
        None, validation_alias="BILLING_TEST_CLOCKS", description="it must be true or false"
    )
    gateway_url: str | None = Field(
        None, validation_alias="GATEWAY_URL", description="it must be an address such as https://gateway.example"
    )
    gateway_api_key: SecretStr | None = Field(
        None, validation_alias="GATEWAY_API_KEY", description="it must be one word, as the gateway gave it"
    )
    gateway_webhook_secret: SecretStr | None = Field(
        None,
        validation_alias="GATEWAY_WEBHOOK_SECRET",
        description="each secret must have 16 to 256 bytes, as the gateway gave it",
    )
    gateway_per_s: float = Field(
        100.0,
        ge=0.1,
        le=10_000,
        allow_inf_nan=False,
        validation_alias="GATEWAY_REQUESTS_PER_S",
        description="it must be a number from 0.1 to 10000, as the gateway allows your key",
    )
    gateway_answer_s: float = Field(
        14.0,
        ge=0.1,
        le=14,
        allow_inf_nan=False,
        validation_alias="GATEWAY_TIMEOUT_S",
        description="it must be a number of seconds from 0.1 to 14",
    )

    @field_validator("seller")
    @classmethod
    def _has_lines(cls, text: str) -> str:
        lines = text.split(";")
        if len(lines) > SELLER_LINES_MAX or not lines[0].strip() or not text.isprintable():
            raise ValueError("no name, or too many lines")
        return text

    @field_validator("invoice_fonts", "invoice_fonts_bold")
    @classmethod
    def _are_files(cls, text: str | None) -> str | None:
        files = files_of(text)
        if len(files) > FONTS_MAX or not all(file.is_absolute() for file in files):
            raise ValueError("too many files, or relative paths")
        return text

    @field_validator("jwt_secret_key")
    @classmethod
    def _are_keys(cls, text: SecretStr | None) -> SecretStr | None:
        if text is not None:
            jwt_keys_of(text.get_secret_value())
        return text

    @field_validator("subscription_service_url", "payment_service_url")
    @classmethod
    def _is_http(cls, url: str | None) -> str | None:
        checked_url(url)
        return url if url is None else url.rstrip("/")

    @field_validator("gateway_url")
    @classmethod
    def _is_gateway(cls, url: str | None) -> str | None:
        checked_url(url)
        return url if url is None else url.rstrip("/").removesuffix("/v1")

    @field_validator("gateway_api_key")
    @classmethod
    def _is_one_word(cls, key: SecretStr | None) -> SecretStr | None:
        return checked_word(key)

    @field_validator("gateway_webhook_secret")
    @classmethod
    def _are_secrets(cls, text: SecretStr | None) -> SecretStr | None:
        if text is not None:
            from payonce.kit.webhooks.secrets import secrets_of

            secrets_of(text.get_secret_value())
        return text

    @property
    def has_test_clocks(self) -> bool:
        """Only where no real card is charged time may be played with, unless somebody says so."""
        simulated = self.gateway_url is None and self.gateway_api_key is None
        return simulated if self.test_clocks is None else self.test_clocks

    def holds(self, role: str) -> bool:
        """Whether the database has the tables of one of billing's roles."""
        return self.database == "both" or role == f"billing.{self.database}"

    def check(self, settings: "Settings", roles: Sequence[str]) -> None:
        """Refuses a role without its keys, and one whose tables are in another database."""
        jwt_keys(settings)
        notification_secrets(settings)
        for role in roles:
            if not self.holds(role):
                raise Invalid(
                    f"BILLING_DATABASE is {self.database}, so {role} has its tables in another database; run it with "
                    f"the DATABASE_URL of that one and BILLING_DATABASE={role.partition('.')[2]}"
                )

    def gateway_secrets(self, folder: Path | None) -> "tuple[Secret, ...]":
        """What the gateway's webhooks are verified with. Without a setting, one that is made and kept in `folder`,
        which is that of the private database or of simulators; with neither none, and every webhook is refused."""
        from payonce.kit.webhooks.secrets import new_secret, secrets_of

        if self.gateway_webhook_secret is not None:
            return secrets_of(self.gateway_webhook_secret.get_secret_value())
        if folder is None:
            return ()
        return secrets_of(kept(folder / GATEWAY_SECRET_FILE_NAME, lambda: new_secret().reveal()))


def files_of(text: str | None) -> tuple[Path, ...]:
    """Paths with semicolons between; none for None."""
    return tuple(Path(name.strip()) for name in (text or "").split(";") if name.strip())


def jwt_keys_of(text: str) -> tuple[bytes, ...]:
    """One key, or several with spaces between them while they are being exchanged."""
    keys = tuple(each.encode() for each in text.split() if each.isascii() and each.isprintable())
    if not keys or len(keys) != len(text.split()):
        raise ValueError("no key, or one of other letters")
    if not all(JWT_KEY_MIN_BYTES <= len(key) <= JWT_KEY_MAX_BYTES for key in keys):
        raise ValueError("too short or too long")
    return keys


def jwt_keys(settings: "Settings") -> tuple[bytes, ...]:
    """What the tokens of billing's users are signed with: the first signs, every one reads."""
    given = settings.of(BillingSettings).jwt_secret_key
    if given is not None:
        return jwt_keys_of(given.get_secret_value())
    return jwt_keys_of(_made(settings, JWT_KEY, JWT_KEY_FILE_NAME, "whose token it is"))


def notification_secrets(settings: "Settings") -> "tuple[Secret, ...]":
    """What payments sign notifications to subscriptions with: the first signs, every one verifies."""
    from payonce.kit.webhooks.secrets import secrets_of

    given = settings.webhook_signing_secret
    if given is not None:
        return secrets_of(given.get_secret_value())
    return secrets_of(_made(settings, WEBHOOK_SECRET, WEBHOOK_SECRET_FILE_NAME, "who tells it of a payment"))


def _made(settings: "Settings", variable: str, file_name: str, unknown: str) -> str:
    if not settings.embedded:
        raise Invalid(
            f"{variable} is not set, and without it billing could not know {unknown}; make one with "
            "`openssl rand -hex 32` and give it to every process of billing"
        )
    return kept(settings.data_dir / file_name, lambda: secrets.token_hex(KEY_BYTES))
