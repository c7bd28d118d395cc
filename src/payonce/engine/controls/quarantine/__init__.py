"""Quarantine: after a restore or a failover nothing is sent until possibly lost effects have been looked for at the
vendors."""

from payonce.engine.controls.quarantine.check import refuse_in_quarantine
from payonce.engine.controls.quarantine.release import Blocker, blockers, release
from payonce.engine.controls.quarantine.state import Quarantine, begin_quarantine, open_quarantine, widen

__all__ = [
    "Blocker",
    "Quarantine",
    "begin_quarantine",
    "blockers",
    "open_quarantine",
    "refuse_in_quarantine",
    "release",
    "widen",
]
