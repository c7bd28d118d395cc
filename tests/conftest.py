"""What every test run shares: the long runs wait for --full, and nothing is left out without being named."""

import gc
import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator

import hypothesis
import pytest
import structlog

from payonce.engine.operators import passwords
from payonce.testing import Servers

pytest_plugins = ["payonce.testing.plugin", "pytester"]

CHEAP_COST = 2**4
"""Of a password's hash, whose purpose is to cost a tenth of a second of CPU: in tests nobody guesses."""

# What is collected stays until the end: to look through it for garbage, time and again, took a third of the CPU time of
# collecting and an eighth of that of the tests.
gc.disable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the long chaos runs as well")
    parser.addoption("--pictures", metavar="FOLDER", help="where the browser tests leave the pictures of the documents")


def pytest_configure(config: pytest.Config) -> None:
    # A machine that stands still for a moment is no fault of what is tried. New examples are for the long runs.
    hypothesis.settings.register_profile(
        "house",
        deadline=None,
        derandomize=not config.getoption("--full"),
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("house")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    long_runs = [item for item in items if item.get_closest_marker("full")]
    if long_runs:
        config.hook.pytest_deselected(items=long_runs)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def cost_of_passwords() -> Iterator[int]:
    """What a hash costs outside tests."""
    genuine = passwords.COST
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passwords, "COST", CHEAP_COST)
        yield genuine


@pytest.fixture(scope="session")
def shared_servers() -> Iterator[Servers]:
    """Their databases have the tables of all services. All folders share them: making a server and its template takes a
    second of CPU, and its processes stay for as long as the run."""
    from payonce.app.registry import all_migrations

    running = Servers(all_migrations())
    yield running
    running.close()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    # CI promises the whole suite, so what could not run there is a failure.
    if exitstatus == pytest.ExitCode.OK and in_ci() and skipped(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    by_reason = skipped(config)
    if not by_reason:
        return
    terminalreporter.section("Not run on this machine")
    for reason, tests in sorted(by_reason.items()):
        terminalreporter.line(f"{reason} ({len(tests)})")
        for test in tests:
            terminalreporter.line(f"    {test}")
    if in_ci():
        terminalreporter.line("In CI every test must run: this is a failure.", red=True)


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


def skipped(config: pytest.Config) -> dict[str, list[str]]:
    """The tests and modules that were skipped, by the reason they gave."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    reports: Iterable[pytest.TestReport | pytest.CollectReport] = reporter.stats.get("skipped", []) if reporter else []
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for report in reports:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        by_reason[reason.removeprefix("Skipped: ")].append(report.nodeid)
    return by_reason


@pytest.fixture
def restored_logs() -> Iterator[None]:
    """For tests that run a command in their own process, which sends logs to a stream that is closed afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()
