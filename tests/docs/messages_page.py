"""docs/messages.md, made from the contracts that the queues declare.

`.venv/bin/python -m tests.docs.messages_page` writes it anew.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from payonce.engine.messages.contract import Contract, NoPayload, Payload
from payonce.engine.messages.policy import Policy
from payonce.engine.webhooks.delivery_attempt import DELIVERIES
from payonce.examples.tally.policies import CHANGES
from payonce.examples.transfers.policies import QUEUES as TRANSFERS
from payonce.services.billing.policies import QUEUES as BILLING
from payonce.services.payouts.policies import EXTERNAL, FOLLOW, KEEPING
from payonce.services.payouts.policies import QUEUES as PAYOUTS

PAGE: Final = Path(__file__).parents[2] / "docs" / "messages.md"
SECTIONS: Final = {
    "billing": BILLING,
    "payouts": (*PAYOUTS, FOLLOW, EXTERNAL, KEEPING),
    "webhooks": (DELIVERIES,),
    "examples": (CHANGES, *TRANSFERS),
}
MARK: Final = "<!-- From here on the page is made by tests/docs/messages_page.py. -->"


def made() -> str:
    """What stands behind the mark."""
    lines: list[str] = []
    for title, policies in SECTIONS.items():
        lines += ["", f"## {title}"]
        for policy in policies:
            lines += _queue(policy)
    return "\n".join(lines) + "\n"


def page() -> str:
    text = PAGE.read_text()
    head, mark, _ = text.partition(MARK)
    assert mark, f"{PAGE} has lost the line {MARK}"
    return f"{head}{MARK}\n{made()}"


def _queue(policy: Policy) -> Iterator[str]:
    contract = policy.contract
    assert contract is not None, f"{policy.queue} declares no contract"
    yield from ("", f"### `{policy.queue}`", "", "| action | payload |", "|---|---|")
    for action in contract.actions:
        kinds = " or ".join(_linked(kind) for kind in contract.types_of(action))
        yield f"| {f'`{action}`' if action else 'none'} | {kinds} |"
    for kind in _kinds(contract):
        if kind is not NoPayload:
            yield from ("", f"**{kind.__name__}**: {_first_line(kind)}", "", "| field | type | |", "|---|---|---|")
            for field in msgspec.structs.fields(kind):
                needed = "required" if field.required else "optional"
                yield f"| `{field.encode_name}` | {_type(field.type)} | {needed} |"


def _kinds(contract: Contract) -> list[Payload]:
    return list(dict.fromkeys(kind for action in contract.actions for kind in contract.types_of(action)))


def _linked(kind: Payload) -> str:
    return "none: fields are ignored" if kind is NoPayload else f"**{kind.__name__}**"


def _first_line(kind: Payload) -> str:
    return " ".join((kind.__doc__ or "").split())


def _type(kind: Any) -> str:
    parts = [each for each in get_args(kind) if each is not type(None)]
    if parts and type(None) in get_args(kind):
        return f"{_type(parts[0])} or null"
    if parts:
        return f"list of {_type(parts[0])}"
    names = {
        "str": "text",
        "int": "whole number",
        "bool": "true or false",
        "Decimal": "decimal text",
        "datetime": "time with its zone",
    }
    if isinstance(kind, type) and issubclass(kind, str) and kind is not str:
        return "one of " + ", ".join(f"`{each.value}`" for each in kind)  # type: ignore[attr-defined]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        inner = ", ".join(f"`{field.encode_name}` {_type(field.type)}" for field in msgspec.structs.fields(kind))
        return f"object: {inner}"
    return names[kind.__name__]


if __name__ == "__main__":
    PAGE.write_text(page())
