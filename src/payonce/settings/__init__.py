"""One frozen Settings from the environment, validated at the start; secrets are never shown.

| variable | meaning | unset |
|---|---|---|
| DATABASE_URL | PostgreSQL login of the roles, neither superuser nor owner | a private server is started |
| DATABASE_OWNER_URL | PostgreSQL login that owns and migrates the schema | DATABASE_URL |
| REDIS_URL | Redis that holds the queues | PostgreSQL holds them |
| PAYONCE_QUEUES | backend of the queues | redis if REDIS_URL is set, else postgres |
| PAYONCE_SERVICES | the services of this deployment, with commas between | all that are installed with their extras |
| PAYONCE_DATA_DIR | folder of the private PostgreSQL, simulators and keys | .payonce of the project, else of the user |
| PAYONCE_HOST | address that HTTP listens on | 127.0.0.1 |
| PAYONCE_PORT | port that HTTP listens on; PORT is read where this is unset | 8080 |
| PAYONCE_METRICS | whether /metrics and the queues' depths need an API key | open on the loopback, else key |
| PAYONCE_TRUSTED_PROXIES | proxies whose X-Forwarded-For and X-Forwarded-Proto are trusted | none |
| PAYONCE_SLOTS | messages in work at once, per queue and process | 100 |
| PAYONCE_POOL_SIZE | database connections of each of two pools, per process; 10 more are the engine's | 10 |
| PAYONCE_ACCEPT_DATA_LOSS | start on a database that may lose commits; see docs/database.md | false |
| PAYONCE_GRACE_S | seconds that running work may take after SIGTERM | 20 |
| PAYONCE_LOG | log format; auto is pretty on a terminal and json elsewhere | auto |
| PAYONCE_LOG_EMOJI | add the emoji of the pretty format to JSON lines, in a field `message` | false |
| PAYONCE_LOG_SEVERITY | add the level of JSON lines in a field `severity`, for Google Cloud | on Cloud Run true |
| PAYONCE_JOB_LOG_DAYS | days that the job log is kept | 30 |
| PAYONCE_AUDIT_ANCHOR | file to which the heads of the sealed audit log and ledger are appended | none |
| PAYONCE_KEYS | keys that encrypt stored secrets, with commas between | generated for the private database |
| PAYONCE_WEBHOOK_PRIVATE | deliver webhooks also to private addresses and over plain HTTP | false |
| CLOUD_TASKS_PROJECT_ID | Google project whose Cloud Tasks deliver the pushed queues | our own server delivers them |
| CLOUD_TASKS_LOCATION | Google location of its queues | us-central1 |
| CLOUD_TASKS_ENDPOINT | our own Cloud Tasks server, started with `payonce cloudtasks` | 127.0.0.1:8123 |
| CLOUD_TASKS_SERVICE_ACCOUNT | service account in the OIDC tokens of tasks | our own server's |

QUEUE_POLICY__<QUEUE>__<FIELD> changes one field of one queue's policy; see payonce.engine.messages.policy. Logins and
addresses are in payonce.settings.access; each service declares settings of its own in its module `settings`. Any of
them may name a secret instead (payonce.settings.references).
"""

import os
import secrets
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self, TypeVar, cast
from urllib.parse import urlsplit

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
)

from payonce.kit.outcomes import Invalid
from payonce.kit.postgres_hosts import hosts_of
from payonce.settings.access import AccessSettings
from payonce.settings.cloud_sql import CloudSqlSettings
from payonce.settings.data_folder import default_data_dir, kept, kept_keys
from payonce.settings.references import resolved
from payonce.settings.service import ServiceSettings, ServiceSettingsT
from payonce.settings.variables import sentence, variables

if TYPE_CHECKING:
    from payonce.kit.crypto import Keyring

KEYS_FILE_NAME: Final = "keys"
LINK_FILE_NAME: Final = "console-token"
TOKEN_BYTES: Final = 32
POSTGRES_SCHEMES: Final = ("postgresql", "postgres")
URL_RULE: Final = (
    "it must be a PostgreSQL address such as postgresql://user@host:5432/database, a password in it percent-encoded"
)
REDIS_SCHEMES: Final = ("redis", "rediss", "unix")
REDIS_RULE: Final = "it must be an address such as redis://localhost:6379/0, a password in it percent-encoded"

Model = TypeVar("Model", bound=BaseModel)


class Settings(BaseModel):
    """Each description completes the sentence that refuses a bad value: what it must be."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    database_url: SecretStr | None = Field(None, validation_alias="DATABASE_URL", description=URL_RULE)
    database_owner_url: SecretStr | None = Field(None, validation_alias="DATABASE_OWNER_URL", description=URL_RULE)
    redis_url: SecretStr | None = Field(None, validation_alias="REDIS_URL", description=REDIS_RULE)
    queues: Literal["postgres", "redis"] | None = Field(
        None, validation_alias="PAYONCE_QUEUES", description="it must be postgres or redis"
    )
    services: str | None = Field(
        None, validation_alias="PAYONCE_SERVICES", description="it must be names of services with commas between"
    )
    data_dir: Path = Field(
        default_factory=lambda: default_data_dir(Path.cwd(), os.environ),
        validation_alias="PAYONCE_DATA_DIR",
        description="it must name a folder",
    )
    host: str = Field(
        "127.0.0.1", validation_alias="PAYONCE_HOST", description="it must be an address of this machine, or 0.0.0.0"
    )
    port: int = Field(
        8080,
        ge=0,
        le=65_535,
        validation_alias=AliasChoices("PAYONCE_PORT", "PORT"),
        description="it must be a whole number from 0 (any free port) to 65535",
    )
    metrics: Literal["open", "key"] | None = Field(
        None, validation_alias="PAYONCE_METRICS", description="it must be open or key"
    )
    trusted_proxies: str | None = Field(
        None,
        validation_alias="PAYONCE_TRUSTED_PROXIES",
        description="it must be addresses or networks, parted by commas, such as 10.0.0.1,10.1.0.0/16",
    )
    slots: int = Field(
        100,
        ge=1,
        le=10_000,
        validation_alias="PAYONCE_SLOTS",
        description="it must be a whole number from 1 to 10000: messages in work at once, per queue",
    )
    pool_size: int = Field(
        10,
        ge=1,
        le=1_000,
        validation_alias="PAYONCE_POOL_SIZE",
        description="it must be a whole number from 1 to 1000: database connections for handlers",
    )
    accept_data_loss: bool = Field(
        False, validation_alias="PAYONCE_ACCEPT_DATA_LOSS", description="it must be true or false"
    )
    grace_s: float = Field(
        20.0,
        ge=0,
        le=3_600,
        allow_inf_nan=False,
        validation_alias="PAYONCE_GRACE_S",
        description="it must be a number of seconds from 0 to 3600",
    )
    log: Literal["json", "pretty", "auto"] = Field(
        "auto", validation_alias="PAYONCE_LOG", description="it must be json, pretty or auto"
    )
    log_emoji: bool = Field(False, validation_alias="PAYONCE_LOG_EMOJI", description="it must be true or false")
    log_severity: bool = Field(
        default_factory=lambda: any(os.environ.get(name) for name in ("K_SERVICE", "CLOUD_RUN_JOB")),
        validation_alias="PAYONCE_LOG_SEVERITY",
        description="it must be true or false",
    )
    job_log_days: int = Field(
        30,
        ge=1,
        le=3_660,
        validation_alias="PAYONCE_JOB_LOG_DAYS",
        description="it must be a whole number of days from 1 to 3660",
    )
    audit_anchor: Path | None = Field(
        None,
        validation_alias="PAYONCE_AUDIT_ANCHOR",
        description="it must name a file, which may be new, in a folder that exists",
    )

    keys: SecretStr | None = Field(
        None,
        validation_alias="PAYONCE_KEYS",
        description="it must read k1:base64, of 32 bytes; make one with `openssl rand -base64 32`",
    )
    webhook_private: bool = Field(
        False, validation_alias="PAYONCE_WEBHOOK_PRIVATE", description="it must be true or false"
    )
    webhook_signing_secret: SecretStr | None = Field(
        None,
        validation_alias="WEBHOOK_SIGNING_SECRET",
        description="each secret must have 16 to 256 bytes; make one with `payonce webhooks secret`",
    )
    webhook_tolerance_s: int = Field(
        300,
        ge=1,
        le=86_400,
        validation_alias="WEBHOOK_TOLERANCE_SECONDS",
        description="it must be a whole number of seconds from 1 to 86400",
    )

    cloud_tasks_project: str | None = Field(
        None,
        validation_alias="CLOUD_TASKS_PROJECT_ID",
        pattern=r"^[a-z][a-z0-9:.-]{4,98}$",
        description="it must be the id of a Google project, such as my-project-123",
    )
    cloud_tasks_location: str = Field(
        "us-central1",
        validation_alias="CLOUD_TASKS_LOCATION",
        pattern=r"^[a-z0-9-]{1,60}$",
        description="it must be a location of Google's, such as us-central1",
    )
    cloud_tasks_endpoint: str | None = Field(
        None,
        validation_alias="CLOUD_TASKS_ENDPOINT",
        pattern=r"^[^\s/:@]+:[0-9]{1,5}$",
        description="it must be host:port of a Cloud Tasks server without TLS, such as 127.0.0.1:8123",
    )
    cloud_tasks_service_account: str | None = Field(
        None,
        validation_alias="CLOUD_TASKS_SERVICE_ACCOUNT",
        pattern=r"^[^\s@]+@[^\s@]+$",
        description="it must be the address of a service account, such as tasks@my-project.iam.gserviceaccount.com",
    )

    access: AccessSettings = Field(default_factory=lambda: AccessSettings.model_validate({}))
    cloud_sql: CloudSqlSettings = Field(default_factory=lambda: CloudSqlSettings.model_validate({}))

    _environ: Mapping[str, str] = PrivateAttr(default_factory=dict)
    _services: dict[type[ServiceSettings], ServiceSettings] = PrivateAttr(default_factory=dict)

    @field_validator("keys")
    @classmethod
    def _are_keys(cls, text: SecretStr | None) -> SecretStr | None:
        if text is not None:
            # Not at the top: most commands seal nothing, and the ciphers take a while to load.
            from payonce.kit.crypto import Keyring

            Keyring.from_text(text.get_secret_value())
        return text

    @field_validator("webhook_signing_secret")
    @classmethod
    def _are_secrets(cls, text: SecretStr | None) -> SecretStr | None:
        if text is not None:
            from payonce.kit.webhooks.secrets import secrets_of

            secrets_of(text.get_secret_value())
        return text

    @field_validator("database_url", "database_owner_url")
    @classmethod
    def _is_postgres(cls, url: SecretStr | None) -> SecretStr | None:
        if url is None:
            return url
        # Reading the hosts refuses a port that is none; an @ behind the first / is a password that was not encoded.
        parts = urlsplit(url.get_secret_value())
        hosts_of(url.get_secret_value())
        if parts.scheme not in POSTGRES_SCHEMES or "@" in parts.path:
            raise ValueError("not a PostgreSQL address")
        return url

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, text: str | None) -> str | None:
        for part in () if text is None else text.split(","):
            # An asterisk would let every client choose its own address.
            ip_network(part.strip())
        return text

    @field_validator("audit_anchor")
    @classmethod
    def _can_be_a_file(cls, path: Path | None) -> Path | None:
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise ValueError("no file, or no folder for it")
        return path

    @field_validator("redis_url")
    @classmethod
    def _is_redis(cls, url: SecretStr | None) -> SecretStr | None:
        if url is None:
            return url
        parts = urlsplit(url.get_secret_value())
        named = parts.path if parts.scheme == "unix" else parts.hostname
        if parts.scheme not in REDIS_SCHEMES or not named or parts.port == 0:
            raise ValueError("not a Redis address")
        return url

    @property
    def backend(self) -> str:
        """Where the queues lie."""
        return self.queues or ("postgres" if self.redis_url is None else "redis")

    @property
    def embedded(self) -> bool:
        """True when no database is named, so that a private one serves."""
        return self.database_url is None

    def keyring(self) -> "Keyring | None":
        """What stored secrets are sealed with. The private database has keys of its own, made when they are first
        asked for; beside another one they come from the environment, the same for every process, or there are none."""
        from payonce.kit.crypto import Keyring

        if self.keys is not None:
            return Keyring.from_text(self.keys.get_secret_value())
        return Keyring.from_text(kept_keys(self.data_dir / KEYS_FILE_NAME)) if self.embedded else None

    def of(self, service: type[ServiceSettingsT]) -> ServiceSettingsT:
        """The settings of a service, from the same environment. Raises Invalid like `load_settings`."""
        if service not in self._services:
            self._services[service] = _validated(service, resolved(self._environ, variables(service)))
        return cast(ServiceSettingsT, self._services[service])

    def having(self, *services: ServiceSettings) -> Self:
        """A copy with these settings of services instead of the environment's."""
        copy = self.model_copy()
        copy._services = {**self._services, **{type(each): each for each in services}}
        return copy

    def console_token(self) -> str:
        """What the console's link carries while nobody has a login; the same after a restart."""
        path = self.data_dir / LINK_FILE_NAME
        token = kept(path, lambda: secrets.token_urlsafe(TOKEN_BYTES)).strip()
        if len(token) < TOKEN_BYTES:
            raise Invalid(f"{path} has {len(token)} characters, which could be guessed; remove it for a new one")
        return token

    @property
    def simulators_dir(self) -> Path:
        """Where simulated vendors keep their books."""
        return self.data_dir / "simulators"

    @property
    def task_server_file(self) -> Path:
        """Where our own Cloud Tasks server says at which address it listens, for commands of the same folder."""
        return self.data_dir / "cloudtasks-address"

    @property
    def server_dir(self) -> Path:
        """Where the private PostgreSQL lives; the data folder itself has room for more."""
        return self.data_dir / "postgres"


def revealed(secret: SecretStr | None) -> str | None:
    return None if secret is None else secret.get_secret_value()


def load_settings() -> Settings:
    """The environment as Settings, or Invalid with the variable, its value and the remedy. Services' settings are read
    when `Settings.of` is first called for them."""
    environ = resolved(os.environ, variables(Settings) | variables(AccessSettings) | variables(CloudSqlSettings))
    cloud_sql = _validated(CloudSqlSettings, environ)
    if "DATABASE_URL" not in environ and (url := cloud_sql.url()) is not None:
        environ["DATABASE_URL"] = url
    if "DATABASE_OWNER_URL" in environ and "DATABASE_URL" not in environ:
        raise Invalid(
            "DATABASE_OWNER_URL is set and DATABASE_URL is not; set both, or neither for the private database"
        )
    parts = {"access": _validated(AccessSettings, environ), "cloud_sql": cloud_sql}
    settings = _validated(Settings, {**environ, **parts})
    settings._environ = dict(os.environ)
    return settings


def _validated(model: type[Model], environ: Mapping[str, object]) -> Model:
    try:
        return model.model_validate(environ)
    except ValidationError as error:
        raise Invalid(sentence(error, variables(model))) from None
