"""The golden GraphPipe messages: valid ones are decoded as their index states, others do no harm.

The files were recorded from the Python client 1.0.4, the Go reference client, a JavaScript client
and a C++ builder; `index.json` says which made what.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import Call, InferRequest, InferResponse, ModelMetadataRequest, rewritten
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError, InvalidRequest, ModelNotFound
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, as_items, as_numpy, as_raw
from gateway.protocols.graphpipe.config_parameter import write_config
from gateway.protocols.graphpipe.http import HttpCodec
from gateway.wire.http import Headers, HttpRequest, HttpResponse
from tests.cases import graphpipe_oracle as oracle
from tests.scheduling import within_processor_s

GOLDEN = Path(__file__).parents[3] / "golden" / "graphpipe"
ENTRIES: list[dict[str, Any]] = json.loads((GOLDEN / "index.json").read_text())["entries"]
VALID = [entry for entry in ENTRIES if entry["category"] == "request"]
REJECTED = {"err_name_count", "err_duplicate_names"}
INFER = [entry for entry in VALID if entry["kind"] == "infer" and entry["name"] not in REJECTED]
METADATA = [entry for entry in VALID if entry["kind"] == "metadata"]
MALFORMED = [entry for entry in ENTRIES if entry["category"] == "malformed"]
CODEC = HttpCodec(DEFAULT_LIMITS, {})
# A hostile message is rejected, or read, in far less.
MOST_S = 0.5


def name_of(entry: dict[str, Any]) -> str:
    return str(entry["name"])


def request_of(entry: dict[str, Any]) -> HttpRequest:
    http = entry.get("http", {"method": "POST", "path": "/graphpipe/simple", "headers": {}})
    body = (GOLDEN / entry["request"]["file"]).read_bytes()
    headers = Headers(tuple(http["headers"].items()))
    return HttpRequest(http["method"], http["path"], "", headers, (memoryview(body),))


def response_of(entry: dict[str, Any]) -> HttpResponse:
    body = (GOLDEN / entry["response"]["file"]).read_bytes()
    return HttpResponse(entry["response_status"], body=(memoryview(body),))


def infer_call(entry: dict[str, Any]) -> InferRequest:
    call = CODEC.decode_call(request_of(entry))
    assert isinstance(call, InferRequest)
    return call


def join_body(message: HttpRequest | HttpResponse) -> bytes:
    return b"".join(message.body)


def plain_value(value: Any) -> Any:
    if isinstance(value, dict):
        return float(value["float"]) if "float" in value else bytes.fromhex(value["hex"])
    return value


def values_of(tensor: Tensor) -> list[Any]:
    if tensor.datatype is Datatype.BYTES:
        return [bytes(item) for item in as_items(tensor)]
    found: list[Any] = as_numpy(tensor).reshape(-1).tolist()
    return found


def check_tensor(expected: dict[str, Any], tensor: Tensor) -> None:
    assert expected["datatype"] == (tensor.datatype and tensor.datatype.value)
    assert tuple(expected["shape"]) == tensor.shape
    values = [plain_value(value) for value in expected["values"]]
    if tensor.datatype is not None and tensor.datatype.is_float:
        np.testing.assert_array_equal(np.array(values), np.array(values_of(tensor)))
    else:
        assert values == values_of(tensor)


def check_same(left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> None:
    assert [(t.name, t.datatype, t.shape) for t in left] == [
        (t.name, t.datatype, t.shape) for t in right
    ]
    assert left == right


def test_number_of_recorded_messages() -> None:
    """The tests below run over all recorded messages."""
    assert (54, 85, 48, 4) == (len(VALID), len(MALFORMED), len(INFER), len(METADATA))


@pytest.mark.parametrize("entry", INFER, ids=name_of)
def test_request_matches_its_index(entry: dict[str, Any]) -> None:
    """Model, config, names and tensors of a recorded request are those that were sent."""
    call = infer_call(entry)
    assert ModelRef(entry["http"]["path"].rpartition("/")[2]) == call.model
    assert entry["config"].encode() == write_config(call.parameters)
    assert (entry["input_names"] or [""] * len(entry["inputs"])) == [t.name for t in call.inputs]
    names = entry["output_names"]
    assert ([] if "" in names else names) == [output.name for output in call.outputs]
    for expected, tensor in zip(entry["inputs"], call.inputs, strict=True):
        check_tensor(expected, tensor)


@pytest.mark.parametrize("entry", INFER, ids=name_of)
def test_reencoded_request_reads_the_same(entry: dict[str, Any]) -> None:
    """An encoded copy of a recorded request reads the same by flatc's classes and by the codec."""
    call = infer_call(entry)
    again = CODEC.encode_call(rewritten(call))
    sent = oracle.read_request(join_body(request_of(entry)))
    found = oracle.read_request(join_body(again))
    assert sent is not None
    assert found is not None
    assert (sent.config, sent.tensors) == (found.config, found.tensors)
    assert tuple(n for n in sent.input_names if n) == found.input_names
    assert tuple("" if "" in sent.output_names else n for n in sent.output_names if n) == (
        found.output_names
    )
    read = CODEC.decode_call(HttpRequest("POST", again.path, body=(join_body(again),)))
    assert isinstance(read, InferRequest)
    check_same(call.inputs, read.inputs)


@pytest.mark.parametrize("entry", INFER, ids=name_of)
def test_inputs_are_views_of_the_body(entry: dict[str, Any]) -> None:
    """Decoding does not copy any tensor."""
    wire = request_of(entry)
    call = CODEC.decode_call(wire)
    assert isinstance(call, InferRequest)
    body = np.frombuffer(wire.view, np.uint8)
    for tensor in call.inputs:
        is_text = tensor.datatype is Datatype.BYTES
        for part in as_items(tensor) if is_text else [as_raw(tensor)]:
            assert not part or np.shares_memory(body, np.frombuffer(part, np.uint8))


@pytest.mark.parametrize("entry", [entry for entry in INFER if entry.get("outputs")], ids=name_of)
def test_response_matches_its_index(entry: dict[str, Any]) -> None:
    """A recorded response has the outputs of its index, and reads the same when encoded again."""
    call = infer_call(entry)
    reply: InferResponse = CODEC.decode_reply(call, response_of(entry))
    names = [output.name for output in call.outputs]
    assert (names or [""] * len(entry["outputs"])) == [tensor.name for tensor in reply.outputs]
    for expected, tensor in zip(entry["outputs"], reply.outputs, strict=True):
        check_tensor(expected, tensor)
    again = CODEC.encode_reply(call, reply)
    assert oracle.read_response(join_body(response_of(entry))) == oracle.read_response(
        join_body(again)
    )
    assert oracle.has_both_vectors(join_body(again))


@pytest.mark.parametrize("entry", [entry for entry in INFER if entry["errors"]], ids=name_of)
def test_recorded_error_is_raised(entry: dict[str, Any]) -> None:
    """An error in a response of status 200 is raised with its text, and forwarded unchanged."""
    call = infer_call(entry)
    with pytest.raises(GatewayError) as raised:
        CODEC.decode_reply(call, response_of(entry))
    expected = entry["errors"][0]
    kind = ModelNotFound if expected["code"] == 404 else InvalidRequest
    assert (kind, expected["message"]) == (type(raised.value), raised.value.message)
    again = CODEC.encode_error(call, raised.value)
    errors = oracle.read_response(join_body(again))[1]
    assert ((expected["code"], expected["message"]),) == errors


@pytest.mark.parametrize("name", sorted(REJECTED))
def test_input_names_that_do_not_fit_are_rejected(name: str) -> None:
    """Fewer names than tensors, or a duplicate name, raise InvalidRequest."""
    entry = next(entry for entry in VALID if entry["name"] == name)
    with pytest.raises(InvalidRequest):
        CODEC.decode_call(request_of(entry))


@pytest.mark.parametrize("entry", METADATA, ids=name_of)
def test_metadata_request_is_read(entry: dict[str, Any]) -> None:
    """A recorded metadata request is decoded to a call about the model in its path."""
    call = CODEC.decode_call(request_of(entry))
    assert ModelMetadataRequest is type(call)
    assert ModelRef(entry["http"]["path"].rpartition("/")[2]) == call.model


@pytest.mark.parametrize(
    "entry", [entry for entry in METADATA if entry["response_status"] == 200], ids=name_of
)
def test_metadata_match_the_recorded_message(entry: dict[str, Any]) -> None:
    """Inputs and outputs have the order, names and shapes of the recorded metadata."""
    call = ModelMetadataRequest(model=ModelRef("simple"))
    metadata = CODEC.decode_reply(call, response_of(entry))
    plain = oracle.read_metadata(join_body(response_of(entry)))
    for expected, tensors in ((plain.inputs, metadata.inputs), (plain.outputs, metadata.outputs)):
        assert [(e.name, e.shape) for e in expected] == [(t.name, t.shape) for t in tensors]
    again = oracle.read_metadata(join_body(CODEC.encode_reply(call, metadata)))
    assert [(e.name, e.shape, e.number) for e in (*plain.inputs, *plain.outputs)] == [
        (e.name, e.shape, e.number) for e in (*again.inputs, *again.outputs)
    ]


@pytest.mark.parametrize("entry", MALFORMED, ids=name_of)
def test_malformed_message_gets_an_error_response(entry: dict[str, Any]) -> None:
    """A malformed message is rejected in time; only those not marked as rejected may be decoded."""
    call: Call[Any] | None = None
    try:
        with within_processor_s(MOST_S):
            call = CODEC.decode_call(request_of(entry))
    except GatewayError as error:
        response = CODEC.encode_error(None, error)
        tensors, errors = oracle.read_response(join_body(response))
        assert (200, (), 1) == (response.status, tensors, len(errors))
        assert errors[0][0] in (400, 413)
    # This one is well-formed on the wire: only a model with inputs can refuse it.
    if entry["expect"] == "reject" and entry["name"] != "neg_union_metadata_as_infer":
        assert call is None


def test_control_message_is_read() -> None:
    """The message that the malformed ones were made of is valid."""
    entry = next(entry for entry in ENTRIES if entry["category"] == "control")
    assert 2 == len(infer_call(entry).inputs)
