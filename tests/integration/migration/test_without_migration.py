"""The project without the migration kit: the gateway serves, and the tests of the core pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.without_migration import WING, make_core, run

pytestmark = pytest.mark.slow

QUICK = ("tests/unit/config/test_schema.py", "tests/unit/cli/test_commands.py", "tests/unit/api")
"""What reads the table of extensions."""
SUITES = (
    "tests/extension",
    *(f"tests/unit/{each}" for each in ("app", "cli", "config", "settings")),
)
DEMO = ("--once", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0")


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project without the kit."""
    folder = tmp_path_factory.mktemp("project") / "core"
    make_core(folder)
    return folder


@pytest.mark.timeout(300)
def test_the_gateway_serves(core: Path) -> None:
    """The demo serves every protocol, and a key of the kit is unknown."""
    assert not (core / WING).exists()
    assert 0 == run(core, "-m", "gateway", "demo", *DEMO).returncode
    assert 0 == run(core, "-m", "gateway", "validate", "config/events.yaml").returncode
    recording = core / "recording.yaml"
    recording.write_text("version: 1\nlisteners: [{http: 0}]\ncapture: {directory: d}\n")
    assert 1 == run(core, "-m", "gateway", "validate", str(recording)).returncode


@pytest.mark.timeout(300)
def test_tests_of_the_registry_pass(core: Path) -> None:
    """Schema, commands and the API are those of the core alone."""
    assert 0 == run(core, "-m", "pytest", "-q", "-n", "0", *QUICK).returncode


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_suites_pass(core: Path) -> None:
    """The tests of the kit aside, suites of all that lists keys, commands, pages and metrics pass.

    No other module can know the kit: contracts forbid the import.
    """
    words = ("-q", "-n", "0", "--hypothesis-profile=ci", "-m", "not slow and not gpu")
    assert 0 == run(core, "-m", "pytest", *SUITES, *words).returncode
