"""Options, error tables and metadata of grps."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.context import Need
from gateway.ir.errors import (
    ErrorCode,
    GatewayError,
    InvalidRequest,
    MalformedMessage,
    ModelNotFound,
    TooLarge,
)
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.protocols.grps.datatypes import BY_DATATYPE, widened_datatype
from gateway.protocols.grps.errors import (
    BRPC_CODE,
    STATUS_CODE,
    error_class_of_brpc,
    error_class_of_status,
)
from gateway.protocols.grps.grpc import GrpcCodec
from gateway.protocols.grps.metadata import read_model, read_models
from gateway.protocols.grps.options import check_options
from gateway.wire.errors import GRPC_STATUS, error_class_of_grpc
from gateway.wire.grpc import GrpcStatus

# A table has one number for several codes: the first that a client would think of.
NEIGHBOURS = {
    ErrorCode.NOT_READY: ErrorCode.UNAVAILABLE,
    ErrorCode.CANCELLED: ErrorCode.BAD_UPSTREAM,
    ErrorCode.OVERLOADED: ErrorCode.UNAVAILABLE,
    ErrorCode.QUOTA_EXCEEDED: ErrorCode.OVERLOADED,
    ErrorCode.INTERNAL: ErrorCode.UPSTREAM,
}


@pytest.mark.parametrize("code", ErrorCode)
def test_every_error_code_is_encoded_and_decoded(code: ErrorCode) -> None:
    """Each table is total, and a Status decodes to the code or its neighbour."""
    assert True is (code in GRPC_STATUS and code in BRPC_CODE)
    found = error_class_of_status(STATUS_CODE[code], "text").code
    assert NEIGHBOURS.get(code, code) is found


def test_every_grpc_and_brpc_code_maps_to_an_error() -> None:
    """Unknown codes of brpc are errors, too."""
    grpc = [error_class_of_grpc(status) for status in GrpcStatus if status is not GrpcStatus.OK]
    brpc = [error_class_of_brpc(code) for code in (*BRPC_CODE.values(), 1009, 99999, -5)]
    assert all(issubclass(kind, GatewayError) for kind in (*grpc, *brpc))


@pytest.mark.parametrize("datatype", Datatype)
def test_every_datatype_has_a_wire_datatype(datatype: Datatype) -> None:
    """It is the same or the next wider one."""
    assert widened_datatype(datatype) in BY_DATATYPE


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"nope": 1}, "no option 'nope'"),
        ({"default_model": ""}, "expected a model's name"),
        ({"default_model": 1}, "expected a model's name"),
        ({"models": {"k": ""}}, "models.k"),
        ({"keys": ["a"]}, "expected a mapping"),
        ({"http_always_200": "yes"}, "true or false"),
        ({"readiness": "maybe"}, "one of ready, live"),
        ({"input_form": "blob"}, "input_form is 'blob': expected one of bin_data, str_data"),
        ({"compress": "lz4"}, "one of none, snappy, gzip, zlib"),
        ({"streaming": {"mode": "x"}}, "one of query_param"),
        ({"streaming": {"key": "a\nb"}}, "printable ASCII"),
        ({"streaming": {"way": "x"}}, "no option 'way'"),
        ({"streaming": "yes"}, "expected a mapping"),
        ({"customized": {}}, "expected a list"),
        ({"customized": [{"path": "/a"}, {"path": "/a"}]}, "a path twice"),
    ],
)
def test_error_names_the_wrong_option(options: dict[str, Any], text: str) -> None:
    """An unknown key or value fails at start."""
    with pytest.raises(ValueError, match=text):
        check_options(options)


def test_widened_replies_are_restored_with_any_option() -> None:
    """A server responds with the datatypes of grps, whatever `widen` does to requests."""
    needs = [GrpcCodec(DEFAULT_LIMITS, {"widen": widen}).needs for widen in (False, True)]
    assert [True, True] == [Need.WIDENED in need for need in needs]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", ModelNotFound),
        ("- a", MalformedMessage),
        ("a: &x 1\nb: *x", MalformedMessage),
        ("a: [" * 40, TooLarge),
        ("a: [", MalformedMessage),
        ("a: \x00", MalformedMessage),
        ("[a]: b", MalformedMessage),
        ("{[]: 1}: 2", MalformedMessage),
        ("x" * ((1 << 20) + 1), TooLarge),
        ("inputs: [{dtype: DT_INT8}]", MalformedMessage),
        ("inputs: [{name: a, shape: [x]}]", MalformedMessage),
        ("inputs: [{name: a, shape: [-2]}]", MalformedMessage),
        ('inputs: [{name: "a\\x07"}]', InvalidRequest),
    ],
)
def test_invalid_model_metadata_is_rejected(text: str, error: type[GatewayError]) -> None:
    """Aliases, depth, size and invalid members of the YAML are rejected."""
    with pytest.raises(error):
        read_model(text, "m", DEFAULT_LIMITS)


def test_tags_of_yaml_create_no_objects() -> None:
    """A tag that would create an object has no effect."""
    found = read_model("version: !!python/object/apply:os.getpid []", "m", DEFAULT_LIMITS)
    assert () == found.versions


@pytest.mark.parametrize("text", ["a: b", "models: 1", "models: [1]", "models: [{version: 1}]"])
def test_an_index_needs_models_with_names(text: str) -> None:
    """An index without a list of them is malformed."""
    with pytest.raises(MalformedMessage):
        read_models(text, DEFAULT_LIMITS)


def test_unknown_datatype_is_not_guessed() -> None:
    """A signature may omit a datatype."""
    found = read_model("inputs: [{name: a, dtype: DT_NEW}]", "m", DEFAULT_LIMITS)
    assert ModelMetadata(name="m", inputs=(TensorMetadata("a", None, None),)) == found
