"""The choice of unit tests for `make quick`."""

from __future__ import annotations

import pytest

from tests.changed import unit_tests


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (["gateway/routing/balance.py"], ["tests/unit/routing"]),
        (["gateway/protocols/oip/json/parse.py"], ["tests/unit/protocols/oip/json"]),
        (["gateway/registry.py"], ["tests/unit/test_registry.py"]),
        (["tests/unit/ir/test_calls.py", "gateway/ir/calls.py"], ["tests/unit/ir"]),
        (
            ["gateway/protocols/oip/options.py", "gateway/protocols/oip/json/parse.py"],
            ["tests/unit/protocols/oip"],
        ),
        (["README.md", "gateway/config/schema.json", "gateway/upstream_of_nothing.py"], []),
    ],
)
def test_a_changed_file_selects_the_tests_of_its_package(
    changed: list[str], expected: list[str]
) -> None:
    """Tests mirror the packages, and a folder stands for all within it."""
    assert expected == unit_tests(changed)
