"""The checks in the intent transaction of every effect, before anything is sent."""

from typing import Final

from payonce.engine import controls
from payonce.engine.controls.quarantine import refuse_in_quarantine

SEND_CHECKS: Final = (refuse_in_quarantine, *controls.CHECKS)
"""One list for the worker and for the crash explorer, so that the explorer tests what runs in production."""
