"""Repeated messages of rows are read by their templates, with the same results and errors."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ir.calls import InferRequest
from gateway.ir.errors import GatewayError, TooLarge
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.tensors.data import UntypedData
from gateway.protocols.mlflow.http.codec import HttpCodec as MlflowCodec
from gateway.protocols.tfs.http.codec import HttpCodec
from gateway.wire.http import Headers, HttpRequest
from tests.accelerated_parts import damaged

PREDICT = "/v1/models/m:predict"
REPEATED = [
    b'{"instances": [1, 2.5]}',
    b'{"instances":[[1,2],[3,4]]}',
    b'{"instances": [{"a": [1, 2], "b": [[0.5]]}]}',
    b'{"instances":[{"a":[1],"b":[2]},{"a":[3],"b":[4]}],"signature_name":"serving_default"}',
    b'{"inputs": {"a": [1, 2], "b.c": [[-1e-5], [2E3]]}}',
    b'{"inputs": [[[1]]]}',
]
OTHERS = [
    b'{"instances": [{"a": 1}]}',
    b'{"instances": ["[1]", "[2]"]}',
    b'{"instances": [[1], ["a"]]}',
    b'{"instances": [1], "other": [2]}',
    b'{"instances": [1]} [2]',
    b'{"inputs": 1}',
    b'{"inputs": []}',
    b'{"instances":\n[1,\n2]}',
]


def decoded(codec: HttpCodec | MlflowCodec, body: bytes, path: str = PREDICT) -> Any:
    """Return the inputs and the parameters of a request, or its error."""
    wire = HttpRequest("POST", path, "", Headers((("content-type", "application/json"),)), (body,))
    try:
        call = codec.decode_call(wire)
    except GatewayError as error:
        return type(error), error.message
    assert isinstance(call, InferRequest)
    return call.inputs, dict(call.parameters)


def has_texts(found: Any) -> bool:
    return all(
        isinstance(each.data, UntypedData) and type(each.data.value) is bytes for each in found[0]
    )


@pytest.mark.parametrize("body", REPEATED, ids=bytes.decode)
def test_a_repeated_message_is_read_by_its_template(body: bytes) -> None:
    """The third one has texts for values, and is equal to the first."""
    codec = HttpCodec()
    first, _, third = [decoded(codec, body) for _ in range(3)]
    assert (False, True) == (has_texts(first), has_texts(third))
    assert first == third


@pytest.mark.parametrize("body", OTHERS, ids=bytes.decode)
def test_what_no_template_describes_is_read_completely(body: bytes) -> None:
    """It never has texts for values, and is the same each time."""
    codec = HttpCodec()
    first, _, third = [decoded(codec, body) for _ in range(3)]
    assert first == third
    assert not has_texts(third)


@pytest.mark.parametrize("body", REPEATED, ids=bytes.decode)
@given(random=st.randoms(use_true_random=False))
def test_a_message_like_a_template_has_the_same_result(body: bytes, random: Random) -> None:
    """Values and errors are those of a codec that has read no message before."""
    codec = HttpCodec()
    for _ in range(3):
        decoded(codec, body)
    for _ in range(10):
        other = damaged(random, body.replace(b"1", b"7"), b'"[]{}:, 01eE.-')
        assert decoded(HttpCodec(), other) == decoded(codec, other)


@pytest.mark.parametrize("limit", ["elements", "dim"])
def test_limits_apply_to_messages_with_a_template(limit: str) -> None:
    """A longer list than the one of the template is refused."""
    codec = HttpCodec(MessageLimits(**{limit: 3}))
    for _ in range(3):
        decoded(codec, b'{"instances": [{"a": [1]}, {"a": [2]}]}')
    kind, text = decoded(codec, b'{"instances": [{"a": [1, 1, 1, 1]}, {"a": [2, 2, 2, 2]}]}')
    assert kind is TooLarge
    assert "'a'" in text


def test_parameters_belong_to_requests_of_vertex_ai_alone() -> None:
    """The same body has them on the route of Vertex AI, and not on that of TensorFlow."""
    codec = HttpCodec(DEFAULT_LIMITS, {"vertex": {}})
    body = b'{"instances": [1], "parameters": {"k": 2}}'
    found = [decoded(codec, body, path)[1] for path in (PREDICT, "/predict") * 4]
    assert [{}, {"k": 2}] * 4 == found


def test_the_data_of_an_event_are_no_template() -> None:
    """Rows beside the data of an event are not those of the request."""
    codec = HttpCodec(DEFAULT_LIMITS, {"dialect": "kserve"})
    body = (
        b'{"specversion": "1.0", "id": "1", "source": "s", "type": "t", "time": "now", '
        b'"data": {"instances": ["a"]}, "instances": [1]}'
    )
    found = [decoded(codec, body) for _ in range(4)]
    assert ["a"] == found[3][0][0].data.value
    assert found[0] == found[3]


def test_parameters_of_mlflow_are_part_of_the_template() -> None:
    """Other parameters are another message."""
    codec = MlflowCodec()
    text = b'{"inputs": {"a": [1, 2]}, "params": {"scale": %d}}'
    found = [decoded(codec, text % scale, "/invocations") for scale in (1, 1, 1, 2, 2, 2)]
    assert [1, 1, 1, 2, 2, 2] == [parameters["scale"] for _, parameters in found]
    assert has_texts(found[2])
    assert has_texts(found[5])
