"""Which routes and targets of migrations are rejected."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.app.check.check import check
from gateway.app.run.gateway import Gateway
from gateway.cli.validation.config_warnings import warnings
from gateway.config.load import ConfigError, load_text
from gateway.migration.options import captures_of
from gateway.migration.targets import live_migrations

PLAIN = """version: 1
listeners: [{http: 8000}]
upstreams: {up: {url: "http://other:8000"}}
"""
GOOD = """version: 1
listeners: [{http: 127.0.0.1:0}]
state: {directory: state}
upstreams:
  legacy: {url: "trtis+http://10.0.0.5:8000"}
  triton: {url: "oip+grpc://10.0.0.6:8001"}
  again: {url: "trtis+http://10.0.0.5:8000"}
routes:
  - name: fraud
    targets:
      - {upstream: legacy}
      - {upstream: triton, model: fraud-v2, weight: 0}
      - {upstream: again, weight: 0}
  - {name: other, match: {model: x}, targets: [{upstream: legacy}]}
migrations:
  offline: {compare: {default: exact}}
  fraud:
    route: fraud
    old: legacy
    new: triton/fraud-v2
    mirror: {sequences: whole}
    cutover: {steps: [5, 100], approve: [100]}
"""


def test_migration_targets_are_found_by_their_log_names() -> None:
    """Weight 0 is valid, and a migration without a route is for offline use."""
    loaded = load_text(GOOD)
    assert [] == check(loaded)
    (found,) = live_migrations(loaded.config)
    assert ("fraud", "fraud") == (found.name, found.route)
    assert ("legacy", "triton/fraud-v2") == (found.old_name, found.new_name)
    assert (1, 0) == (found.old.weight, found.new.weight)


async def test_a_gateway_builds_a_new_target_of_weight_0() -> None:
    """The route serves the old target until a cut-over changes the weights."""
    gateway = Gateway(load_text(GOOD))
    await gateway.stop(0, 0)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("route: fraud", "route: frod", 18, "unknown route 'frod'; routes with targets are fraud"),
        ("old: legacy", "old: old", 19, "unknown target 'old': route 'fraud' has legacy, triton"),
        ("new: triton/fraud-v2", "new: triton", 20, "unknown target 'triton': route 'fraud' has"),
        ("model: fraud-v2, weight: 0", "model: fraud-v2", 20, "has weight 1; expected 0"),
        ("state: {directory: state}", "", 22, "needs 'state: {directory: DIR}'"),
        (
            "    route: fraud\n    old: legacy\n    new: triton/fraud-v2\n    mirror: {sequences: whole}",
            "    route: fraud\n    old: legacy\n    new: again",
            20,
            "'old' and 'new' are the same model at trtis+http://10.0.0.5:8000",
        ),
        (
            "10.0.0.6:8001",
            "10.0.0.5:8000",
            21,
            "'whole' needs two servers, and 'old' and 'new' are both at 10.0.0.5:8000",
        ),
        (
            "mirror: {sequences: whole}",
            "capture: {headers: [Authorization]}",
            21,
            "headers: 'authorization' may contain a credential",
        ),
        (
            "mirror: {sequences: whole}",
            "capture: {wire: true}",
            21,
            "wire: payload is 'none'; expected 'full'",
        ),
        (
            "  offline: {",
            "  first: {route: fraud, old: legacy, new: triton/fraud-v2, ",
            18,
            "already",
        ),
    ],
)
def test_migrations_with_invalid_targets_are_rejected(
    old: str, new: str, line: int, message: str
) -> None:
    """Each problem has its line and the expected values."""
    text = GOOD.replace(old, new)
    assert text != GOOD
    (problem,) = check(load_text(text))
    assert line == problem.position[0]
    assert message in problem.message


def test_captures_need_separate_directories() -> None:
    """Two captures in one directory are rejected, as is a capture without a directory."""
    text = GOOD.replace("mirror: {sequences: whole}", "capture: {directory: a}").replace(
        "  offline:", "  other: {route: other, old: legacy, capture: {directory: a}}\n  offline:"
    )
    (problem,) = check(load_text(f"{text}capture: {{directory: b}}\n"))
    assert "directory 'a' is already that of migrations.other.capture" in problem.message
    (problem,) = check(load_text(text.replace("a}}", "b}}") + "capture: {directory: a}\n"))
    assert "directory 'a' is already that of capture" in problem.message
    text = GOOD.replace("mirror: {sequences: whole}", "capture: {}")
    assert [] == check(load_text(text))
    text = text.replace("    cutover: {steps: [5, 100], approve: [100]}\n", "")
    (problem,) = check(load_text(text.replace("state: {directory: state}", "")))
    assert "needs 'directory', or 'state: {directory: DIR}'" in problem.message


def test_files_of_a_capture_stay_in_the_state_directory() -> None:
    """Names of migrations are escaped, so that none leads outside it."""
    for name, expected in (("fraud", "fraud"), ("..", "%2E."), ("a/b", "a%2Fb")):
        loaded = load_text(
            GOOD.replace("  fraud:", f'  "{name}":').replace(
                "mirror: {sequences: whole}", "capture: {}"
            ),
            directory=Path("/etc"),
        )
        (options,) = captures_of(loaded).values()
        assert Path("/etc/state/captures", expected) == options.directory
        assert ("fraud", name) == (options.route, options.draw_key)


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("[5, 100]", "[5, 50]", 22, "the steps are 5, 50; expected percentages above 0 that rise"),
        ("[5, 100]", "[50, 5, 100]", 22, "expected percentages above 0 that rise to 100"),
        ("[5, 100]", "[0, 100]", 22, "expected percentages above 0 that rise to 100"),
        ("[5, 100]", "[]", 22, "the steps are none"),
        ("approve: [100]", "approve: [50]", 22, "'approve' has 50, which is none of the steps"),
        ("old: legacy", "old: triton/fraud-v2", 18, "are the same target 'triton/fraud-v2'"),
        ("    old: legacy\n", "", 18, "needs 'old' and 'new', two of its targets"),
        ("    new: triton/fraud-v2\n", "    capture: {}\n", 18, "'cutover' needs 'new'"),
        ("    route: fraud\n", "    capture: {}\n", 18, "'capture' needs 'route'"),
        ("    route: fraud\n", "", 18, "'mirror' needs 'route', whose calls are compared"),
        ("approve: [100]", "sticky: address", 22, "found 'address'"),
    ],
)
def test_inconsistent_migrations_are_rejected(old: str, new: str, line: int, message: str) -> None:
    """The problem is found at load, with its line."""
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    with pytest.raises(ConfigError) as found:
        load_text(text)
    (problem,) = found.value.problems
    assert line == problem.position[0]
    assert message in problem.message


def test_a_cutover_without_a_guard_of_errors_has_a_warning() -> None:
    """Without the key, a guard stands by default."""
    plan = "migrations: {m: {cutover: {guards: {%s}}}}\n"
    assert [] == warnings(load_text(PLAIN + plan % "mismatch: {below: 1%}"))
    (found,) = warnings(load_text(PLAIN + plan % "errors: off"))
    assert "no guard watches errors" in found.message


@pytest.mark.parametrize(
    "text", ["cutover: {guards: {mismatch: off}}", "cutover: {}, compare: {default: ignore}"]
)
def test_a_cutover_without_a_guard_of_replies_has_a_warning(text: str) -> None:
    """It is off by name, or no output is compared; by default a guard stands."""
    assert [] == warnings(load_text(PLAIN + "migrations: {m: {cutover: {}}}\n"))
    (found,) = warnings(load_text(PLAIN + "migrations: {m: {" + text + "}}\n"))
    assert "no guard watches replies" in found.message
