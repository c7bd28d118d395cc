"""Public: what the console pages of services are written with.

It has pages and their routes, the visit that a handler receives, decision forms, form fields, links, and bounded reads.
A name is imported when it is used; the extra `console` must be installed by then.
"""

from typing import TYPE_CHECKING, Final

from payonce.kit.lazy import lazy_names

if TYPE_CHECKING:
    from payonce.console.decisions import Confirmation, DecisionForm, decide
    from payonce.console.forms import choice_of, id_of, moment_of, name_of, number_of, reason_of, text_of
    from payonce.console.links import link
    from payonce.console.money import amount_of, asset_of
    from payonce.console.page import Handler, Page, PageRoute, ServicePages, VendorSection, Visit, get, post
    from payonce.console.reads import bounded
    from payonce.engine.operators import Person, Role

_HOMES: Final = {
    "payonce.console.decisions": "Confirmation DecisionForm decide",
    "payonce.console.forms": "choice_of id_of moment_of name_of number_of reason_of text_of",
    "payonce.console.links": "link",
    "payonce.console.money": "amount_of asset_of",
    "payonce.console.page": "Handler Page PageRoute ServicePages VendorSection Visit get post",
    "payonce.console.reads": "bounded",
    "payonce.engine.operators": "Person Role",
}
"""The public names by the modules that define them; a module is imported when one of its names is used."""

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES, extra="console")

__all__ = [
    "Confirmation",
    "DecisionForm",
    "Handler",
    "Page",
    "PageRoute",
    "Person",
    "Role",
    "ServicePages",
    "VendorSection",
    "Visit",
    "amount_of",
    "asset_of",
    "bounded",
    "choice_of",
    "decide",
    "get",
    "id_of",
    "link",
    "moment_of",
    "name_of",
    "number_of",
    "post",
    "reason_of",
    "text_of",
]
