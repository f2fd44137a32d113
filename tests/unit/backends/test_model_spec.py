"""Plans: options of a model as they stand in YAML, where every scalar is text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gateway.backends.model_spec import ModelSpec


def plan(value: Any) -> ModelSpec:
    return ModelSpec(name="m", options={"key": value})


NOTHING = ModelSpec(name="m")


def test_options_are_read_by_type() -> None:
    """Text becomes what the option is; what is left out has its default."""
    assert (7, 3) == (plan("7").integer("key", 1), NOTHING.integer("key", 3))
    assert (True, False, False) == (
        plan("True").flag("key"),
        plan("false").flag("key"),
        NOTHING.flag("key"),
    )
    assert (("a",), ("1", "2"), ()) == (
        plan("a").texts("key"),
        plan([1, "2"]).texts("key"),
        NOTHING.texts("key"),
    )
    assert ({"a": "b"}, {}) == (plan({"a": "b"}).mapping("key"), NOTHING.mapping("key"))


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: plan("x").integer("key", 1), "option 'key' is 'x'; expected a whole number"),
        (lambda: plan("-1").integer("key", 1), "option 'key' is '-1'; expected a whole number"),
        (lambda: plan("0").integer("key", 1), "of at least 1"),
        (lambda: plan("yes").flag("key"), "option 'key' is 'yes'; expected true or false"),
        (lambda: plan("x").mapping("key"), "option 'key' is a str; expected a mapping"),
        (lambda: plan("x").only("a", "b"), "has an unknown option 'key'; expected one of a, b"),
    ],
)
def test_mistakes_name_model_and_option(read: Callable[[], object], message: str) -> None:
    """Each mistake names the model, the option and what is needed."""
    with pytest.raises(ValueError, match=f"model 'm'.*{message}"):
        read()
