"""The platform knows no service and no vendor by name: adding or removing one touches its folder and the registry."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "payonce"
OWNERS = ("services", "vendors")
"""Each of their folders is one service, or one vendor."""
REGISTRY = "app/registry.py"
REGISTERED = re.compile(r'^    "payonce\.services\.\w+",\n', re.MULTILINE)
HTTP_WORDS = re.compile(r"bad[ _]gateway|gateway[ _]timeout", re.IGNORECASE)


def names() -> list[str]:
    """By their folders, so that a new one is guarded from its first day; `payouts` is named by `payout` as well."""
    folders = [folder for owner in OWNERS for folder in (SOURCE / owner).iterdir() if (folder / "__init__.py").exists()]
    return sorted(folder.name.removesuffix("s") for folder in folders)


def named_in(path: str, text: str) -> list[str]:
    """What a file of the platform names that it must not know, in its path or its text."""
    read = HTTP_WORDS.sub("", f"{path}\n{REGISTERED.sub('', text) if path == REGISTRY else text}").lower()
    return [name for name in names() if name in read]


def platform_files() -> Iterator[Path]:
    """Everything but services, vendors and examples; what vendors share is the platform's."""
    for path in sorted(SOURCE.rglob("*")):
        room, *below = path.relative_to(SOURCE).parts
        owned = room == "examples" or (room in OWNERS and len(below) > 1)
        if path.is_file() and path.suffix != ".pyc" and not owned:
            yield path


def naming() -> dict[str, list[str]]:
    found = {}
    for path in platform_files():
        relative = path.relative_to(SOURCE).as_posix()
        if named := named_in(relative, path.read_text(encoding="utf-8", errors="replace")):
            found[relative] = named
    return found


def test_no_file_of_the_platform_names_a_service_or_a_vendor() -> None:
    assert naming() == {}


def test_the_names_are_those_of_the_folders() -> None:
    assert {"billing", "payout", "changenow", "gateway"} <= set(names())
    assert {"app/registry.py", "service.py", "vendors/books.py"} <= {
        path.relative_to(SOURCE).as_posix() for path in platform_files()
    }


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("engine/x.py", "from payonce.services.billing import SERVICE"),
        ("kit/x.py", '"""Such as a payout."""'),
        ("http/x.py", "class ChangeNowClient: ..."),
        ("vendors/x.py", "GATEWAY_URL"),
        ("console/templates/payouts.html", "<p></p>"),
        ("service.py", '    "payonce.services.billing",\n'),
        (REGISTRY, 'BUILT_IN = (\n    "payonce.services.billing",\n)\nif name == "billing": ...\n'),
    ],
)
def test_a_planted_name_is_found(path: str, text: str) -> None:
    assert named_in(path, text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (REGISTRY, 'BUILT_IN = (\n    "payonce.services.billing",\n    "payonce.services.payouts",\n)\n'),
        ("http/x.py", "HTTPStatus.BAD_GATEWAY, b'bad gateway', HTTPStatus.GATEWAY_TIMEOUT"),
        ("engine/x.py", "transfers, orders and banks"),
    ],
)
def test_what_the_platform_may_say_passes(path: str, text: str) -> None:
    assert named_in(path, text) == []


TREE = frozenset(
    [
        "__init__.py",
        "__main__.py",
        "py.typed",
        "service.py",
        "app",
        "cli",
        "console",
        "embedded",
        "engine",
        "examples",
        "http",
        "kit",
        "queues",
        "services",
        "settings",
        "taskserver",
        "testing",
        "vendors",
    ]
)
ROOMS = frozenset(
    [
        "__init__.py",
        "README.md",
        "settings.py",
        "resources.py",
        "model.py",
        "policies.py",
        "messages.py",
        "messages",
        "handlers",
        "domain",
        "store",
        "effects.py",
        "ledger.py",
        "api",
        "console",
        "schedules.py",
        "metrics.py",
        "invariants.py",
        "invariants",
        "reconciliation.py",
        "scopes.py",
        "decisions.py",
        "decisions",
        "migrations",
        "demo",
        "crash",
        "cli",
    ]
)
SHARED_WIRE = frozenset({"wire.py", "signed_requests.py"})
"""Of a service that is made of two deployables, which are rooms as well."""


def entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name != "__pycache__"}


def test_the_package_has_the_agreed_rooms_and_no_other() -> None:
    assert entries(SOURCE) == TREE


@pytest.mark.parametrize("folder", [path for path in (SOURCE / "services").iterdir() if (path / "README.md").exists()])
def test_a_service_has_only_the_rooms_of_a_service(folder: Path) -> None:
    deployables = {path.name for path in folder.iterdir() if (path / "handlers").is_dir()}
    assert entries(folder) - ROOMS - (deployables | SHARED_WIRE if deployables else set()) == set()
    for part in deployables:
        assert entries(folder / part) - ROOMS - {"pdf"} == set()
