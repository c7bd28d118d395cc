"""Public: what the HTTP routes of services are written with.

It has authentication and scopes (`require`), answers that are stored under an Idempotency-Key (`moves_money`), problem
documents, and the types of common values. A name is imported when it is used.
"""

from typing import TYPE_CHECKING, Final

from payonce.kit.lazy import lazy_names

if TYPE_CHECKING:
    from payonce.http.kit.auth import Caller, require
    from payonce.http.kit.context import AppContext, AppContextDep, Trace
    from payonce.http.kit.idempotency import Once, moves_money, once_for
    from payonce.http.kit.json_bodies import refuse_repeated
    from payonce.http.kit.problems import Problem, not_found, responses
    from payonce.http.kit.values import (
        NO_CONTROLS,
        NUMBER_MAX,
        PAGE_DEFAULT,
        PAGE_MAX,
        Limit,
        Moment,
        Money,
        Name,
        Note,
        Number,
        RequestBody,
    )

_HOMES: Final = {
    "payonce.http.kit.auth": "Caller require",
    "payonce.http.kit.context": "AppContext AppContextDep Trace",
    "payonce.http.kit.idempotency": "Once moves_money once_for",
    "payonce.http.kit.json_bodies": "refuse_repeated",
    "payonce.http.kit.problems": "Problem not_found responses",
    "payonce.http.kit.values": (
        "NO_CONTROLS NUMBER_MAX PAGE_DEFAULT PAGE_MAX RequestBody Limit Moment Money Name Note Number"
    ),
}
"""The public names by the modules that define them; a module is imported when one of its names is used."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "NO_CONTROLS",
    "NUMBER_MAX",
    "PAGE_DEFAULT",
    "PAGE_MAX",
    "AppContext",
    "AppContextDep",
    "Caller",
    "Limit",
    "Moment",
    "Money",
    "Name",
    "Note",
    "Number",
    "Once",
    "Problem",
    "RequestBody",
    "Trace",
    "moves_money",
    "not_found",
    "once_for",
    "refuse_repeated",
    "require",
    "responses",
]
