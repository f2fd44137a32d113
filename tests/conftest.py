"""For every test: how many examples properties try, and how often and long others may.

Chosen with `--hypothesis-profile`, or else by the environment variable HYPOTHESIS_PROFILE.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
import structlog
from hypothesis import settings

from gateway import accelerator
from gateway.registry import EXTENSIONS
from tests.accelerated_parts import use_functions
from tests.collected import CollectedNames, CollectedTests, lasting_objects
from tests.implementation_marks import is_unavailable

# No deadlines: a busy machine is not a failure, and pytest's own time limit ends what hangs.
settings.register_profile("dev", max_examples=50, deadline=None)
# Derandomized: the same change always gets the same examples. `make test` uses `ci`, `make slow`
# uses `thorough`, and a nightly run looks for new examples.
settings.register_profile("ci", max_examples=25, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=500, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=20_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

PROPERTY_TIMEOUT_S = 300.0

MIGRATION: Final = "migration"
"""The wing. Its tests are in folders of this name.

A test elsewhere has a marker of this name if it checks files that describe the wing too, such as
the JSON Schema and the documentation. A tree without the wing, `tests/without_migration.py`, has
neither.
"""
HAS_MIGRATION: Final = MIGRATION in EXTENSIONS
collect_ignore_glob = [] if HAS_MIGRATION else [f"*/{MIGRATION}"]

# Other people's clients and servers, real sockets and clocks on a machine that others use too: what
# fails there is tried again, after a moment, and the summary counts it ("rerun"). All else is exact.
_TRIED_AGAIN = {
    "tests/chaos/": pytest.mark.flaky(reruns=3, reruns_delay=1),
    "tests/interop/": pytest.mark.flaky(reruns=3, reruns_delay=1),
    "tests/conformance/": pytest.mark.flaky(reruns=1, reruns_delay=1),
    "tests/hostile/": pytest.mark.flaky(reruns=1, reruns_delay=1),
    "tests/integration/": pytest.mark.flaky(reruns=1, reruns_delay=1),
    "tests/matrix/test_s": pytest.mark.flaky(reruns=1, reruns_delay=1),
}
_WORDS: Final = {"slow": "mark.slow", "hypothesis": "hypothesis"}
"""What a file with tests of a marker contains: `make slow` collects the files that do."""
MAX_RERUNS: Final = 5
"""A run in which more tries failed has failed, whatever the last tries did."""

_failed_tries: dict[tuple[str, int], str] = {}  # why, by test and number of the try


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count the failed tries, those of all processes."""
    outcome: str = report.outcome
    if outcome == "rerun":  # as pytest-rerunfailures says, for the call and for the teardown
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = "" if crash is None else crash.message.partition("\n")[0]
        _failed_tries[report.nodeid, getattr(report, "rerun", 0)] = reason


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run with more failed tries than `MAX_RERUNS`."""
    if len(_failed_tries) > MAX_RERUNS and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the tests of the failed tries, and why each failed."""
    if len(_failed_tries) > MAX_RERUNS:
        terminalreporter.section(f"{len(_failed_tries)} failed tries, {MAX_RERUNS} are allowed")
    elif _failed_tries:
        terminalreporter.section("failed tries")
    for (name, _), reason in _failed_tries.items():
        terminalreporter.write_line(f"{name}: {reason}")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let pytest-rerunfailures send at once.

    Its workers report each test in two small messages. Without this, the second one waits 40 ms for
    the acknowledgement of the first.
    """
    connection = getattr(getattr(session.config, "failures_db", None), "sock", None)
    if connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let several processes collect once."""
    parser.addoption("--collected", type=Path, help="where the names of the tests are")


def pytest_configure(config: pytest.Config) -> None:
    """Write the names of the tests, or read them in each process of a run."""
    path = config.getoption("collected")
    if path is not None and config.getoption("collectonly"):
        config.pluginmanager.register(CollectedNames(path))
    elif path is not None and hasattr(config, "workerinput"):
        config.pluginmanager.register(CollectedTests(path))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Let the garbage collector pass by what is collected here."""
    with lasting_objects():
        return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give properties more time, for they are hundreds of tests in one, and sockets more tries."""
    if not HAS_MIGRATION:
        _deselect(config, items, lambda item: item.get_closest_marker(MIGRATION) is not None)
    _deselect(config, items, is_unavailable)
    for name, word in _WORDS.items():
        paths = {item.path for item in items if item.get_closest_marker(name) is not None}
        if hidden := [str(path) for path in paths if word not in path.read_text("utf-8")]:
            raise pytest.UsageError(f"{hidden} have {name} tests and not the word {word}")
    for item in items:
        if item.get_closest_marker("flaky") is None:
            tried = (mark for place, mark in _TRIED_AGAIN.items() if place in item.nodeid)
            if (mark := next(tried, None)) is not None:
                item.add_marker(mark)
        function = getattr(item, "obj", None)
        if hasattr(function, "hypothesis") and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PROPERTY_TIMEOUT_S))


def _deselect(
    config: pytest.Config, items: list[pytest.Item], is_out: Callable[[pytest.Item], bool]
) -> None:
    """Leave out the tests that *is_out* names."""
    out = {item for item in items if is_out(item)}
    config.hook.pytest_deselected(items=list(out))
    items[:] = [item for item in items if item not in out]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Close what a failed try of *item* left open, so that it does not count against a test.

    The traceback of that try holds its sockets.
    """
    if getattr(item, "execution_count", 1) == 1:
        return
    reported, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        sys.last_value = sys.last_traceback = None
        gc.collect()
    finally:
        sys.unraisablehook = reported


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Restore the process's logging, which commands and gateways under test configure."""
    root, before = logging.getLogger(), structlog.get_config()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(params=["compiled", "plain Python"])
def build(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with the compiled functions, and once more with their versions in Python."""
    build: str = request.param
    if build == "compiled":
        source = vars(pytest.importorskip(accelerator.EXTENSION, reason="no C compiler"))
    else:
        source = accelerator.PYTHON_VERSIONS
    use_functions(source, monkeypatch)
    return build
