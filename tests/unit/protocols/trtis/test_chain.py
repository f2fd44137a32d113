"""Recorded requests of the real client, through every layer, to a model that computes.

Each runs once directly, and once over each carrier through a second gateway that acts as the old
server. The client reads the values of the recording.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from google.protobuf import text_format

from gateway.frontend.frontend import Frontend
from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    RepositoryIndexRequest,
    ServerReadyRequest,
)
from gateway.ir.context import ModelRef, Need
from gateway.ir.errors import ModelNotFound
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.metadata import ModelMetadata, RepositoryEntry
from gateway.ir.tensor import array_tensor, as_numpy
from gateway.policies.classify import Classify
from gateway.policies.complete.policy import Complete
from gateway.protocols.trtis.grpc.codec import GrpcCodec
from gateway.protocols.trtis.http.codec import HttpCodec
from gateway.routing.server_status import ServerStatusLayer
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.service import Dispatch, Service
from gateway.upstream import Upstream
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.http import HttpRequest, HttpResponse
from tests.cases.trtis_golden import EXCHANGES, INDEX, METADATA, Exchange

NEEDS = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})
LABELS = tuple(f"label{number}" for number in range(16))


async def infer(call: InferRequest) -> InferResponse:
    """Add and subtract for `simple`, return the input for the others."""
    assert call.model is not None
    arrays = [as_numpy(tensor) for tensor in call.inputs]
    if call.model.name == "simple":
        named = dict(zip([one.name for one in call.inputs], arrays, strict=True))
        first, second = named["INPUT0"], named["INPUT1"]
        outputs = {"OUTPUT0": first + second, "OUTPUT1": first - second}
    else:
        outputs = {METADATA[call.model.name].outputs[0].name: arrays[0]}
    return InferResponse(
        model=ModelRef(call.model.name, call.model.version or "3"),
        outputs=tuple(array_tensor(name, array) for name, array in outputs.items()),
    )


async def describe(call: ModelMetadataRequest) -> ModelMetadata:
    name = "" if call.model is None else call.model.name
    if name not in METADATA:
        raise ModelNotFound(f"no model {name!r}", model=call.model)
    metadata = METADATA[name]
    return ModelMetadata(
        name=metadata.name,
        versions=metadata.versions,
        inputs=metadata.inputs,
        outputs=metadata.outputs,
        max_batch_size=metadata.max_batch_size,
        labels={"OUTPUT0": LABELS} if name == "simple" else {},
    )


async def ready(_call: ServerReadyRequest) -> bool:
    return True


async def index(_call: RepositoryIndexRequest) -> tuple[RepositoryEntry, ...]:
    return tuple(RepositoryEntry(name) for name in METADATA)


def model() -> Service:
    """Return the models with the layers before an in-process backend."""
    leaf = Dispatch(
        "models",
        {
            InferRequest: infer,
            ModelMetadataRequest: describe,
            ServerReadyRequest: ready,
            RepositoryIndexRequest: index,
        },
    )
    return ServerStatusLayer(Classify(Complete(leaf, NEEDS)))


class InMemory:
    """A client that calls its server directly."""

    def __init__(self, frontend: Frontend[Any, Any]) -> None:
        self._frontend = frontend

    async def send(
        self, wire: Any, /, *, deadline: float | None, decode: Callable[[Any], Any]
    ) -> Any:
        return decode(await self._send(wire))

    async def _send(self, wire: Any) -> Any:
        body = memoryview(bytes(wire.view))
        if isinstance(wire, GrpcRequest):
            request: Any = GrpcRequest(wire.method, (body,), wire.metadata)
        else:
            request = HttpRequest(wire.method, wire.path, wire.query, wire.headers, (body,))
        async for response in self._frontend(request):
            whole = (bytes(response.view),)
            if isinstance(response, GrpcResponse):
                return GrpcResponse(whole, response.status)
            return HttpResponse(response.status, response.headers, whole)
        raise AssertionError("a frontend always answers")

    def stream(self, wire: Any, /, *, deadline: float | None) -> AsyncIterator[Any]:
        raise NotImplementedError

    async def close(self) -> None: ...


def codec(carrier: str) -> Any:
    return HttpCodec(DEFAULT_LIMITS, {}) if carrier == "http" else GrpcCodec(DEFAULT_LIMITS, {})


def models_over(carrier: str) -> Service:
    """Return the models as an old server's, called over *carrier*."""
    if carrier == "straight":
        return model()
    upstream: Service = Upstream("old", codec(carrier), InMemory(Frontend(codec(carrier), model())))
    return ServerStatusLayer(Complete(upstream, codec(carrier).needs))


async def response_to(exchange: Exchange, service: Service) -> Any:
    client = InMemory(Frontend(codec(exchange.carrier), service))
    return await client.send(exchange.request, deadline=None, decode=lambda found: found)


def read_as_client(response: Any) -> Any:
    """Return an inference's response as a client reads it: outputs by name, in order."""
    if isinstance(response, GrpcResponse):
        message = pb.InferResponse.FromString(bytes(response.view))
        header, raws = message.meta_data, list(message.raw_output)
    else:
        line = response.headers.get("nv-inferresponse")
        header = text_format.Parse(line, pb.InferResponseHeader(), allow_unknown_field=True)
        raws, at = [], 0
        for one in header.output:
            raws.append(bytes(response.view)[at : at + one.raw.batch_byte_size])
            at += one.raw.batch_byte_size
    outputs = []
    for one, raw in zip(header.output, raws, strict=True):
        classes = [
            sorted((best.value, best.idx, best.label) for best in item.cls)
            for item in one.batch_classes
        ]
        outputs.append((one.name, list(one.raw.dims), bytes(raw), classes))
    return header.model_name, header.batch_size, header.id, outputs


# Models with a state, and the one that adds numbers written as text: not among the test models.
_NOT_COMPUTED = ("sequence", "corr-id", "stream-error", "infer-string.")


def is_computed(exchange: Exchange) -> bool:
    """Return whether the test models compute the results of the recorded ones."""
    if not exchange.is_infer or not exchange.succeeds or "shm" in exchange.name:
        return False
    return not any(word in exchange.name for word in _NOT_COMPUTED)


COMPUTED = [one for one in EXCHANGES if is_computed(one)]


@pytest.mark.parametrize("way", ["straight", "http", "grpc"])
@pytest.mark.parametrize("exchange", COMPUTED, ids=lambda one: one.name)
async def test_client_reads_the_recorded_values(exchange: Exchange, way: str) -> None:
    """The response of the test models has the contents of the recorded response."""
    response = await response_to(exchange, models_over(way))
    assert read_as_client(exchange.response) == read_as_client(response)


@pytest.mark.parametrize("way", ["straight", "http", "grpc"])
@pytest.mark.parametrize(
    "exchange",
    [one for one in EXCHANGES if one.name.endswith("status-unknown-model.1")],
    ids=lambda one: one.name,
)
async def test_unknown_model_has_the_recorded_status(exchange: Exchange, way: str) -> None:
    """A status of no model is INVALID_ARG, also through a second gateway."""
    response = await response_to(exchange, models_over(way))
    recorded = exchange.status
    found = Exchange("", exchange.request, response, {}).status
    assert recorded is not None
    assert found is not None
    assert recorded.code == found.code


@pytest.mark.parametrize("way", ["straight", "http", "grpc"])
@pytest.mark.parametrize("carrier", ["http", "grpc"])
async def test_status_lists_every_model(carrier: str, way: str) -> None:
    """Each model has the signature of the recording."""
    exchange = next(one for one in EXCHANGES if one.name == f"{carrier}-status-server.1")
    response = await response_to(exchange, models_over(way))
    body = bytes(response.view)
    status = (
        pb.ServerStatus.FromString(body)
        if carrier == "http"
        else pb.StatusResponse.FromString(body).server_status
    )
    assert set(INDEX["models"]) == set(status.model_status)
    for name, entry in INDEX["models"].items():
        expected = text_format.Parse(entry["config_text"], pb.ModelConfig())
        found = status.model_status[name].config
        assert expected.max_batch_size == found.max_batch_size
        assert tensors_of(expected) == tensors_of(found)


def tensors_of(config: pb.ModelConfig) -> list[Any]:
    """Return the tensors of a model as the client reads them."""
    tensors: list[Any] = [*config.input, *config.output]
    return [(one.name, one.data_type, list(one.dims)) for one in tensors]


async def test_bytes_of_a_batch_are_returned_unchanged() -> None:
    """Every layer keeps empty and arbitrary elements."""
    exchange = next(one for one in EXCHANGES if one.name == "http-infer-string-batch2.2")
    for way in ("straight", "http", "grpc"):
        name, size, _id, outputs = read_as_client(await response_to(exchange, models_over(way)))
        assert name == "identity_bytes"
        assert size == 2
        assert outputs[0][2] == bytes(exchange.request.view)
