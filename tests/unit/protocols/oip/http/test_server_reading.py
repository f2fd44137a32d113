"""Requests over HTTP that only some servers read: read as these do, and written for them."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import JsonParameter, ModelRef
from gateway.ir.errors import InvalidRequest, MalformedMessage, Unsupported
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import array_tensor, as_numpy, as_raw
from gateway.protocols.oip.grpc.codec import GrpcCodec
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.wire.http import HttpRequest
from tests.cases.oip_http import M, answer, get, post

LISTENER = HttpCodec(DEFAULT_LIMITS, {})
SERVERS = {
    name: HttpCodec(DEFAULT_LIMITS, {"dialect": name}) for name in ("mlserver", "kserve", "triton")
}
NULL, NUMBERS, WORD = (
    '"FP32","data":[1.5,null]',
    '"INT64","data":[1.0,1e3]',
    '"FP64","data":[1,NaN]',
)
HALF, FLAGS, TEXT = '"FP16","data":[1.5,2]', '"BOOL","data":[1,0]', '"BYTES","data":["a",null]'
VARIABLE, OBJECT = '"INT8","data":[[1,2]]', '"FP32","data":[1,2]'


def request(tensor: str, shape: str = "[2]", parameters: str = "{}") -> HttpRequest:
    """Return a request of one input, in which JSON may have any form."""
    text = f'{{"parameters":{parameters},"inputs":[{{"name":"x","shape":{shape},"datatype":{tensor}}}]}}'
    return HttpRequest("POST", "/v2/models/m/infer", body=(memoryview(text.encode()),))


CASES = {
    "null": request(NULL),
    "numbers": request(NUMBERS),
    "words": request(WORD),
    "half": request(HALF),
    "flags": request(FLAGS),
    "text": request(TEXT),
    "shape": request(VARIABLE, "[-1]"),
    "object": request(OBJECT, parameters='{"extra":{"a":[1,null]}}'),
    "list": request(OBJECT, parameters='{"l":[1,2]}'),
    "reserved": request(OBJECT, parameters='{"priority":"high","triton_x":1,"sequence_id":-1}'),
    "parameter": request(OBJECT, parameters='{"t":NaN,"low":-Infinity}'),
}
READ = {
    "mlserver": set(CASES) - {"words", "parameter"},
    "kserve": set(CASES) - {"half", "object", "list"},
    "triton": {"words", "parameter"},
    LISTENER.most_lenient: set(CASES),
    "gateway": set(),
    "ovms": set(),
    "": set(),
}


@pytest.mark.parametrize("dialect", READ)
@pytest.mark.parametrize("case", CASES)
def test_a_request_is_read_where_its_server_reads_it(case: str, dialect: str) -> None:
    """The codec refuses each of them by itself, and reads what a server of the dialect does."""
    wire = CASES[case]
    with pytest.raises(InvalidRequest):
        LISTENER.decode_call(wire)
    assert ModelRef("m") == LISTENER.inferred_model(wire)
    try:
        found = LISTENER.decode_for_server(wire, dialect, "id-1")
    except InvalidRequest:
        found = None
    assert (found is not None) is (case in READ[dialect])
    if found is not None:
        assert "id-1" == found.context.request_id


def test_other_requests_have_no_inferred_model() -> None:
    """Only inferences are read again."""
    assert LISTENER.inferred_model(get("/v2/models/m/ready")) is None
    assert LISTENER.inferred_model(get("/v3")) is None


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("NaN", math.nan),
        ("-NaN", math.nan),
        ("Inf", math.inf),
        ("-Inf", -math.inf),
        ("Infinity", math.inf),
        ("-Infinity", -math.inf),
        ("nan", None),
        ("1e400", None),
    ],
)
def test_words_are_those_of_triton(word: str, expected: float | None) -> None:
    """RapidJSON reads these words, and no number that is too large for a double."""
    wire = request(f'"FP32","data":[1,{word}],"other":"Inf -NaN \\" Inf"')
    if expected is None:
        with pytest.raises(MalformedMessage):
            LISTENER.decode_for_server(wire, "triton")
        return
    call = LISTENER.decode_for_server(wire, "triton")
    assert isinstance(call, InferRequest)
    np.testing.assert_array_equal([1, expected], as_numpy(call.inputs[0]))


def test_generate_reads_words_for_triton() -> None:
    """A flat member, or one of a list, may be a word."""
    wire = HttpRequest(
        "POST", "/v2/models/m/generate_stream", body=(memoryview(b'{"x":NaN,"y":[1,-Inf]}'),)
    )
    call = LISTENER.decode_for_server(wire, "triton")
    assert isinstance(call, StreamInferRequest)
    members = call.request.flat_members
    assert math.isnan(members["x"])  # type: ignore[arg-type]
    assert (1, -math.inf) == members["y"]


def sent(case: str, dialect: str) -> dict[str, Any]:
    """Return the JSON that a server gets for the request of a case."""
    call = LISTENER.decode_for_server(CASES[case], dialect)
    assert call is not None
    wire = SERVERS[dialect].encode_call(call)
    length = wire.headers.get("inference-header-content-length")
    found: dict[str, Any] = json.loads(bytes(wire.view)[: None if length is None else int(length)])
    return found


@pytest.mark.parametrize(
    ("case", "dialect", "data"),
    [
        ("null", "mlserver", [1.5, None]),
        ("numbers", "mlserver", [1, 1000]),
        ("half", "mlserver", [1.5, 2.0]),
        ("flags", "mlserver", [True, False]),
        ("text", "mlserver", ["a", None]),
        # Elements that are no strings have no binary form.
        ("text", "kserve", ["a", None]),
    ],
)
def test_servers_get_the_elements(case: str, dialect: str, data: list[Any]) -> None:
    """NaN is `null` again, and so is an element of BYTES."""
    assert data == sent(case, dialect)["inputs"][0]["data"]


LIST = {"l": [1]}


@pytest.mark.parametrize(
    ("case", "parameters"),
    [
        ("object", {"extra": {"a": [1, None]}}),
        ("list", {"l": [1, 2]}),
        ("reserved", {"priority": "high", "triton_x": 1, "sequence_id": -1}),
    ],
)
def test_mlserver_gets_the_parameters(case: str, parameters: dict[str, Any]) -> None:
    """Lists and objects are JSON again, and keys with the names of Triton's are the model's."""
    assert parameters == sent(case, "mlserver")["parameters"]


@pytest.mark.parametrize("dialect", ["kserve", "triton"])
def test_parameters_that_are_words_are_words_again(dialect: str) -> None:
    """They were 501, although the server that they were read for reads them."""
    found = sent("parameter", dialect)["parameters"]
    assert math.isnan(found["t"])
    assert -math.inf == found["low"]


@pytest.mark.parametrize(
    ("datatype", "data", "shape"),
    [("FP32", bytes(24), (2, 3)), ("BYTES", b"\1\0\0\0a\0\0\0\0" * 2, (2, 2))],
)
def test_binary_elements_fill_a_dimension(
    datatype: str, data: bytes, shape: tuple[int, ...]
) -> None:
    """Those of BYTES, whose sizes differ, are counted."""
    size = {"binary_data_size": len(data)}
    tensor = {"name": "x", "datatype": datatype, "shape": [2, -1], "parameters": size}
    call = LISTENER.decode_for_server(post({"inputs": [tensor]}, data), "kserve")
    assert isinstance(call, InferRequest)
    assert shape == call.inputs[0].shape


def test_mlserver_gets_nonfinite_values_of_a_binary_input() -> None:
    """NaN towards MLServer was 501; numpy reads `null` as NaN, and the text of an infinity."""
    values = np.array([1, math.nan, math.inf, -math.inf], "<f4")
    call = InferRequest(model=M, inputs=(array_tensor("x", values),))
    document = json.loads(bytes(SERVERS["mlserver"].encode_call(call).view))
    assert [1.0, None, "Infinity", "-Infinity"] == document["inputs"][0]["data"]


REPLY = {
    "model_name": "m",
    "parameters": {"extra": {"a": [1]}},
    "outputs": [
        {"name": "t", "datatype": "BYTES", "shape": [3], "data": ["a", None, 5]},
        {"name": "h", "datatype": "FP16", "shape": [2], "data": [1.5, None], "parameters": LIST},
    ],
}


def replied(dialect: str) -> InferResponse:
    codec = HttpCodec(DEFAULT_LIMITS, {"dialect": dialect})
    return codec.decode_reply(InferRequest(model=M), answer(REPLY))


JSON_CALL: Any = LISTENER.decode_call(post({"inputs": []}))


def test_a_client_gets_what_mlserver_sends() -> None:
    """`null` in BYTES, FP16 as numbers, and objects in parameters reach a client of JSON."""
    wire = LISTENER.encode_reply(JSON_CALL, replied("mlserver"))
    assert REPLY == json.loads(bytes(wire.view))
    # Triton refuses FP16 in JSON, and so it is refused for its models.
    with pytest.raises(Unsupported, match="output 'h' is FP16"):
        LISTENER.encode_reply(JSON_CALL, replied("ovms"))


@pytest.mark.parametrize("dialect", ["kserve", "mlserver"])
def test_infinities_are_null_where_the_server_writes_null(dialect: str) -> None:
    """KServe and MLServer write `null` for infinities; binary outputs have them."""
    grpc, call = GrpcCodec(DEFAULT_LIMITS, {"dialect": dialect}), InferRequest(model=M)
    infinite = InferResponse(model=M, outputs=(array_tensor("y", np.array([math.inf], "<f4")),))
    reply = grpc.decode_reply(call, grpc.encode_reply(call, infinite))
    wire = LISTENER.encode_reply(JSON_CALL, reply)
    assert [None] == json.loads(bytes(wire.view))["outputs"][0]["data"]


def test_elements_without_a_wire_form_are_refused_by_name() -> None:
    """Only JSON carries `null` in BYTES; every other form refuses it with its index."""
    call = LISTENER.decode_for_server(CASES["text"], "mlserver")
    assert isinstance(call, InferRequest)
    with pytest.raises(Unsupported, match=r"'x' has null at index 1: expected a string"):
        as_raw(call.inputs[0])
    for codec in (
        GrpcCodec(DEFAULT_LIMITS, {"dialect": "mlserver"}),
        HttpCodec(DEFAULT_LIMITS, {"dialect": "triton"}),
    ):
        with pytest.raises(Unsupported, match=r"'x' has null at index 1"):
            codec.encode_call(call)


def test_objects_in_parameters_are_refused_by_name() -> None:
    """No field of gRPC has them, and Triton refuses them."""
    call = InferRequest(
        model=M,
        inputs=(array_tensor("x", np.zeros(1, "<f4"), Datatype.FP32),),
        parameters={"extra": JsonParameter("{}")},
    )
    for codec in (
        GrpcCodec(DEFAULT_LIMITS, {"dialect": "mlserver"}),
        HttpCodec(DEFAULT_LIMITS, {"dialect": "triton"}),
        HttpCodec(DEFAULT_LIMITS, {"dialect": "kserve"}),
    ):
        with pytest.raises(Unsupported, match="'extra' of the request is a list or an object"):
            codec.encode_call(call)
