"""For every test: how many examples properties try, and how often and long others may.

Chosen with `--hypothesis-profile`, or else by the environment variable HYPOTHESIS_PROFILE.
"""

from __future__ import annotations

import gc
import os
import socket
import sys

import pytest
from hypothesis import settings

from gateway import accelerator
from tests.accelerated_parts import use_functions

# No deadlines: a busy machine is not a failure, and pytest's own time limit ends what hangs.
settings.register_profile("dev", max_examples=50, deadline=None)
# Derandomized: the same change always gets the same examples. `make test` uses `ci`, `make slow`
# uses `thorough`, and a nightly run looks for new examples.
settings.register_profile("ci", max_examples=150, deadline=None, derandomize=True)
settings.register_profile("thorough", max_examples=500, deadline=None, derandomize=True)
settings.register_profile("nightly", max_examples=20_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

PROPERTY_TIMEOUT_S = 180.0

# Real sockets, processes and clocks on a machine that others use too: what fails there is tried three
# times more, after a moment, and the summary counts it ("rerun"). What is wrong fails each time.
_ON_THE_CLOCK = (
    "tests/chaos/",
    "tests/conformance/",
    "tests/hostile/",
    "tests/integration/",
    "tests/interop/",
    "tests/matrix/test_sockets",
    "tests/matrix/test_streams",
    "tests/properties/test_costly_messages",
    "tests/properties/test_damage",
    "tests/unit/app/",
    "tests/unit/backends/",
    "tests/unit/benchmarks/",
    "tests/unit/migration/captures/",
    "tests/unit/cli/",
    "tests/unit/concurrency/",
    "tests/unit/cli/demo/",
    "tests/unit/migration/",
    "tests/unit/pipelines/",
    "tests/unit/policies/",
    "tests/unit/protocols/graphpipe/",
    "tests/unit/routing/",
    "tests/unit/telemetry/",
    "tests/unit/test_",
    "tests/unit/transports/",
)
_TRIES_MORE = 3
_BETWEEN_TRIES_S = 1
# Any other test is exact: it is tried again only if it took longer than pytest's time limit.
_OUT_OF_TIME = r"^Failed: Timeout \("
_TRIED_AGAIN = pytest.mark.flaky(reruns=_TRIES_MORE, reruns_delay=_BETWEEN_TRIES_S)
_GIVEN_TIME_AGAIN = pytest.mark.flaky(reruns=1, only_rerun=_OUT_OF_TIME)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let pytest-rerunfailures send at once.

    Its workers report each test in two small messages. Without this, the second one waits 40 ms for
    the acknowledgement of the first.
    """
    connection = getattr(getattr(session.config, "failures_db", None), "sock", None)
    if connection is not None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give properties more time, for they are hundreds of tests in one, and sockets more tries."""
    for item in items:
        if item.get_closest_marker("flaky") is None:
            on_the_clock = any(place in item.nodeid for place in _ON_THE_CLOCK)
            item.add_marker(_TRIED_AGAIN if on_the_clock else _GIVEN_TIME_AGAIN)
        function = getattr(item, "obj", None)
        if hasattr(function, "hypothesis") and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(PROPERTY_TIMEOUT_S))


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
