"""What clients of TorchServe send over gRPC, and get."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.ir.context import ModelRef
from gateway.ir.errors import VersionNotFound, VersionNotNumeric
from gateway.protocols.oip.dialects import DIALECTS, check_version
from gateway.protocols.torchserve.grpc.codec import (
    DESCRIBE,
    LIST,
    METHODS,
    PING_METHOD,
    PREDICTIONS,
    SESSION,
    STREAM,
    GrpcCodec,
    file_descriptors,
)
from gateway.protocols.torchserve.http.codec import HttpCodec
from gateway.schema import torchserve_inference_pb2 as pb
from gateway.schema import torchserve_management_pb2 as management
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from tests.unit.protocols.torchserve.models import grpc_answers

ITEM = b'{"INPUT0": [1, 2], "INPUT1": [3, 4]}'


def wire(method: str, **fields: Any) -> GrpcRequest:
    message = pb.PredictionsRequest(**fields)
    return GrpcRequest(method, (memoryview(message.SerializeToString()),))


async def only(request: GrpcRequest, *args: Any) -> GrpcResponse:
    (found,) = await grpc_answers(request, *args)
    return found


def prediction(response: GrpcResponse) -> pb.PredictionResponse:
    assert response.status is GrpcStatus.OK, response.details
    return pb.PredictionResponse.FromString(bytes(response.view))


@pytest.mark.parametrize("key", ["data", "body"])
@pytest.mark.parametrize("version", ["", "1.0"])
async def test_json_arrives_as_bytes(key: str, version: str) -> None:
    """Both keys are read, and JSON has no content type."""
    request = wire(PREDICTIONS, model_name="add_sub", model_version=version, input={key: ITEM})
    found = prediction(await only(request))
    assert json.loads(found.prediction) == {"OUTPUT0": [4, 6], "OUTPUT1": [-2, -2]}


async def test_entries_of_the_map_are_inputs_only_if_declared() -> None:
    """Otherwise the refusal names the key."""
    fields = {"INPUT0": b"[1,2]", "INPUT1": b"[3,4]"}
    request = wire(PREDICTIONS, model_name="add_sub", input=fields)
    found = await only(request)
    assert found.status is GrpcStatus.INVALID_ARGUMENT
    assert "models.NAME.protocols.torchserve.request" in found.details
    found = await only(request, {"add_sub": {"request": "columns"}})
    assert json.loads(prediction(found).prediction)["OUTPUT0"] == [4, 6]


async def test_bytes_are_one_element_both_ways() -> None:
    """Large ones are not copied into the message."""
    data = b"\xff\x00" * 100_000
    request = wire(PREDICTIONS, model_name="raw", input={"data": data}, sequence_id="s")
    found = prediction(await only(request, {"raw": {"response": "bytes"}}))
    assert (found.prediction, found.sequence_id) == (data, "s")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"model_name": "none", "input": {"data": b"[1]"}}, GrpcStatus.NOT_FOUND),
        ({"input": {"data": b"[1]"}}, GrpcStatus.NOT_FOUND),
        (
            {"model_name": "digits", "model_version": "9.9", "input": {"data": b"[1]"}},
            GrpcStatus.NOT_FOUND,
        ),
        ({"model_name": "digits", "input": {"data": b"[1"}}, GrpcStatus.INVALID_ARGUMENT),
        ({"model_name": "digits"}, GrpcStatus.INVALID_ARGUMENT),
    ],
)
async def test_errors_have_proper_statuses(fields: dict[str, Any], status: GrpcStatus) -> None:
    """Servers have INTERNAL for all of them."""
    assert (await only(wire(PREDICTIONS, **fields))).status is status


def test_a_version_that_is_no_number_is_unknown_to_any_server() -> None:
    """Versions are texts here: one that a server of numbers refuses is unknown, as others are."""
    with pytest.raises(VersionNotNumeric) as caught:
        check_version(DIALECTS["triton"], ModelRef("m", "98.7"))
    assert GrpcStatus.NOT_FOUND is GrpcCodec().encode_error(None, caught.value).status
    found = HttpCodec().encode_error(None, caught.value)
    document = json.loads(bytes(found.view))
    assert (404, "ModelVersionNotFoundException") == (found.status, document["type"])
    request = wire(PREDICTIONS, model_name="m", model_version="98.7", input={"data": b"[1]"})
    with pytest.raises(VersionNotFound) as unknown:
        GrpcCodec().decode_call(request)
    assert GrpcStatus.NOT_FOUND is GrpcCodec().encode_error(None, unknown.value).status


async def test_a_message_that_is_none_is_an_error_of_the_client() -> None:
    """Whatever its bytes are."""
    for method in METHODS:
        found = await only(GrpcRequest(method, (memoryview(b"\x0a\xff"),)))
        if method == PING_METHOD:
            continue
        if method == SESSION:
            assert prediction(found).status.code == GrpcStatus.INVALID_ARGUMENT
            continue
        assert found.status in (GrpcStatus.INVALID_ARGUMENT, GrpcStatus.UNIMPLEMENTED)
        assert found.details


async def test_a_decoupled_model_streams() -> None:
    """An error after a reply ends the stream with its status."""
    found = await grpc_answers(wire(STREAM, model_name="stream", input={"data": b"[2]"}))
    assert [b"[0]", b"[1]"] == [prediction(each).prediction for each in found]
    *_, last = await grpc_answers(wire(STREAM, model_name="stream", input={"data": b"[9]"}))
    assert last.status is not GrpcStatus.OK


async def test_an_error_in_a_session_is_a_message() -> None:
    """Other requests of the stream go on."""
    request = wire(SESSION, model_name="none", input={"data": b"[1]"}, sequence_id="a")
    found = prediction(await only(request))
    assert (found.status.code, found.sequence_id) == (GrpcStatus.NOT_FOUND, "a")
    request = wire(SESSION, model_name="digits", input={"data": b"[1,2]"}, sequence_id="a")
    found = prediction(await only(request))
    assert (found.prediction, found.sequence_id, found.HasField("status")) == (b"3.0", "a", False)


async def test_ping_is_the_json_of_http() -> None:
    """In a field of text."""
    found = await only(GrpcRequest(PING_METHOD))
    health = pb.TorchServeHealthResponse.FromString(bytes(found.view)).health
    assert json.loads(health) == {"status": "Healthy"}


async def managed(method: str, **fields: Any) -> Any:
    """Return the document of a reply about models."""
    requests = {LIST: management.ListModelsRequest, DESCRIBE: management.DescribeModelRequest}
    found = await only(GrpcRequest(method, (requests[method](**fields).SerializeToString(),)))
    return json.loads(management.ManagementResponse.FromString(bytes(found.view)).msg)


async def test_management_is_read_only() -> None:
    """Lists and descriptions are answered; the other methods are refused by name."""
    document = await managed(LIST, limit=1, next_page_token=1)
    assert [each["modelName"] for each in document["models"]] == ["digits"]
    document = await managed(DESCRIBE, model_name="digits", model_version="all")
    assert [each["modelVersion"] for each in document] == ["1.0", "2.0"]
    changing = [each for each in METHODS if "Management" in each and each not in (LIST, DESCRIBE)]
    assert len(changing) == 4
    for method in changing:
        found = await only(GrpcRequest(method, (b"",)))
        assert found.status is GrpcStatus.UNIMPLEMENTED
        assert method.rpartition("/")[2] in found.details
        assert "read-only" in found.details


def test_reflection_has_both_services() -> None:
    """Dependencies come first."""
    names = [each for each in file_descriptors() if b"InferenceAPIsService" in each]
    assert len(names) == 1
    assert b"ManagementAPIsService" in file_descriptors()[-1]
