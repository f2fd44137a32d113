"""Tests of TensorRT v1's options, and of the tables of its errors."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import InferRequest, ModelMetadataRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import ERROR_CLASSES, ErrorCode
from gateway.protocols.trtis.errors import STATUS, error_class_of, status_of
from gateway.protocols.trtis.options import TrtisOptions, check_options, read_options
from gateway.schema import tensorrt_v1_pb2 as pb


def test_options_are_read() -> None:
    """Options become values; without options, the defaults apply."""
    assert read_options({}) == TrtisOptions()
    options = {"server_id": "me", "version_zero": "latest", "model_control": True}
    assert read_options(options).server_id == "me"
    assert check_options(options) == options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dialect": "x"}, "no option 'dialect': expected one of server_id"),
        ({"server_id": "a b"}, "visible ASCII"),
        ({"server_id": 3}, "visible ASCII"),
        ({"server_version": 1.11}, "in quotes"),
        ({"max_batch_size": 0}, "from 1 to"),
        ({"max_batch_size": True}, "from 1 to"),
        ({"version_zero": "no"}, "one of refuse, latest"),
        ({"model_control": "yes"}, "true or false"),
    ],
)
def test_error_names_the_wrong_option(options: dict[str, Any], text: str) -> None:
    """An unknown key or value is rejected."""
    with pytest.raises(ValueError, match=text):
        check_options(options)


def test_every_error_code_has_a_status() -> None:
    """Each error code has a request status, and none has SUCCESS."""
    assert set(STATUS) == set(ErrorCode)
    assert pb.SUCCESS not in STATUS.values()
    for code, cls in ERROR_CLASSES.items():
        assert status_of(None, cls("text"), 99).code == STATUS[code]


@pytest.mark.parametrize("code", range(12))
def test_every_request_status_maps_to_an_error(code: int) -> None:
    """Each request status, known or not, has an error class for any call."""
    infer = InferRequest(model=ModelRef("m"))
    for call in (infer, ModelMetadataRequest(model=ModelRef("m"))):
        assert error_class_of(call, code).code in ErrorCode


def test_scalars_of_yaml_are_read() -> None:
    """Numbers and flags of a configuration are text."""
    options = {"max_batch_size": "8", "model_control": "true", "repository_index": "false"}
    expected = {"max_batch_size": 8, "model_control": True, "repository_index": False}
    assert expected == check_options(options)
