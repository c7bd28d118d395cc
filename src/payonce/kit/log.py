"""structlog without rich, whose import would take a fifth of a short command's time."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any


def _structlog() -> Any:
    """Imports structlog, which imports rich for tracebacks if it finds it. payonce.app.logging formats tracebacks
    itself, and commands that print tables import rich."""
    if "structlog" in sys.modules or "rich" in sys.modules:
        return import_module("structlog")
    # None in sys.modules makes an import fail.
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        return import_module("structlog")
    finally:
        del sys.modules["rich"]


if TYPE_CHECKING:
    import structlog
else:
    structlog = _structlog()

get_logger = structlog.get_logger

__all__ = ["get_logger", "structlog"]
