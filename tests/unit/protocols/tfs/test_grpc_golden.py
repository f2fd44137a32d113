"""Every recorded gRPC exchange of TensorFlow Serving, decoded and encoded as the index says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ServerStatusRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError, ModelNotFound
from gateway.ir.metadata import (
    ModelMetadata,
    ModelState,
    ModelStatus,
    RepositoryEntry,
    ServerStatus,
    TensorMetadata,
)
from gateway.ir.tensors.data import ItemsData, RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor
from gateway.protocols.tfs.declarations import DeclaredSignature, ModelDeclaration
from gateway.protocols.tfs.grpc.codec import GrpcCodec
from gateway.schema import tensorflow_serving_pb2 as pb
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from tests.properties.registered import arrived

FOLDER = Path(__file__).parents[3] / "golden" / "tfs" / "grpc"
ENTRIES = json.loads((FOLDER / "index.json").read_text("utf-8"))["entries"]
SUCCEEDED = [one for one in ENTRIES if one["code"] == "OK"]
PREDICTIONS = [one for one in SUCCEEDED if one["method"].endswith("/Predict")]
# Refused by what only the model knows: the codec decodes these requests.
OF_THE_MODEL = {
    "032-predict-not_found",
    "033-predict-not_found",
    "036-predict-invalid_argument",
    "037-predict-invalid_argument",
    "038-predict-invalid_argument",
    "040-predict-invalid_argument",
    "042-predict-invalid_argument",
    "045-getmodelstatus-not_found",
}
REFUSED = [one for one in ENTRIES if one["code"] != "OK" and one["name"] not in OF_THE_MODEL]
DECLARED = {
    "half": ModelDeclaration(
        signatures={
            "classify": DeclaredSignature(method="classify"),
            "regress": DeclaredSignature(method="regress"),
        }
    ),
    "add_sub": ModelDeclaration(labels={"stable": "1", "canary": "3"}),
}


def codec() -> GrpcCodec:
    """Return a codec with the declarations of the recorded models."""
    made = GrpcCodec()
    made.declare(DECLARED)
    return made


def bytes_of(part: dict[str, Any]) -> memoryview:
    """Return a recorded message."""
    return memoryview((FOLDER / part["file"]).read_bytes())


def request_of(entry: dict[str, Any]) -> GrpcRequest:
    """Return the recorded request of an exchange."""
    return GrpcRequest(entry["method"], (bytes_of(entry["request"]),))


def named(entries: list[dict[str, Any]]) -> pytest.MarkDecorator:
    """Parametrize a test with exchanges."""
    return pytest.mark.parametrize("entry", entries, ids=lambda one: one["name"])


def decoded(entry: dict[str, Any]) -> Call[Any]:
    """Return the call of a recorded request."""
    return codec().decode_call(request_of(entry))


@named(PREDICTIONS)
def test_predictions_have_the_tensors_of_the_messages(entry: dict[str, Any]) -> None:
    """Names, shapes and datatypes are those of the protobuf library, and writing keeps all values."""
    call = decoded(entry)
    assert isinstance(call, InferRequest)
    message = pb.PredictRequest.FromString(bytes(bytes_of(entry["request"])))
    assert {one.name for one in call.inputs} == set(message.inputs)
    for tensor in call.inputs:
        dims = tuple(dim.size for dim in message.inputs[tensor.name].tensor_shape.dim)
        assert dims == tensor.shape
    assert list(message.output_filter) == [one.name for one in call.outputs]
    again = codec().decode_call(arrived(codec().encode_call(call)))
    assert isinstance(again, InferRequest)
    assert (call.model, call.inputs, call.outputs) == (again.model, again.inputs, again.outputs)


@named(PREDICTIONS)
def test_replies_are_read_and_written_for_real_clients(entry: dict[str, Any]) -> None:
    """What the gateway writes for a recorded reply has the same model, names and fields."""
    call = decoded(entry)
    recorded = GrpcResponse((bytes_of(entry["response"]),))
    reply: InferResponse = codec().decode_reply(call, recorded)
    written = arrived(codec().encode_reply(call, reply))
    assert reply == codec().decode_reply(call, written)
    expected = pb.PredictResponse.FromString(bytes(recorded.view))
    found = pb.PredictResponse.FromString(bytes(written.view))
    # All fields, in bytes: NaN is not equal to itself.
    assert expected.SerializeToString(deterministic=True) == found.SerializeToString(
        deterministic=True
    )


TYPED_FIELDS = {
    Datatype.FP32: "float_val",
    Datatype.FP64: "double_val",
    **dict.fromkeys((Datatype.INT8, Datatype.INT16, Datatype.INT32), "int_val"),
    **dict.fromkeys((Datatype.UINT8, Datatype.UINT16), "int_val"),
    Datatype.INT64: "int64_val",
    Datatype.UINT32: "uint32_val",
    Datatype.UINT64: "uint64_val",
    Datatype.BOOL: "bool_val",
    Datatype.FP16: "half_val",
    Datatype.BF16: "half_val",
}


@pytest.mark.parametrize("is_content", [False, True])
@pytest.mark.parametrize("count", [2, 2000])
@pytest.mark.parametrize("datatype", TYPED_FIELDS, ids=str)
def test_numbers_of_replies_are_in_the_field_that_clients_read(
    datatype: Datatype, count: int, is_content: bool
) -> None:
    """Each number is in its typed field, and in `tensor_content` where the option says so."""
    call = decoded(PREDICTIONS[0])
    assert isinstance(call, InferRequest)
    array = np.resize(np.array([0, 1, 200, 127], np.int16), count).astype(datatype.numpy_dtype)
    output = Tensor("OUTPUT0", datatype, (count,), RawData(memoryview(array.tobytes())))
    reply = InferResponse(model=ModelRef("add_sub", "1"), outputs=(output,))
    codec = GrpcCodec(options={"tensor_content": is_content})
    written = arrived(codec.encode_reply(call, reply))
    assert (output,) == codec.decode_reply(call.changed(outputs=()), written).outputs
    tensor = pb.PredictResponse.FromString(bytes(written.view)).outputs["OUTPUT0"]
    fields = {field.name for field, _ in tensor.ListFields()} - {"dtype", "tensor_shape"}
    assert {"tensor_content" if is_content else TYPED_FIELDS[datatype]} == fields
    if not is_content:
        bits = array.view(np.uint16) if datatype is Datatype.FP16 else array
        assert bits.tolist() == list(getattr(tensor, TYPED_FIELDS[datatype]))


@named(REFUSED)
def test_refused_requests_have_the_recorded_status(entry: dict[str, Any]) -> None:
    """A request that the codec refuses gets the status of the real server."""
    with pytest.raises(GatewayError) as caught:
        decoded(entry)
    assert entry["code"] == codec().encode_error(None, caught.value).status.name


def test_repeated_last_elements_are_filled_in() -> None:
    """Two elements of a shape of four stand for four."""
    (entry,) = [one for one in PREDICTIONS if one["name"] == "028-predict-ok"]
    call = decoded(entry)
    assert isinstance(call, InferRequest)
    expected = array_tensor("INPUT0", _integers(5, 6, 6, 6))
    assert (expected,) == call.inputs


def test_a_classify_is_a_call_with_one_element_for_each_example() -> None:
    """The recorded classify becomes BYTES, and labels with scores become the recorded reply."""
    (entry,) = [one for one in SUCCEEDED if one["method"].endswith("/Classify")]
    call = decoded(entry)
    assert isinstance(call, InferRequest)
    (examples,) = call.inputs
    assert ("inputs", Datatype.BYTES, (1,)) == (examples.name, examples.datatype, examples.shape)
    outputs = (
        Tensor("classes", Datatype.BYTES, (1, 2), ItemsData([b"low", b"high"])),
        array_tensor("scores", _floats([[0.75, 0.25]])),
    )
    reply = InferResponse(model=ModelRef("half", "123"), outputs=outputs)
    found = pb.ClassificationResponse.FromString(_written(call, reply))
    assert pb.ClassificationResponse.FromString(bytes(bytes_of(entry["response"]))) == found


def test_a_regress_has_one_value_for_each_example() -> None:
    """An output of shape [n, 1] becomes the recorded reply."""
    (entry,) = [one for one in SUCCEEDED if one["method"].endswith("/Regress")]
    call = decoded(entry)
    outputs = (array_tensor("outputs", _floats([[2.125]])),)
    reply = InferResponse(model=ModelRef("half", "123"), outputs=outputs)
    found = pb.RegressionResponse.FromString(_written(call, reply))
    assert pb.RegressionResponse.FromString(bytes(bytes_of(entry["response"]))) == found


@pytest.mark.parametrize(("name", "expected"), [("044", [3, 1]), ("050", [1])])
def test_status_lists_versions_newest_first(name: str, expected: list[int]) -> None:
    """The status of a model is the recorded one, for all versions and for one."""
    (entry,) = [one for one in SUCCEEDED if one["name"].startswith(name)]
    call = decoded(entry)
    assert isinstance(call, ServerStatusRequest)
    assert call.about == ModelRef("add_sub")
    found = pb.GetModelStatusResponse.FromString(_written(call, _status("add_sub", "1", "3")))
    assert pb.GetModelStatusResponse.FromString(bytes(bytes_of(entry["response"]))) == found
    assert expected == [one.version for one in found.model_version_status]


def test_status_of_an_unknown_model_is_not_found() -> None:
    """The recorded question about no model is answered with NOT_FOUND."""
    (entry,) = [one for one in ENTRIES if one["name"].startswith("045")]
    call = decoded(entry)
    with pytest.raises(ModelNotFound) as caught:
        codec().encode_reply(call, ServerStatus(is_ready=True))
    assert GrpcStatus.NOT_FOUND is codec().encode_error(call, caught.value).status


@pytest.mark.parametrize(("name", "version"), [("046", 3), ("049", 1)])
def test_metadata_are_read_and_written(name: str, version: int) -> None:
    """Metadata of a recorded reply are those of the model, and a reply of ours is read so too."""
    (entry,) = [one for one in SUCCEEDED if one["name"].startswith(name)]
    call = decoded(entry)
    assert isinstance(call, ModelMetadataRequest)
    recorded = GrpcResponse((bytes_of(entry["response"]),))
    found: ModelMetadata = codec().decode_reply(call, recorded)
    tensors = {
        kind: tuple([TensorMetadata(f"{kind}{at}", Datatype.INT32, (-1, 16)) for at in range(2)])
        for kind in ("INPUT", "OUTPUT")
    }
    assert (tensors["INPUT"], tensors["OUTPUT"]) == (found.inputs, found.outputs)
    assert (str(version),) == found.versions
    written = arrived(codec().encode_reply(call, found.changed(versions=("1", "3"))))
    message = pb.GetModelMetadataResponse.FromString(bytes(written.view))
    held = message.metadata["signature_def"]
    assert "type.googleapis.com/tensorflow.serving.SignatureDefMap" == held.type_url
    assert version == message.model_spec.version.value
    assert found == codec().decode_reply(call, written)


def _written(call: Call[Any], reply: Any) -> bytes:
    return bytes(arrived(codec().encode_reply(call, reply)).view)


def _status(name: str, *versions: str) -> ServerStatus:
    entries = tuple([RepositoryEntry(name, version, ModelState.READY) for version in versions])
    model = ModelStatus(ModelMetadata(name=name, versions=versions), entries)
    return ServerStatus(is_ready=True, models=(model,))


def _integers(*values: int) -> Any:
    return np.array(values, np.int32)


def _floats(values: list[list[float]]) -> Any:
    return np.array(values, np.float32)
