"""Settings of access: connection limits, names of this host, the database login, who verifies the tokens of tasks, and
the token of our own Cloud Tasks server.

| variable | meaning | unset |
|---|---|---|
| PAYONCE_HTTP_CONNECTIONS | open HTTP connections of one process | 1000 |
| PAYONCE_HTTP_CONNECTIONS_PER_ADDRESS | of these, from one address or IPv6 network; proxies are exempt | 500 |
| PAYONCE_ALLOWED_HOSTS | host names that HTTP answers to | on the loopback its own names, else all |
| PAYONCE_ACCEPT_SUPERUSER | run roles although DATABASE_URL is the login of a superuser | false |
| PAYONCE_ACCEPT_OWNER | run roles although DATABASE_URL is the login of the owner of the schema | false |
| CLOUD_TASKS_VERIFIED_BY | who verifies the OIDC tokens of tasks; cloud-run only behind its IAM check | payonce |
| CLOUD_TASKS_TOKEN | token of our own Cloud Tasks server and its clients | generated in the data folder |
"""

import os
import secrets
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from payonce.kit.outcomes import Invalid
from payonce.settings.data_folder import kept

CLOUD_RUN: Final = "cloud-run"
OF_CLOUD_RUN: Final = ("K_SERVICE", "K_REVISION", "K_CONFIGURATION")
"""What every container of a Cloud Run service has in its environment, by its container contract."""
OF_KUBERNETES: Final = "KUBERNETES_SERVICE_HOST"
"""In the environment of every container in Kubernetes, and of none on Cloud Run. Knative Serving runs there, sets the
names above too, and verifies no token."""
TOKEN_FILE_NAME: Final = "cloudtasks-token"  # noqa: S105 - a name
TOKEN_BYTES: Final = 32
TOKEN_LEAST_CHARS: Final = 16


class AccessSettings(BaseModel):
    """Each description completes the sentence that refuses a bad value."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    http_connections: int = Field(
        1_000,
        ge=10,
        le=100_000,
        validation_alias="PAYONCE_HTTP_CONNECTIONS",
        description="it must be a whole number from 10 to 100000: open HTTP connections of one process",
    )
    http_connections_per_address: int = Field(
        500,
        ge=1,
        le=100_000,
        validation_alias="PAYONCE_HTTP_CONNECTIONS_PER_ADDRESS",
        description="it must be a whole number from 1 to 100000: open HTTP connections from one address",
    )

    allowed_hosts: str | None = Field(
        None,
        validation_alias="PAYONCE_ALLOWED_HOSTS",
        pattern=r"^[^\s,:/\[\]]+( *, *[^\s,:/\[\]]+)*$",
        description="it must be names without scheme and port, parted by commas, such as pay.example.com",
    )
    accept_superuser: bool = Field(
        False, validation_alias="PAYONCE_ACCEPT_SUPERUSER", description="it must be true or false"
    )
    accept_owner: bool = Field(False, validation_alias="PAYONCE_ACCEPT_OWNER", description="it must be true or false")
    verified_by: Literal["payonce", "cloud-run"] = Field(
        "payonce", validation_alias="CLOUD_TASKS_VERIFIED_BY", description="it must be payonce or cloud-run"
    )
    cloud_tasks_token: SecretStr | None = Field(
        None,
        validation_alias="CLOUD_TASKS_TOKEN",
        description=f"it must have at least {TOKEN_LEAST_CHARS} printable ASCII characters without spaces; make one "
        "with `openssl rand -hex 32`",
    )

    @field_validator("cloud_tasks_token")
    @classmethod
    def _is_long_enough(cls, token: SecretStr | None) -> SecretStr | None:
        return None if token is None else SecretStr(_checked_token(token.get_secret_value()))

    def accepted_logins(self, embedded: bool) -> dict[str, bool]:
        """For `check_login`. The private database has a login of its own for the services."""
        return {
            "superuser_accepted": embedded or self.accept_superuser,
            "owner_accepted": embedded or self.accept_owner,
        }

    @property
    def verified_by_platform(self) -> bool:
        return self.verified_by == CLOUD_RUN

    def check_platform(self, project: str | None) -> None:
        """Refuses to trust a check of Cloud Run's where there is no Cloud Run: anybody could send a token without a
        signature there."""
        if not self.verified_by_platform:
            return
        missing = [name for name in OF_CLOUD_RUN if not os.environ.get(name)]
        if missing:
            raise Invalid(
                f"CLOUD_TASKS_VERIFIED_BY is cloud-run, and this is no Cloud Run service ({missing[0]} is not set): "
                "nobody would have checked the tokens of tasks; leave it unset here"
            )
        if os.environ.get(OF_KUBERNETES):
            raise Invalid(
                f"CLOUD_TASKS_VERIFIED_BY is cloud-run, and this runs in Kubernetes ({OF_KUBERNETES} is set), where "
                "Knative names its services as Cloud Run does and checks no tokens of tasks; leave it unset here"
            )
        if project is None:
            raise Invalid(
                "CLOUD_TASKS_VERIFIED_BY is cloud-run and CLOUD_TASKS_PROJECT_ID is not set; only tasks of Google's "
                "come with tokens that Cloud Run checks"
            )

    def task_server_token(self, data_dir: Path) -> str:
        """What callers of our own Cloud Tasks server send. Without the setting it is kept in the data folder, for its
        owner alone. Raises OSError where it cannot be kept there."""
        if self.cloud_tasks_token is not None:
            return self.cloud_tasks_token.get_secret_value()
        path = data_dir / TOKEN_FILE_NAME
        try:
            return _checked_token(kept(path, lambda: secrets.token_urlsafe(TOKEN_BYTES)))
        except ValueError:
            raise Invalid(f"{path} holds no token that could not be guessed; remove it for a new one") from None


def _checked_token(text: str) -> str:
    token = text.strip()
    if len(token) < TOKEN_LEAST_CHARS or not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError("not a token")
    return token
