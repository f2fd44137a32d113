"""ModelSpec: options of a model as in YAML, where every scalar is text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.api.model_spec import ModelSpec


def spec(value: Any) -> ModelSpec:
    return ModelSpec(name="m", options={"key": value})


NOTHING = ModelSpec(name="m")


def test_options_are_read_by_type() -> None:
    """Text becomes a value of the option's type; a missing option has its default."""
    assert (7, 3) == (spec("7").integer("key", 1), NOTHING.integer("key", 3))
    assert (True, False, False) == (
        spec("True").flag("key"),
        spec("false").flag("key"),
        NOTHING.flag("key"),
    )
    assert (("a",), ("1", "2"), ()) == (
        spec("a").texts("key"),
        spec([1, "2"]).texts("key"),
        NOTHING.texts("key"),
    )
    assert ({"a": "b"}, {}) == (spec({"a": "b"}).mapping("key"), NOTHING.mapping("key"))


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: spec("x").integer("key", 1), "option 'key' is 'x'; expected a whole number"),
        (lambda: spec("-1").integer("key", 1), "option 'key' is '-1'; expected a whole number"),
        (lambda: spec("0").integer("key", 1), "of at least 1"),
        (lambda: spec("yes").flag("key"), "option 'key' is 'yes'; expected true or false"),
        (lambda: spec("x").mapping("key"), "option 'key' is a str; expected a mapping"),
        (lambda: spec("x").only("a", "b"), "has an unknown option 'key'; expected one of a, b"),
    ],
)
def test_errors_name_the_model_and_the_option(read: Callable[[], object], message: str) -> None:
    """The text also has the expected value."""
    with pytest.raises(ValueError, match=f"model 'm'.*{message}"):
        read()
