"""Open Inference requests whose tensors are on their way: read by their heads, written before them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.ir.calls import InferRequest, StreamInferRequest
from gateway.ir.context import ModelRef
from gateway.ir.data import RawData, StreamedData
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import GatewayError
from gateway.ir.limits import MessageLimits
from gateway.ir.tensor import RequestedOutput, Tensor, streamed_tensor
from gateway.protocols.oip.grpc.codec import GrpcCodec
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.codec import CutThroughCodec
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
    """Return a request of which the JSON has come."""
    text = json.dumps({"inputs": members, **more}).encode()
    headers = Headers((("Inference-Header-Content-Length", str(len(text))),))
    source = FakeArriving(text + binary, len(text))
    return HttpRequest("POST", PATH, "", headers, (memoryview(text),), None, source), source


def waiting(name: str, source: FakeArriving, start: int, size: int) -> Tensor:
    return streamed_tensor(name, Datatype.UINT8, (size,), StreamedData(source, start, size))


def test_codecs_say_what_they_can() -> None:
    """Over HTTP the JSON is enough to begin a call; both carriers may send before all has come."""
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
def test_how_much_is_enough(path: str, length: str | None, expected: int | None) -> None:
    """The JSON of an inference request is; anything else is read whole, and refused as ever."""
    pairs = () if length is None else (("inference-header-content-length", length),)
    assert expected == HTTP.early_bytes(HttpRequest("POST", path, "", Headers(pairs)))


def test_a_head_is_read() -> None:
    """Inputs have their descriptions, and places in what is to come; what is in the JSON is here."""
    plain = {"name": "j", "datatype": "INT32", "shape": [1], "data": [7]}
    wire, source = request(member("a", 3), plain, member("b", 5), id="q", outputs=[{"name": "y"}])
    call = HTTP.decode_early(wire)
    assert isinstance(call, InferRequest)
    assert ("q", ModelRef("m"), (RequestedOutput("y"),)) == (call.id, call.model, call.outputs)
    first, json_data, second = call.inputs
    assert [("a", (3,)), ("b", (5,))] == [(each.name, each.shape) for each in (first, second)]
    assert isinstance(first.data, StreamedData)
    assert isinstance(second.data, StreamedData)
    assert (source, source.start, 3) == (first.data.source, first.data.start, 3)
    assert (source, source.start + 3, 5) == (source, second.data.start, second.data.size_bytes)
    assert 4 == json_data.nbytes


def test_what_is_looked_at_is_read_whole() -> None:
    """A BYTES input among the others needs all bytes; of BOOL any byte is allowed."""
    wire, _ = request(member("a", 3), member("b", 5, "BYTES", shape=[1]))
    assert HTTP.decode_early(wire) is None
    wire, _ = request(member("a", 3), member("b", 5, "BOOL"))
    assert HTTP.decode_early(wire) is not None


@pytest.mark.parametrize(
    ("members", "binary"),
    [
        ([member("a", 9)], b"abcdefgh"),
        ([member("a", 7)], b"abcdefgh"),
        ([member("a", 8, shape=[7])], b"abcdefgh"),
        ([member("a", 8, datatype="FP32")], b"abcdefgh"),
        ([member("a", 8, data=[1])], b"abcdefgh"),
        ([member("a", 4), member("a", 4)], b"abcdefgh"),
        ([member("a", -8)], b"abcdefgh"),
    ],
)
def test_a_wrong_head_is_refused_in_the_same_words(
    members: list[dict[str, Any]], binary: bytes
) -> None:
    """What is wrong with a head is said as it is of the whole request."""
    early, source = request(*members, binary=binary)
    whole = HttpRequest("POST", PATH, "", early.headers, (memoryview(source.body),))
    with pytest.raises(GatewayError) as of_whole:
        HTTP.decode_call(whole)
    with pytest.raises(GatewayError) as of_head:
        HTTP.decode_early(early)
    assert (type(of_whole.value), of_whole.value.message) == (
        type(of_head.value),
        of_head.value.message,
    )


def test_an_http_request_ends_in_what_comes() -> None:
    """With the rest behind it, a request is what it would have been whole."""
    source = FakeArriving(b"{}abcdefgh", 2)
    inputs = (HERE, waiting("a", source, 2, 3), waiting("b", source, 5, 5))
    wire = HTTP.encode_cut_through(InferRequest(model=ModelRef("m"), inputs=inputs, id="q"))
    landed = (
        HERE,
        Tensor("a", Datatype.UINT8, (3,), RawData(memoryview(b"abc"))),
        Tensor("b", Datatype.UINT8, (5,), RawData(memoryview(b"defgh"))),
    )
    whole = HTTP.encode_call(InferRequest(model=ModelRef("m"), inputs=landed, id="q"))
    assert wire is not None
    assert source is wire.body_stream
    assert (whole.path, whole.headers) == (wire.path, wire.headers)
    assert bytes(whole.view) == bytes(wire.view) + source.body[2:]


def test_a_request_of_nothing_else_says_where_its_json_ends() -> None:
    """The header that tells the JSON's length is there although no binary tensor is here yet."""
    source = FakeArriving(b"{}abcdefgh", 2)
    call = InferRequest(model=ModelRef("m"), inputs=(waiting("a", source, 2, 8),))
    wire = HTTP.encode_cut_through(call)
    assert wire is not None
    assert str(len(wire.view)) == wire.headers.get("inference-header-content-length")


@pytest.mark.parametrize("before", [(), (HERE,)])
def test_a_grpc_message_ends_in_what_comes(before: tuple[Tensor, ...]) -> None:
    """With the rest behind it, a message is the one of the whole request."""
    source = FakeArriving(b"{}abcdefgh", 2)
    inputs = (*before, waiting("a", source, 2, 8))
    wire = GRPC.encode_cut_through(InferRequest(model=ModelRef("m"), inputs=inputs))
    assert wire is not None
    assert source is wire.rest
    message = pb.ModelInferRequest.FromString(bytes(wire.view) + source.body[2:])
    assert [b"ab" for _ in before] + [b"abcdefgh"] == list(message.raw_input_contents)
    assert [each.name for each in inputs] == [each.name for each in message.inputs]


def test_each_tensor_of_a_grpc_message_has_its_field() -> None:
    """What stands before the second and third comes between the bytes that arrive."""
    source = FakeArriving(b"{}abcdefgh", 2)
    inputs, at = [HERE], 2
    for name, size in (("a", 3), ("b", 0), ("c", 5), ("d", 0)):
        inputs.append(waiting(name, source, at, size))
        at += size
    wire = GRPC.encode_cut_through(InferRequest(model=ModelRef("m"), inputs=tuple(inputs)))
    assert wire is not None
    assert wire.rest is not None

    class Cup:
        content = b""

        def write(self, piece: memoryview, /) -> None:
            self.content += piece

    expected, cup = wire.rest.remaining_bytes, Cup()
    wire.rest.pipe_to(cup)
    assert expected == len(cup.content)
    message = pb.ModelInferRequest.FromString(bytes(wire.view) + cup.content)
    assert [b"ab", b"abc", b"", b"defgh", b""] == list(message.raw_input_contents)
    assert ["here", "a", "b", "c", "d"] == [each.name for each in message.inputs]


def test_what_cannot_end_a_message_is_written_whole() -> None:
    """Inputs in another order cannot be; MLServer's JSON and streams have other forms."""
    source = FakeArriving(b"{}abcdefgh", 2)
    inputs = (waiting("a", source, 2, 3), waiting("b", source, 5, 5))
    call = InferRequest(model=ModelRef("m"), inputs=inputs)
    assert GRPC.encode_cut_through(call.changed(inputs=inputs[::-1])) is None
    assert HTTP.encode_cut_through(call.changed(inputs=inputs[::-1])) is None
    assert HTTP.encode_cut_through(StreamInferRequest(model=ModelRef("m"), request=call)) is None
    json_only = HttpCodec(LIMITS, {"dialect": "mlserver"})
    assert json_only.encode_cut_through(call) is None
