"""The one outgoing HTTP client, the guard on where it may go, and the seam where simulators plug in."""

from payonce.kit.http.budgeted import Watch, request_within
from payonce.kit.http.client import HttpClient
from payonce.kit.http.failures import (
    AnswerLost,
    BodyTooLarge,
    ConnectionRefused,
    Fault,
    NotPublic,
    TimedOut,
    Unsendable,
)
from payonce.kit.http.inprocess import Application
from payonce.kit.http.response import Response
from payonce.kit.http.target import Target, parse_url
from payonce.kit.http.transport import Resolve

__all__ = [
    "AnswerLost",
    "Application",
    "BodyTooLarge",
    "ConnectionRefused",
    "Fault",
    "HttpClient",
    "NotPublic",
    "Resolve",
    "Response",
    "Target",
    "TimedOut",
    "Unsendable",
    "Watch",
    "parse_url",
    "request_within",
]
