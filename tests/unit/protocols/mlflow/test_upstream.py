"""The side of a client: what a scoring server gets, and how its responses are read."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import Call, InferRequest, ModelMetadataRequest, ServerReadyRequest
from gateway.ir.context import CallSequence, JsonParameter, ModelRef
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    Unavailable,
    Unsupported,
    UpstreamError,
    UpstreamProtocolError,
)
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, array_tensor, as_numpy, items_tensor
from gateway.ir.values.untyped import RowsForm
from gateway.policies.complete.policy import Complete
from gateway.protocols.mlflow.http.codec import HttpCodec
from gateway.wire.http import Headers, HttpRequest, HttpResponse

JSON = Headers((("Content-Type", "application/json"),))
X = array_tensor("x", np.array([[1, 2]], np.float32))
N = array_tensor("n", np.array([2**63 - 1]))


class Server:
    """A server with one response, and what it was sent."""

    def __init__(
        self,
        body: bytes | str,
        *outputs: TensorMetadata,
        status: int = 200,
        form: RowsForm | None = None,
        **options: Any,
    ) -> None:
        self.codec = HttpCodec(options=options)
        self.sent: list[HttpRequest] = []
        data = body.encode() if isinstance(body, str) else body
        self._response = HttpResponse(status, JSON, (data,))
        declarations = {} if form is None else {"mlflow": form}
        self._metadata = ModelMetadata(name="m", outputs=outputs, declarations=declarations)
        self.service = Complete(self._ask, self.codec.needs)

    async def _ask(self, call: Call[Any], /) -> Any:
        if isinstance(call, ModelMetadataRequest):
            return self._metadata
        self.sent.append(self.codec.encode_call(call))
        return self.codec.decode_reply(call, self._response)

    async def infer(self, *inputs: Any, **more: Any) -> dict[str, Any]:
        reply = await self.service(InferRequest(model=ModelRef("m"), inputs=inputs, **more))
        return {each.name: (each.datatype, as_numpy(each).tolist()) for each in reply.outputs}

    @property
    def document(self) -> Any:
        return json.loads(b"".join(map(bytes, self.sent[0].body)))


def y(datatype: Datatype, *shape: int) -> TensorMetadata:
    return TensorMetadata("y", datatype, shape)


async def test_the_only_input_is_a_value_or_an_object() -> None:
    """A model with a name for it needs the object."""
    body = '{"predictions": [3.5]}'
    server = Server(body, y(Datatype.FP32, -1))
    assert await server.infer(X) == {"y": (Datatype.FP32, [3.5])}
    assert server.document == {"inputs": [[1.0, 2.0]]}
    assert (server.sent[0].method, server.sent[0].path) == ("POST", "/invocations")
    server = Server(body, y(Datatype.FP32, -1), single_input="object")
    await server.infer(X)
    assert server.document == {"inputs": {"x": [[1.0, 2.0]]}}


async def test_a_matrix_of_named_columns_is_a_table() -> None:
    """A server that checks names of columns gets them; another number of columns is refused."""
    server = Server('{"predictions": [3.5]}', y(Datatype.FP32, -1))
    server.codec.declare({"m": RowsForm(is_matrix=True, columns=("rooms", "area"))})
    assert await server.infer(X, parameters={"scale": 2.0}) == {"y": (Datatype.FP32, [3.5])}
    assert server.document == {
        "dataframe_split": {"columns": ["rooms", "area"], "data": [[1.0, 2.0]]},
        "params": {"scale": 2.0},
    }
    wide = array_tensor("x", np.ones((1, 3), np.float32))
    with pytest.raises(InvalidRequest, match=r"shape \[1, 3\]; expected \[-1, 2\]"):
        await server.infer(wide)


async def test_several_inputs_and_parameters_are_objects() -> None:
    """Integers of 64 bits are whole."""
    server = Server('{"predictions": {"y": [1]}}', y(Datatype.INT64, -1))
    parameters = {"scale": 2.0, "name": "a", "list": JsonParameter("[1]")}
    await server.infer(X, N, parameters=parameters)
    assert server.document == {
        "inputs": {"x": [[1.0, 2.0]], "n": [2**63 - 1]},
        "params": {"scale": 2.0, "name": "a", "list": [1]},
    }


AB = (TensorMetadata("a", Datatype.INT64, (-1,)), TensorMetadata("b", Datatype.BYTES, (-1,)))


@pytest.mark.parametrize(
    "body",
    [
        '{"predictions": [{"a": 1, "b": "p"}, {"a": 2, "b": "q"}]}',
        '{"predictions": {"a": [1, 2], "b": ["p", "q"]}}',
    ],
)
async def test_rows_and_columns_are_the_same(body: str) -> None:
    """A server writes objects of rows for a table, and columns for several tensors."""
    server = Server(body, *AB)
    found = await server.infer(X)
    assert found == {"a": (Datatype.INT64, [1, 2]), "b": (Datatype.BYTES, [b"p", b"q"])}
    found = await server.infer(X, outputs=(RequestedOutput("b"),))
    assert list(found) == ["b"]


async def test_words_and_null_are_floats() -> None:
    """NaN and infinities are read as the server writes them."""
    server = Server('{"predictions": [NaN, -Infinity, null, 0.1]}', y(Datatype.FP64, -1))
    (_, values) = (await server.infer(X))["y"]
    assert repr(values) == "[nan, -inf, nan, 0.1]"


async def test_declared_binary_outputs_are_bytes() -> None:
    """They are base64 text in JSON."""
    form = RowsForm(binary=frozenset({"y"}))
    server = Server('{"predictions": ["/wA="]}', y(Datatype.BYTES, -1), form=form)
    assert await server.infer(X) == {"y": (Datatype.BYTES, [b"\xff\x00"])}


async def test_declared_binary_inputs_are_base64_text() -> None:
    """Bytes that are not UTF-8 reach a server only so."""
    server = Server('{"predictions": [1]}', y(Datatype.INT64, -1))
    photo = items_tensor("photo", (1,), [b"\xff\x00"])
    with pytest.raises(GatewayError, match="not UTF-8"):
        await server.infer(photo)
    server.codec.declare({"m": RowsForm(binary=frozenset({"photo"}))})
    await server.infer(photo)
    assert server.document == {"inputs": ["/wA="]}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ('{"predictions": [1.5]}', "predictions[0] is 1.5: expected an integer"),
        ('{"predictions": [[1]]}', "has shape [1, 1]: expected [-1]"),
        ('{"predictions": {"z": [1]}}', "it has output 'z': expected 'y'"),
        ('{"other": 1}', "has no 'predictions'"),
        ("[1]", "expected an object"),
        ('{"predictions": {}}', "an empty object"),
    ],
)
async def test_responses_of_another_form_are_errors_of_the_server(body: str, text: str) -> None:
    """Nothing is guessed, and a client is not blamed."""
    with pytest.raises(GatewayError) as caught:
        await Server(body, y(Datatype.INT64, -1)).infer(X)
    assert text in caught.value.message
    if "predictions[0]" in text:
        assert isinstance(caught.value, UpstreamProtocolError)


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (400, '{"error_code": "BAD_REQUEST", "message": "no"}', InvalidRequest, "no"),
        (400, '{"error_code": "INVALID_PARAMETER_VALUE", "message": "x"}', InvalidRequest, "x"),
        (404, '{"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "m"}', None, "m"),
        (500, "Internal Server Error", UpstreamError, "Internal Server Error"),
        (503, '{"error_code": "TEMPORARILY_UNAVAILABLE", "message": "b"}', Unavailable, "b"),
        (429, '{"error_code": "REQUEST_LIMIT_EXCEEDED", "message": "r"}', Overloaded, "r"),
        (415, "The scoring server only supports UTF-8", InvalidRequest, "UTF-8"),
        (302, "", UpstreamProtocolError, "redirections are not followed"),
    ],
)
async def test_errors_of_the_server(
    status: int, body: str, kind: type[GatewayError] | None, text: str
) -> None:
    """The code is the nearest one, and the text that of the server."""
    with pytest.raises(GatewayError, match=text) as caught:
        await Server(body, y(Datatype.INT64, -1), status=status).infer(X)
    if kind is not None:
        assert isinstance(caught.value, kind)
    assert not isinstance(caught.value, ModelNotFound)


async def test_what_the_protocol_lacks_is_refused() -> None:
    """Sequences, classes and streams cannot be carried."""
    server = Server("", y(Datatype.INT64, -1))
    with pytest.raises(Unsupported, match="no sequences"):
        await server.infer(X, sequence=CallSequence(1))
    with pytest.raises(Unsupported, match="as classes"):
        await server.infer(X, outputs=(RequestedOutput("y", 2),))
    with pytest.raises(GatewayError, match="not UTF-8"):
        await server.infer(items_tensor("x", (1,), [b"\xff"]))


def test_health_is_a_ping() -> None:
    """200 is ready, and anything else is not."""
    codec = HttpCodec()
    wire = codec.encode_call(ServerReadyRequest())
    assert (wire.method, wire.path) == ("GET", "/ping")
    for status, is_ready in ((200, True), (404, False), (503, False)):
        assert codec.decode_reply(ServerReadyRequest(), HttpResponse(status)) is is_ready
