"""What a process says over HTTP: health and metrics for machines, queues and money for those with a key."""

from payonce.web.application import build_web
from payonce.web.server import listening

__all__ = ["build_web", "listening"]
