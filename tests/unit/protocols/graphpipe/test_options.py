"""GraphPipe's options and error table."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gateway.api.protocol import Codec
from gateway.ir.context import ModelRef, Need
from gateway.ir.errors import ERROR_CLASSES, ErrorCode
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.protocols.graphpipe import SPEC
from gateway.protocols.graphpipe.errors import STATUS
from gateway.protocols.graphpipe.options import GraphPipeOptions, read_options
from gateway.wire.errors import error_class_of_http

# Codes that share a status are read as the neighbour.
NEIGHBOURS = {
    ErrorCode.QUOTA_EXCEEDED: ErrorCode.OVERLOADED,
    ErrorCode.NOT_READY: ErrorCode.UNAVAILABLE,
    ErrorCode.INTERNAL: ErrorCode.UPSTREAM,
    ErrorCode.CANCELLED: ErrorCode.BAD_UPSTREAM,
}


def test_options_become_settings() -> None:
    """Every option is converted to its type."""
    options = {
        "default_model": "m/2",
        "errors": "status",
        "lenient_names": True,
        "path": "/x",
        "config": "c",
        "inputs": ["a"],
        "outputs": ["b", "c"],
        "drop_outputs": 1,
        "health": "control",
    }
    expected = GraphPipeOptions(
        default_model=ModelRef("m", "2"),
        errors="status",
        lenient_names=True,
        path="/x",
        config="c",
        inputs=("a",),
        outputs=("b", "c"),
        drop_outputs=1,
        health="control",
    )
    assert expected == read_options(options)
    assert options == SPEC.options(options)
    # As YAML has them: the loader keeps every scalar as the text it is written in.
    assert expected == read_options({**options, "lenient_names": "true", "drop_outputs": "1"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("default_model", ""),
        ("default_model", "/2"),
        ("default_model", 5),
        ("errors", "both"),
        ("lenient_names", "yes"),
        ("lenient_names", "1"),
        ("drop_outputs", "one"),
        ("drop_outputs", "17"),
        ("path", "x"),
        ("path", "/x?y"),
        ("path", "/é"),
        ("path", "/x\r\nHost: y"),
        ("config", 5),
        ("inputs", "a"),
        ("inputs", ["a", "a"]),
        ("outputs", [""]),
        ("drop_outputs", -1),
        ("drop_outputs", True),
        ("drop_outputs", 17),
        ("health", "ping"),
    ],
)
def test_error_for_an_invalid_value_has_its_key_and_the_value(key: str, value: Any) -> None:
    """The error for an invalid value contains the key and the value."""
    with pytest.raises(ValueError, match=f"^{re.escape(f'{key} is {value!r}: expected ')}"):
        SPEC.options({key: value})


def test_error_for_an_invalid_entry_has_its_place() -> None:
    """It is the position in a list; for an unknown key, the known ones are listed."""
    with pytest.raises(ValueError, match=r"^outputs\[1\] is 1: expected text"):
        SPEC.options({"outputs": ["a", 1]})
    with pytest.raises(ValueError, match="no option 'colour': expected one of default_model, "):
        SPEC.options({"colour": "red"})


def test_the_protocol_has_two_codecs() -> None:
    """Both codecs are built from limits and options, and have their own names."""
    assert SPEC.http is not None
    assert SPEC.stream is not None
    codecs: list[Codec[Any, Any]] = [
        SPEC.http.codec(DEFAULT_LIMITS, {}),
        SPEC.stream.codec(DEFAULT_LIMITS, {}),
    ]
    assert ["graphpipe.http", "graphpipe.stream"] == [codec.name for codec in codecs]
    assert codecs[0].needs == codecs[1].needs
    assert Need.OUTPUTS in codecs[0].needs
    assert Need.OUTPUTS not in SPEC.http.codec(DEFAULT_LIMITS, {"outputs": ["y"]}).needs
    assert ("/graphpipe",) == SPEC.http.prefixes


@pytest.mark.parametrize("code", list(ErrorCode))
def test_every_error_code_has_a_matching_status(code: ErrorCode) -> None:
    """The table is complete; each status is read as its code or as the code's neighbour."""
    assert ERROR_CLASSES[NEIGHBOURS.get(code, code)] is error_class_of_http(STATUS[code])
