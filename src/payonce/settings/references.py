"""Settings that name a secret instead of being one: projects/…/secrets/…/versions/… is read from Secret Manager.

| variable | meaning | unset |
|---|---|---|
| SECRET_MANAGER_ENDPOINT | a Secret Manager without TLS on this machine | Google's |
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from payonce.kit.outcomes import Invalid, Unavailable

if TYPE_CHECKING:
    from google.cloud.secretmanager_v1 import SecretManagerServiceClient

ANSWER_LIMIT_S: Final = 10.0
"""Of one question to Secret Manager, and of all tries together: a role that cannot read its keys does not start."""
ENDPOINT_VARIABLE: Final = "SECRET_MANAGER_ENDPOINT"

_REFERENCE: Final = re.compile(r"projects/[\w.:-]+/secrets/[\w-]{1,255}/versions/(?:latest|[\w-]{1,63})", re.ASCII)
_ALMOST: Final = re.compile(r"projects/.*/?secrets/?")
_ON_THIS_MACHINE: Final = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\]):\d{1,5}", re.ASCII)

_ACCESS: Final = "grant its account the role roles/secretmanager.secretAccessor"


def resolved(environ: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """The variables of these names that are set, without trailing white space, references replaced by what they
    name. An empty variable is an unset one."""
    found = {name: text for name in names if (text := environ.get(name, "").rstrip())}
    references = {name: text for name, text in found.items() if is_reference(name, text)}
    if not references:
        return found
    known: dict[str, str] = {}
    with _reader(environ.get(ENDPOINT_VARIABLE, "").strip()) as read:
        for name, reference in references.items():
            if reference not in known:
                known[reference] = _value(name, reference, read)
    return found | {name: known[reference] for name, reference in references.items()}


def is_reference(name: str, text: str) -> bool:
    """Raises Invalid for what was meant as one and is none."""
    if _REFERENCE.fullmatch(text):
        return True
    if _ALMOST.match(text):
        # Taken as it is, it would be a key that everybody can guess.
        raise Invalid(f"{name} is {text!r}; a secret is named projects/PROJECT/secrets/NAME/versions/VERSION")
    return False


@contextmanager
def _reader(endpoint: str) -> Iterator[Callable[[str], bytes]]:
    try:
        # Not at the top: who names no secret needs neither the extra nor the second that it takes to load.
        from google.api_core.retry import Retry
        from google.auth.exceptions import GoogleAuthError
    except ModuleNotFoundError as missing:
        raise Unavailable(
            "secrets are read from Secret Manager with the extra gcp: pip install 'payonce[gcp]', or "
            "set the values themselves"
        ) from missing
    try:
        client = _client(endpoint)
    except GoogleAuthError:
        raise Unavailable(
            "settings name secrets, and there are no Google credentials to read them with; run as a service account, "
            "or set the values themselves"
        ) from None

    def read(reference: str) -> bytes:
        answer = client.access_secret_version(
            request={"name": reference}, timeout=ANSWER_LIMIT_S, retry=Retry(timeout=ANSWER_LIMIT_S)
        )
        data: bytes = answer.payload.data
        return data

    with client:
        yield read


def _client(endpoint: str) -> "SecretManagerServiceClient":
    from google.cloud.secretmanager_v1 import SecretManagerServiceClient

    if not endpoint:
        return SecretManagerServiceClient()
    if not _ON_THIS_MACHINE.fullmatch(endpoint):
        raise Invalid(f"{ENDPOINT_VARIABLE} is {endpoint!r}; it must be host:port on this machine: it has no TLS")
    import grpc
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.secretmanager_v1.services.secret_manager_service.transports import (
        SecretManagerServiceGrpcTransport,
    )

    channel: Any = grpc.insecure_channel(endpoint)
    transport = SecretManagerServiceGrpcTransport(channel=channel, credentials=AnonymousCredentials())
    return SecretManagerServiceClient(transport=transport)


def _value(name: str, reference: str, read: Callable[[str], bytes]) -> str:
    """Says the variable and what it names, and never what is inside."""
    from google.api_core import exceptions as google

    named = f"{name} names {reference}"
    try:
        text = read(reference).decode().rstrip()
    except UnicodeDecodeError:
        raise Invalid(f"{named}, which is not text; store it as UTF-8") from None
    except google.NotFound:
        raise Invalid(f"{named}, which Secret Manager does not have; make it with `gcloud secrets create`") from None
    except (google.PermissionDenied, google.Unauthenticated):
        raise Invalid(f"{named}, which this process may not read; {_ACCESS}") from None
    except google.FailedPrecondition:
        raise Invalid(f"{named}, which is disabled or destroyed; add a version, or name another") from None
    except google.InvalidArgument:
        raise Invalid(f"{named}, which Secret Manager refuses as a name; name a secret's version") from None
    except (google.GoogleAPICallError, google.RetryError):
        raise Unavailable(f"{named}, and Secret Manager does not answer; try again, or set the value itself") from None
    if not text:
        raise Invalid(f"{named}, which is empty; add a version with a value")
    return text
