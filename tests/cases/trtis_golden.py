"""The recorded exchanges of TensorRT v1: requests of the real client, answers like a server's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.metadata import ModelMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor
from gateway.protocols.trtis.server_status import read_model
from gateway.schema import tensorrt_v1_pb2 as pb
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.http import Headers, HttpRequest, HttpResponse

ROOT = Path(__file__).parent.parent / "golden" / "trtis"
INDEX: dict[str, Any] = json.loads((ROOT / "index.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Exchange:
    """One request and its answer.

    Attributes:
        inputs: By name, the arrays of each batch item, where the index tells; {} elsewhere.
    """

    name: str
    request: Any
    response: Any
    inputs: dict[str, list[dict[str, Any]]]

    @property
    def carrier(self) -> str:
        """Which of the two codecs it belongs to."""
        return "http" if isinstance(self.request, HttpRequest) else "grpc"

    @property
    def is_infer(self) -> bool:
        """Whether it reaches an inference."""
        if isinstance(self.request, HttpRequest):
            return self.request.path.startswith("/api/infer") and self.request.method == "POST"
        return str(self.request.method).endswith("Infer")

    @property
    def status(self) -> pb.RequestStatus | None:
        """What the answer says became of the request; None where it says nothing."""
        if isinstance(self.response, GrpcResponse):
            return pb.ProfileResponse.FromString(bytes(self.response.view)).request_status
        line = self.response.headers.get("nv-status")
        return None if line is None else text_format.Parse(line, pb.RequestStatus())

    @property
    def succeeds(self) -> bool:
        """Whether the answer is a success."""
        return self.status is not None and self.status.code == pb.SUCCESS

    @property
    def header(self) -> pb.InferRequestHeader:
        """The header of an inference, by the protobuf library."""
        if isinstance(self.request, GrpcRequest):
            return pb.InferRequest.FromString(bytes(self.request.view)).meta_data
        line = self.request.headers.get("nv-inferrequest") or ""
        return text_format.Parse(line, pb.InferRequestHeader())


def _metadata() -> dict[str, ModelMetadata]:
    found = {}
    for name, model in INDEX["models"].items():
        status = pb.ModelStatus(config=text_format.Parse(model["config_text"], pb.ModelConfig()))
        for version in model["versions_ready"]:
            status.version_status[version].ready_state = pb.MODEL_READY
        found[name] = read_model(name, status, DEFAULT_LIMITS)
    return found


def _read(exchange: dict[str, Any]) -> tuple[Any, Any]:
    request, response = (
        (ROOT / exchange[key]).read_bytes() for key in ("request_file", "response_file")
    )
    if exchange["protocol"] == "grpc":
        return GrpcRequest(exchange["rpc"], (memoryview(request),)), GrpcResponse((response,))
    first, headers, body = _split(request)
    method, target, _ = first.split(" ")
    path, _, query = target.partition("?")
    status_line, answered, content = _split(response)
    return (
        HttpRequest(method, path, query, headers, (memoryview(body),)),
        HttpResponse(int(status_line.split(" ")[1]), answered, (content,)),
    )


def _split(message: bytes) -> tuple[str, Headers, bytes]:
    head, _, body = message.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    pairs = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    return first, Headers(pairs), body


def _exchanges() -> Iterator[Exchange]:
    for case in INDEX["cases"]:
        for number, exchange in enumerate(case["exchanges"], start=1):
            if "request_file" not in exchange:
                continue  # a status request like any other, not recorded again
            request, response = _read(exchange)
            last = number == len(case["exchanges"])
            inputs = case.get("inputs_per_batch_item", {}) if last else {}
            yield Exchange(f"{case['case']}.{number}", request, response, inputs)


METADATA = _metadata()
EXCHANGES = list(_exchanges())


def array_of(items: list[dict[str, Any]]) -> Any:
    """Return the recorded items of a batch as one array, batch first."""
    datatype = Datatype(items[0]["datatype"])
    if datatype is Datatype.BYTES:
        arrays = []
        for item in items:
            array = np.empty(len(item["data"]), dtype=object)
            array[:] = [text.encode("latin-1") for text in item["data"]]
            arrays.append(array.reshape(item["shape"]))
        return np.stack(arrays)
    return np.stack(
        [np.array(item["data"], datatype.numpy_dtype).reshape(item["shape"]) for item in items]
    )


def typed(call: InferRequest, reply: InferResponse) -> InferResponse:
    """Return an answer with the datatypes of the model, as `Complete` fills them in."""
    assert call.model is not None
    datatypes = {tensor.name: tensor.datatype for tensor in METADATA[call.model.name].outputs}
    return reply.changed(
        outputs=tuple(
            Tensor(one.name, one.datatype or datatypes[one.name], one.shape, one.data)
            for one in reply.outputs
        )
    )
