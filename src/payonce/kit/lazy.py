"""Names that a package exports and imports only when they are used (PEP 562)."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy_names(
    package: str, homes: Mapping[str, str], *, extra: str | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package that exports the names in `homes`: by module, separated by spaces.

    Where a third-party package is missing, the ImportError names `extra`, which installs it.
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def get(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        try:
            found: object = getattr(import_module(home_of[name]), name)
        except ModuleNotFoundError as error:
            if extra is None or (error.name or "").startswith("payonce"):
                raise
            raise ImportError(
                f"{package}.{name} needs the package {error.name}; run: pip install 'payonce[{extra}]'", name=error.name
            ) from error
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return get, names
