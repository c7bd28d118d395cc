"""The database behind Cloud SQL's socket.

| variable | meaning | unset |
|---|---|---|
| INSTANCE_CONNECTION_NAME | Cloud SQL instance, used where DATABASE_URL is unset | none |
| DB_NAME | database of the Cloud SQL instance; required with INSTANCE_CONNECTION_NAME | none |
| DB_USER | login of the Cloud SQL instance; required with INSTANCE_CONNECTION_NAME | none |
| DB_PASSWORD | password of the Cloud SQL login; required with INSTANCE_CONNECTION_NAME | none |
"""

import re
from typing import Final
from urllib.parse import quote, urlencode

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator

from payonce.kit.outcomes import Invalid

FOLDER: Final = "/cloudsql"
_INSTANCE: Final = re.compile(r"[\w.-]+(?::[\w.-]+){2,3}", re.ASCII)


class CloudSqlSettings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    instance: str | None = Field(
        None,
        validation_alias="INSTANCE_CONNECTION_NAME",
        description="it must read project:region:instance, as `gcloud sql instances describe` shows it",
    )
    db_name: str | None = Field(None, validation_alias="DB_NAME", description="it must name a database")
    db_user: str | None = Field(None, validation_alias="DB_USER", description="it must name a login")
    db_password: SecretStr | None = Field(None, validation_alias="DB_PASSWORD", description="it must be a password")

    @field_validator("instance")
    @classmethod
    def _is_an_instance(cls, text: str | None) -> str | None:
        if text is not None and not _INSTANCE.fullmatch(text):
            raise ValueError("no instance")
        return text

    def url(self, folder: str = FOLDER) -> str | None:
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
