"""Cut-through of Open Inference requests: decoding of their JSON, encoding before the data arrive."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.api.protocol import CutThroughCodec
from gateway.ir.calls import InferRequest, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError
from gateway.ir.limits import MessageLimits
from gateway.ir.tensors.data import RawData, StreamedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, as_numpy, streamed_tensor
from gateway.protocols.oip.grpc.codec import GrpcCodec
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.grpc import GrpcRequest
from gateway.wire.http import Headers, HttpRequest
from tests.fakes import FakeArriving

LIMITS = MessageLimits()
HTTP = HttpCodec(LIMITS, {"dialect": "triton"})
GRPC = GrpcCodec(LIMITS, {"dialect": "triton"})
PATH = "/v2/models/m/infer"
HERE = Tensor("here", Datatype.UINT8, (2,), RawData(memoryview(b"ab")))


def member(name: str, size: int, datatype: str = "UINT8", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "datatype": datatype,
        "shape": [size],
        "parameters": {"binary_data_size": size},
        **more,
    }


def request(
    *members: dict[str, Any], binary: bytes = b"abcdefgh", **more: Any
) -> tuple[HttpRequest, FakeArriving]:
    """Return a request of which the JSON has arrived, and its streaming body."""
    text = json.dumps({"inputs": members, **more}).encode()
    headers = Headers((("Inference-Header-Content-Length", str(len(text))),))
    source = FakeArriving(text + binary, len(text))
    return HttpRequest("POST", PATH, "", headers, (memoryview(text),), None, source), source


def waiting(name: str, source: FakeArriving, start: int, size: int) -> Tensor:
    return streamed_tensor(name, Datatype.UINT8, (size,), StreamedData(source, start, size))


def test_codecs_support_cut_through() -> None:
    """Both codecs send before all data arrive; only HTTP decodes a call from its JSON alone."""
    assert isinstance(HTTP, CutThroughCodec)
    assert isinstance(GRPC, CutThroughCodec)
    wire = GrpcRequest("/inference.GRPCInferenceService/ModelInfer", (b"",))
    assert (None, None) == (GRPC.early_bytes(wire), GRPC.decode_early(wire))


@pytest.mark.parametrize(
    ("path", "length", "expected"),
    [
        (PATH, "17", 17),
        ("/v2/models/m/versions/3/infer", "17", 17),
        (PATH, None, None),
        (PATH, "0", None),
        (PATH, "-1", None),
        (PATH, "x", None),
        ("/v2/models/m/infer_stream", "17", None),
        ("/v2/models/m", "17", None),
        ("/v2/nowhere", "17", None),
    ],
)
def test_early_bytes_are_the_json_of_an_inference_request(
    path: str, length: str | None, expected: int | None
) -> None:
    """Other requests, and those with an invalid length header, are read whole."""
    pairs = () if length is None else (("inference-header-content-length", length),)
    assert expected == HTTP.early_bytes(HttpRequest("POST", path, "", Headers(pairs)))


def test_early_call_has_streamed_inputs() -> None:
    """Binary inputs are ranges of the streaming body; JSON inputs have their data."""
    plain = {"name": "j", "datatype": "INT32", "shape": [1], "data": [7]}
    wire, source = request(member("a", 3), plain, member("b", 5), id="q", outputs=[{"name": "y"}])
    call = HTTP.decode_early(wire)
    assert isinstance(call, InferRequest)
    assert ("q", ModelRef("m"), (RequestedOutput("y"),)) == (call.id, call.model, call.outputs)
    first, json_data, second = call.inputs
    assert [("a", (3,)), ("b", (5,))] == [(each.name, each.shape) for each in (first, second)]
    assert isinstance(first.data, StreamedData)
    assert isinstance(second.data, StreamedData)
    assert [(source, source.start, 3), (source, source.start + 3, 5)] == [
        (data.source, data.start, data.size_bytes) for data in (first.data, second.data)
    ]
    assert ("j", [7]) == (json_data.name, as_numpy(json_data).tolist())


def test_bytes_input_prevents_early_decoding() -> None:
    """A BYTES input needs all bytes of the request; a BOOL input may have any byte."""
    wire, _ = request(member("a", 3), member("b", 5, "BYTES", shape=[1]))
    assert HTTP.decode_early(wire) is None
    wire, _ = request(member("a", 3), member("b", 5, "BOOL"))
    assert HTTP.decode_early(wire) is not None


@pytest.mark.parametrize(
    "members",
    [
        [member("a", 9)],
        [member("a", 7)],
        [member("a", 8, shape=[7])],
        [member("a", 8, datatype="FP32")],
        [member("a", 8, data=[1])],
        [member("a", 4), member("a", 4)],
        [member("a", -8)],
    ],
)
def test_early_decoding_raises_the_error_of_the_whole_request(
    members: list[dict[str, Any]],
) -> None:
    """An invalid request raises the same error when it is decoded early as when it is complete."""
    early, source = request(*members)
    whole = HttpRequest("POST", PATH, "", early.headers, (memoryview(source.body),))
    with pytest.raises(GatewayError) as of_whole:
        HTTP.decode_call(whole)
    with pytest.raises(GatewayError) as of_head:
        HTTP.decode_early(early)
    assert type(of_whole.value) is type(of_head.value)
    assert of_whole.value.message == of_head.value.message


def test_streamed_http_request_equals_the_whole_one() -> None:
    """The encoded request followed by the streaming body equals the whole request."""
    source = FakeArriving(b"{}abcdefgh", 2)
    inputs = (HERE, waiting("a", source, 2, 3), waiting("b", source, 5, 5))
    wire = HTTP.encode_cut_through(InferRequest(model=ModelRef("m"), inputs=inputs, id="q"))
    complete = (
        HERE,
        Tensor("a", Datatype.UINT8, (3,), RawData(memoryview(b"abc"))),
        Tensor("b", Datatype.UINT8, (5,), RawData(memoryview(b"defgh"))),
    )
    whole = HTTP.encode_call(InferRequest(model=ModelRef("m"), inputs=complete, id="q"))
    assert wire is not None
    assert source is wire.body_stream
    assert (whole.path, whole.headers) == (wire.path, wire.headers)
    assert bytes(whole.view) == bytes(wire.view) + source.body[2:]


def test_request_of_streamed_inputs_has_the_length_header() -> None:
    """The length header is sent although no binary tensor has arrived."""
    source = FakeArriving(b"{}abcdefgh", 2)
    call = InferRequest(model=ModelRef("m"), inputs=(waiting("a", source, 2, 8),))
    wire = HTTP.encode_cut_through(call)
    assert wire is not None
    assert str(len(wire.view)) == wire.headers.get("inference-header-content-length")


@pytest.mark.parametrize("before", [(), (HERE,)])
def test_streamed_grpc_message_is_complete(before: tuple[Tensor, ...]) -> None:
    """The encoded message followed by the streaming body is a message with all inputs."""
    source = FakeArriving(b"{}abcdefgh", 2)
    inputs = (*before, waiting("a", source, 2, 8))
    wire = GRPC.encode_cut_through(InferRequest(model=ModelRef("m"), inputs=inputs))
    assert wire is not None
    assert source is wire.rest
    message = pb.ModelInferRequest.FromString(bytes(wire.view) + source.body[2:])
    assert [b"ab" for _ in before] + [b"abcdefgh"] == list(message.raw_input_contents)


def test_each_streamed_tensor_of_a_grpc_message_has_its_field() -> None:
    """The field keys of the later tensors are inserted into the streaming body."""
    source = FakeArriving(b"{}abcdefgh", 2)
    inputs, at = [HERE], 2
    for name, size in (("a", 3), ("b", 0), ("c", 5), ("d", 0)):
        inputs.append(waiting(name, source, at, size))
        at += size
    wire = GRPC.encode_cut_through(InferRequest(model=ModelRef("m"), inputs=tuple(inputs)))
    assert wire is not None
    assert wire.rest is not None

    class Sink:
        content = b""

        def write(self, piece: memoryview, /) -> None:
            self.content += piece

    expected, sink = wire.rest.remaining_bytes, Sink()
    wire.rest.pipe_to(sink)
    assert expected == len(sink.content)
    message = pb.ModelInferRequest.FromString(bytes(wire.view) + sink.content)
    assert [b"ab", b"abc", b"", b"defgh", b""] == list(message.raw_input_contents)
    assert ["here", "a", "b", "c", "d"] == [each.name for each in message.inputs]


def test_calls_unfit_for_cut_through_return_none() -> None:
    """Inputs in another order, streams and MLServer's JSON have no cut-through form."""
    source = FakeArriving(b"{}abcdefgh", 2)
    inputs = (waiting("a", source, 2, 3), waiting("b", source, 5, 5))
    call = InferRequest(model=ModelRef("m"), inputs=inputs)
    assert GRPC.encode_cut_through(call.changed(inputs=inputs[::-1])) is None
    assert HTTP.encode_cut_through(call.changed(inputs=inputs[::-1])) is None
    assert HTTP.encode_cut_through(StreamInferRequest(model=ModelRef("m"), request=call)) is None
    json_only = HttpCodec(LIMITS, {"dialect": "mlserver"})
    assert json_only.encode_cut_through(call) is None
