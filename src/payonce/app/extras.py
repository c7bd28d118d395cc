"""The extras that a deployment needs by its settings, named together when some are not installed."""

from collections.abc import Sequence
from importlib.util import find_spec

from payonce.embedded import find_installations
from payonce.embedded.binaries import WHEEL_PACKAGE
from payonce.kit.outcomes import Unavailable
from payonce.settings import Settings


def missing_extras(settings: Settings, roles: Sequence[str]) -> dict[str, str]:
    """By extra, the reason for which a process with these roles needs it."""
    missing = {}
    if settings.embedded and find_spec(WHEEL_PACKAGE) is None and not find_installations():
        missing["embedded"] = "DATABASE_URL is not set, and there is no PostgreSQL of version 15 or newer to start"
    if settings.backend == "redis" and find_spec("redis") is None:
        missing["redis"] = "the queues are in Redis"
    if roles and settings.cloud_tasks_project is not None and find_spec("grpc") is None:
        missing["gcp"] = "Google Cloud Tasks delivers queues"
    return missing


def check_extras(settings: Settings, roles: Sequence[str]) -> None:
    """Raises Unavailable with one command that installs everything that is missing."""
    if missing := missing_extras(settings, roles):
        reasons = "; ".join(f"{extra} is missing, and {reason}" for extra, reason in missing.items())
        instead = ", or set DATABASE_URL" if "embedded" in missing else ""
        raise Unavailable(f"{reasons}; run: pip install 'payonce[{','.join(sorted(missing))}]'{instead}")
