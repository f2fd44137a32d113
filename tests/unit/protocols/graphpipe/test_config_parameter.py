"""The config of a request: forwarded whole, and parsed if it is a JSON object."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.ir.context import Parameters
from gateway.ir.errors import InvalidRequest
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.protocols.graphpipe.config_parameter import ConfigParameter, read_config, write_config


def read(document: Any, limits: MessageLimits = DEFAULT_LIMITS) -> ConfigParameter:
    data = document if isinstance(document, bytes) else orjson.dumps(document)
    return read_config(memoryview(data), limits)


def test_absent_config_has_no_parameter() -> None:
    """An empty config has no parameter, and no parameter is written as an empty config."""
    assert ConfigParameter() == read(b"")
    assert b"" == write_config({})


def test_well_known_keys_are_settings() -> None:
    """Id, priority, timeout and parameters are read from an object, which is kept whole."""
    document = {
        "request_id": "abc",
        "priority": 2,
        "timeout_ms": 1500,
        "parameters": {"a": 1, "b": "x", "c": True, "d": [1]},
        "other": {},
    }
    found = read(document)
    text = orjson.dumps(document).decode()
    assert ("abc", 2, 1.5) == (found.id, found.priority, found.timeout_s)
    assert {"graphpipe_config": text, "a": 1, "b": "x", "c": True} == found.parameters


@pytest.mark.parametrize(
    "document",
    [
        b"debug=1",
        b"{",
        b"[1]",
        b'{"a":' * 2000,
        {"request_id": 5, "priority": -1, "timeout_ms": True, "parameters": [1]},
        {"request_id": "a\n", "priority": 1.5, "timeout_ms": "1"},
        {"request_id": "a" * 2000, "priority": 2**60},
        {"parameters": {"sequence_id": 1, "priority": 2, "triton_x": 1, "graphpipe_config": "x"}},
        {"parameters": dict.fromkeys(map(str, range(100)), 1)},
    ],
)
def test_any_other_form_is_tolerated(document: Any) -> None:
    """A value that is not a valid setting is ignored, and is never an error."""
    found = read(document)
    assert "" == found.id
    assert 0 == found.priority
    assert found.timeout_s is None
    assert {"graphpipe_config"} == set(found.parameters)


def test_a_long_object_is_not_parsed() -> None:
    """JSON is parsed up to its own limit only."""
    assert "" == read({"request_id": "a"}, MessageLimits(json_bytes=5)).id


def test_config_that_is_not_text_is_kept() -> None:
    """A config of any bytes is written as it was read."""
    data = bytes(range(256))
    found = read(data)
    assert {"graphpipe_config_base64"} == set(found.parameters)
    assert data == write_config(found.parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        {"graphpipe_config": 5},
        {"graphpipe_config_base64": True},
        {"graphpipe_config_base64": "not base64!"},
    ],
)
def test_config_parameter_of_another_type_is_rejected(parameters: Parameters) -> None:
    """A client of another protocol may set the parameter, but only to valid text."""
    with pytest.raises(InvalidRequest, match="graphpipe_config"):
        write_config(parameters)
