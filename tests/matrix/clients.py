"""Clients of every form in which a request can be made; each carries a call over a transport.

Those of Open Inference are made by hand, by json, numpy and the schema's classes, so that one half
of a codec does not vouch for the other.  A protocol without clients here is called by its own
upstream half, in each way of `tests/properties/carries.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef, Need
from gateway.ir.errors import ErrorCode, GatewayError
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import array_tensor, as_numpy
from gateway.policies.complete.policy import Complete
from gateway.protocols.oip.datatypes import CONTENTS_FIELD, CONTENTS_NAMES
from gateway.schema import open_inference_pb2 as pb
from gateway.upstream import Upstream
from gateway.wire.grpc import GrpcRequest, GrpcStatus
from gateway.wire.http import Headers, HttpRequest
from tests.golden.open_inference_oracle import of_http, of_response
from tests.properties.carries import WAYS, Carries

Array = npt.NDArray[Any]
Sent = tuple[Datatype, Array]

WHOLE = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


class Refused(Exception):
    """The error that a client got instead of a reply."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(f"{code.value}: {text}")
        self.code = code
        self.text = text


class Client(Protocol):
    """Calls a frontend of one codec."""

    @property
    def name(self) -> str: ...
    @property
    def codec(self) -> str: ...
    @property
    def listener(self) -> Mapping[str, Any]: ...
    @property
    def model(self) -> ModelRef | None: ...

    async def infer(
        self, transport: Any, model: ModelRef, inputs: Mapping[str, Sent]
    ) -> dict[str, Array]:
        """Return the outputs by name. Raises Refused."""
        ...


_HTTP_CODES = {
    400: ErrorCode.INVALID_ARGUMENT,
    501: ErrorCode.UNSUPPORTED,
    502: ErrorCode.BAD_UPSTREAM,
    500: ErrorCode.INTERNAL,
}
_GRPC_CODES = {
    GrpcStatus.INVALID_ARGUMENT: ErrorCode.INVALID_ARGUMENT,
    GrpcStatus.UNIMPLEMENTED: ErrorCode.UNSUPPORTED,
    GrpcStatus.INTERNAL: ErrorCode.INTERNAL,
}


class OipHttp:
    """Open Inference over HTTP.

    Args:
        binary: Inputs go as binary tensor data.
        binary_out: Outputs are requested as binary tensor data.
    """

    codec = "oip.http"
    listener: Mapping[str, Any] = {}
    model = None

    def __init__(self, name: str, *, binary: bool, binary_out: bool) -> None:
        self.name = name
        self._binary = binary
        self._binary_out = binary_out

    async def infer(
        self, transport: Any, model: ModelRef, inputs: Mapping[str, Sent]
    ) -> dict[str, Array]:
        """Send the JSON that Python's own module writes."""
        tail = b""
        members = []
        for name, (datatype, array) in inputs.items():
            member: dict[str, Any] = {"name": name, "datatype": datatype.name, "shape": array.shape}
            if self._binary:
                raw = raw_of(datatype, array)
                tail += raw
                member["parameters"] = {"binary_data_size": len(raw)}
            else:
                member["data"] = _listed(datatype, array)
            members.append(member)
        document = {
            "inputs": members,
            "parameters": {"binary_data_output": True} if self._binary_out else {},
        }
        text = json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogateescape")
        headers = [("Content-Type", "application/json")]
        if self._binary:
            headers.append(("Inference-Header-Content-Length", str(len(text))))
        path = f"/v2/models/{model.name}/infer"
        wire = HttpRequest("POST", path, "", Headers(headers), (text, tail))
        response = await transport.send(wire, deadline=None)
        if response.status != 200:
            text = json.loads(bytes(response.view))["error"]
            raise Refused(_HTTP_CODES[response.status], text)
        reply = of_http(response.headers, bytes(response.view), "outputs")
        for member in json.loads(bytes(response.view)[: _json_end(response)])["outputs"]:
            # An empty tensor has no bytes: its form does not show.
            assert self._binary_out is ("data" not in member), member
        return {one.name: array_of(one.datatype, one.shape, one.raw) for one in reply.tensors}


class OipGrpc:
    """Open Inference over gRPC.

    Args:
        typed: Inputs go in the typed contents of their datatype, not raw.
    """

    codec = "oip.grpc"
    listener: Mapping[str, Any] = {}
    model = None

    def __init__(self, name: str, *, typed: bool) -> None:
        self.name = name
        self._typed = typed

    async def infer(
        self, transport: Any, model: ModelRef, inputs: Mapping[str, Sent]
    ) -> dict[str, Array]:
        """Send a message of the protobuf library's classes."""
        message = pb.ModelInferRequest(model_name=model.name)
        for name, (datatype, array) in inputs.items():
            one = message.inputs.add(name=name, datatype=datatype.name, shape=array.shape)
            if self._typed:
                # Halves have no field; some clients put them in that of FP32.
                field = CONTENTS_NAMES[CONTENTS_FIELD.get(datatype, 6)]
                values = array.reshape(-1).tolist()
                one.contents.CopyFrom(pb.InferTensorContents(**{field: values}))
            else:
                message.raw_input_contents.append(raw_of(datatype, array))
        wire = GrpcRequest(
            "/inference.GRPCInferenceService/ModelInfer", (message.SerializeToString(),)
        )
        response = await transport.send(wire, deadline=None)
        if response.status is not GrpcStatus.OK:
            raise Refused(_GRPC_CODES[response.status], response.details)
        reply = of_response(bytes(response.view))
        return {one.name: array_of(one.datatype, one.shape, one.raw) for one in reply.tensors}


class Spoken:
    """A client of any protocol, by the upstream half of its codec."""

    def __init__(self, way: Carries) -> None:
        self.name = way.name
        self.codec = way.codec
        self.listener = way.listener
        self.model = way.model
        self._codec = way.registered.make(way.upstream)

    async def infer(
        self, transport: Any, model: ModelRef, inputs: Mapping[str, Sent]
    ) -> dict[str, Array]:
        """Call the frontend, and fill in the fields that the protocol omits."""
        upstream: Any = Upstream("client", self._codec, transport)
        tensors = tuple(
            array_tensor(name, array, datatype) for name, (datatype, array) in inputs.items()
        )
        call = InferRequest(model=model, inputs=tensors, id="1").with_context(needs=WHOLE)
        try:
            reply = await Complete(upstream, self._codec.needs)(call)
        except GatewayError as error:
            raise Refused(error.code, error.message) from error
        return {tensor.name: as_numpy(tensor) for tensor in reply.outputs}


_BY_HAND: tuple[Client, ...] = (
    OipHttp("oip.http-json", binary=False, binary_out=False),
    OipHttp("oip.http-binary", binary=True, binary_out=True),
    OipHttp("oip.http-binary-to-json", binary=True, binary_out=False),
    OipGrpc("oip.grpc-raw", typed=False),
    OipGrpc("oip.grpc-typed", typed=True),
)

CLIENTS: tuple[Client, ...] = (
    *_BY_HAND,
    *(Spoken(way) for way in WAYS if way.codec not in {client.codec for client in _BY_HAND}),
)


def raw_of(datatype: Datatype, array: Array) -> bytes:
    """Return the raw form of an array, by numpy alone."""
    if datatype is not Datatype.BYTES:
        return array.tobytes()
    items = array.reshape(-1).tolist()
    return b"".join(len(item).to_bytes(4, "little") + item for item in items)


def array_of(datatype: str, shape: list[int], raw: bytes) -> Array:
    """Return the array that *raw* is."""
    if datatype != "BYTES":
        return np.frombuffer(raw, Datatype[datatype].numpy_dtype).reshape(shape)
    items: list[bytes] = []
    while raw:
        size = int.from_bytes(raw[:4], "little")
        items.append(raw[4 : 4 + size])
        raw = raw[4 + size :]
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array.reshape(shape)


def _listed(datatype: Datatype, array: Array) -> list[Any]:
    flat = array.reshape(-1)
    if datatype is Datatype.BYTES:
        return [item.decode("utf-8", "surrogateescape") for item in flat]
    listed: list[Any] = flat.tolist()
    return listed


def _json_end(response: Any) -> int:
    length = response.headers.get("inference-header-content-length")
    return len(response.view) if length is None else int(length)
