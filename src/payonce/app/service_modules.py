"""Services named by their module, such as `hello:SERVICE`, for development without an installed package."""

import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Final

from payonce.app import SERVICE_MODULES
from payonce.kit.outcomes import Invalid

_NAME: Final = re.compile(r"(?P<module>\w+(\.\w+)*):(?P<attribute>\w+)")


def named_modules() -> list[str]:
    """What PAYONCE_SERVICE_MODULES names."""
    return [name.strip() for name in os.environ.get(SERVICE_MODULES, "").split(",") if name.strip()]


def name_modules(given: Sequence[str]) -> None:
    """Adds to PAYONCE_SERVICE_MODULES, which child processes inherit. Call it before the registry is imported."""
    for name in given:
        _parsed(name)
    if given:
        os.environ[SERVICE_MODULES] = ",".join(dict.fromkeys([*named_modules(), *given]))


def load_named() -> Iterator[tuple[str, object]]:
    """Each name with the object that it names. Modules of the current folder come before installed ones."""
    names = named_modules()
    if names and (folder := os.getcwd()) not in sys.path:
        sys.path.insert(0, folder)
    for name in names:
        yield name, _loaded(name)


def _loaded(name: str) -> object:
    module, attribute = _parsed(name)
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        raise Invalid(
            f"the service {name} cannot be loaded: no module {error.name} is in {os.getcwd()} or installed"
        ) from None
    if not hasattr(found, attribute):
        raise Invalid(f"the service {name} cannot be loaded: {found.__file__} has no {attribute}")
    return getattr(found, attribute)


def _parsed(name: str) -> tuple[str, str]:
    if (match := _NAME.fullmatch(name)) is None:
        raise Invalid(f"the service {name[:60]!r} is not of the form MODULE:NAME; write for example hello:SERVICE")
    return match["module"], match["attribute"]
