"""structlog, loaded without rich: a command that only looks would spend a fifth of its time on it."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any


def _structlog() -> Any:
    """structlog takes rich along wherever it finds it, to draw tracebacks. Ours are drawn in payonce.app.logging, and
    rich is loaded by those who print a table."""
    if "structlog" in sys.modules or "rich" in sys.modules:
        return import_module("structlog")
    # By the rules of import, None in this place means that there is no such module.
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
