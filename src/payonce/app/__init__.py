"""The composition root: which services there are, and how a process is assembled from them."""

from collections.abc import Mapping
from typing import Final

ENTRY_POINTS: Final = "payonce.services"
"""The group under which an installed package declares its services: `giftcards = "giftcards:SERVICE"`."""
CHOICE: Final = "PAYONCE_SERVICES"
SERVICE_MODULES: Final = "PAYONCE_SERVICE_MODULES"
"""The variable that names services by their module: `hello:SERVICE`, several with commas."""


def chosen_services(environ: Mapping[str, str]) -> frozenset[str] | None:
    """The names in PAYONCE_SERVICES; None if it is unset, for every service that is installed with its extra."""
    names = frozenset(name.strip() for name in environ.get(CHOICE, "").split(",") if name.strip())
    return names or None
