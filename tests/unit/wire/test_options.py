"""Tests of the readers of protocol options."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gateway.ir.context import ModelRef
from gateway.wire.grpc import MethodKind
from gateway.wire.options import (
    Reader,
    flag,
    list_of,
    mapping_of,
    matching,
    member_of,
    model,
    number,
    one_of,
    optional,
    read_values,
    text,
)

KIND = next(iter(MethodKind))


@pytest.mark.parametrize(
    ("reader", "value", "expected"),
    [
        (text, "a", "a"),
        (flag, "false", False),
        (flag, True, True),
        (number(0, 16), "16", 16),
        (number(0, 16), 0, 0),
        (one_of(503, 409), "409", 409),
        (one_of("a", "b"), "b", "b"),
        (member_of(MethodKind), KIND.value, KIND),
        (matching(re.compile("a+"), "a word"), "aa", "aa"),
        (model, "m", ModelRef("m")),
        (model, "m/2", ModelRef("m", "2")),
        (optional(text), None, None),
        (list_of(flag), ["true"], (True,)),
        (mapping_of(number(1, 2)), {"a": "1"}, {"a": 1}),
    ],
)
def test_values_get_their_type(reader: Reader, value: Any, expected: Any) -> None:
    """Text, as YAML's loader leaves it, and values of the type itself are accepted."""
    found = reader("key", value)
    assert (type(expected), expected) == (type(found), found)


@pytest.mark.parametrize(
    ("reader", "value", "message"),
    [
        (text, 5, "key is 5: expected text"),
        (flag, "yes", "key is 'yes': expected true or false"),
        (flag, 1, "key is 1: expected true or false"),
        (number(0, 16), "17", "key is '17': expected a number from 0 to 16"),
        (number(0, 16), True, "key is True: expected a number from 0 to 16"),
        (number(0, 16), "1" * 5000, "expected a number from 0 to 16"),
        (one_of(503, 409), True, "key is True: expected one of 503, 409"),
        (member_of(MethodKind), ["x"], r"key is \['x'\]: expected one of"),
        (matching(re.compile("a+"), "a word"), "aab", "key is 'aab': expected a word"),
        (model, "/2", "key is '/2': expected a model's name, or name/version"),
        (list_of(flag), "true", "key is 'true': expected a list"),
        (list_of(flag), ["true", "x"], r"key\[1\] is 'x': expected true or false"),
        (mapping_of(text), {1: "a"}, r"key is \{1: 'a'\}: expected a mapping"),
        (mapping_of(text), {"a": 1}, r"key\.a is 1: expected text"),
    ],
)
def test_error_names_the_wrong_value(reader: Reader, value: Any, message: str) -> None:
    """The error has the key, the value and the expected values."""
    with pytest.raises(ValueError, match=message):
        reader("key", value)


def test_unknown_keys_are_rejected() -> None:
    """The error lists the existing keys; a prefix precedes the keys of a nested option."""
    readers = {"a": flag, "b": text}
    assert {"a": True} == read_values("oip", readers, {"a": "true"})
    with pytest.raises(ValueError, match="oip has no option 'c': expected one of a, b"):
        read_values("oip", readers, {"c": 1})
    with pytest.raises(ValueError, match=r"x\.a is 1: expected true or false"):
        read_values("x", readers, {"a": 1}, "x.")
