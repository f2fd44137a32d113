"""A small Open Inference server that keeps its protocol, and breaks one rule of it where a test says so.

It shares no code with the gateway but the generated messages: aiohttp and grpc.aio carry them, json and
numpy read them. The faults themselves are in `faults.py`.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import numpy as np
from aiohttp import web

from gateway.schema import open_inference_pb2 as pb

DTYPES = {
    "BOOL": "?",
    **{
        f"{kind}INT{8 * size}": f"<{code}{size}"
        for size in (1, 2, 4, 8)
        for kind, code in (("", "i"), ("U", "u"))
    },
    "FP16": "<f2",
    "BF16": "<u2",
    "FP32": "<f4",
    "FP64": "<f8",
}
"""The numpy form of each datatype but BYTES; BF16 is shown as its bits."""

TYPED = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "BOOL": "bool_contents",
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""The typed contents of each datatype that has any."""

LENGTH = "Inference-Header-Content-Length"
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "sequence",
)


@dataclass(frozen=True)
class Fault:
    """One change of a server that keeps its protocol.

    Attributes:
        name: Of the fault.
        carrier: `http` or `grpc`; the other one stays faultless.
        point: The place in the server that it changes.
        change: The function that changes what passes there, or the check that is left out there.
        rules: The rules of `certify` that name it; none if nothing can be told of such a server.
    """

    name: str
    carrier: str
    point: str
    change: Any
    rules: tuple[str, ...]


@dataclass(frozen=True)
class Port:
    """An input or an output of a model; -1 stands for a variable dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Model:
    """A model: its kind says what it computes."""

    name: str
    kind: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    versions: tuple[str, ...] = ("1",)


def _identity(name: str, shape: tuple[int, ...], *datatypes: str) -> Model:
    inputs = tuple(Port(f"IN_{each}", each, shape) for each in datatypes)
    return Model(
        name,
        "identity",
        inputs,
        tuple(replace(each, name=f"OUT{each.name[2:]}") for each in inputs),
    )


def _ports(name: str, shape: tuple[int, ...], count: int = 1) -> tuple[Port, ...]:
    return tuple(Port(f"{name}{index}", "INT32", shape) for index in range(count))


MODELS = {
    each.name: each
    for each in (
        _identity("copy", (-1,), *TYPED),
        _identity("halves", (-1,), "FP16", "BF16"),
        _identity("matrix", (-1, -1), "FP32"),
        Model("sum", "sum", _ports("IN", (-1, 4), 2), _ports("OUT", (-1, 4), 2), ("1", "3")),
        Model("repeat", "decoupled", _ports("IN", (-1,)), _ports("OUT", (1,))),
        Model("running", "sequence", _ports("IN", (1,)), _ports("OUT", (1,))),
    )
}
EXPECT = {"copy": "identity", "halves": "identity", "matrix": "identity", "sum": "sum"}
"""What `certify` is told of the models."""


class ServerError(Exception):
    """A call is refused; *code* is the name of a status of gRPC."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


@dataclass(frozen=True)
class Tensor:
    """A tensor; the elements are flat."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Wanted:
    """An output that a request asks for."""

    name: str
    classes: int = 0
    binary: bool = False


@dataclass(frozen=True)
class Inference:
    """One request of either carrier."""

    model: str
    version: str
    id: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Wanted, ...]
    parameters: dict[str, Any]
    binary: bool = False


@dataclass
class Response:
    """What is about to be written over HTTP; a document becomes JSON when nothing changes it any more."""

    path: str
    status: int
    document: Any
    parts: list[bytes] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    sent: Any = None


class FaultyServer:
    """Both carriers of one server, on threads and ports of their own; `fault` is switched between calls."""

    def __init__(self) -> None:
        self.fault: Fault | None = None
        self.http = ""
        self.grpc = ""
        self._requests = 0
        self._sums: dict[Any, int] = {}

    @contextmanager
    def breaking(self, fault: Fault) -> Iterator[None]:
        """Break one rule for as long as the context lasts."""
        self._requests = 0
        self.fault = fault
        try:
            yield
        finally:
            self.fault = None

    # What a fault changes.

    def _at(self, carrier: str, point: str, value: Any, *context: Any) -> Any:
        fault = self.fault
        if fault is None or (fault.carrier, fault.point) != (carrier, point):
            return value
        return fault.change(value, *context)

    def _checks(self, carrier: str, check: str) -> bool:
        fault = self.fault
        return fault is None or (fault.carrier, fault.point, fault.change) != (
            carrier,
            "check",
            check,
        )

    # What both carriers do.

    def model(self, carrier: str, name: str, version: str = "") -> Model:
        """Return a model that a request names."""
        model = MODELS.get(name)
        if model is None and not self._checks(carrier, "model"):
            model = MODELS["halves"]
        if model is None:
            raise ServerError("NOT_FOUND", f"Request for unknown model: '{name}' is not found")
        if version and version not in model.versions and self._checks(carrier, "version"):
            raise ServerError("NOT_FOUND", f"'{name}' version {version} is not found")
        return model

    def infer(self, carrier: str, call: Inference) -> Iterator[list[Tensor]]:
        """Check a request, and return an iterator of its responses."""
        model = self.model(carrier, call.model, call.version)
        self._check_inputs(carrier, model, call)
        names = [port.name for port in model.outputs]
        for wanted in call.outputs:
            if wanted.name not in names and self._checks(carrier, "output"):
                raise ServerError("INVALID_ARGUMENT", f"unexpected output '{wanted.name}'")
        return (
            self._at(carrier, "outputs", self._wanted(call, outputs), call)
            for outputs in self._compute(carrier, model, call)
        )

    def _check_inputs(self, carrier: str, model: Model, call: Inference) -> None:
        found = {each.name: each for each in call.inputs}
        if len(found) != len(call.inputs) and self._checks(carrier, "twice"):
            raise ServerError("INVALID_ARGUMENT", "an input occurs twice")
        ports = {port.name: port for port in model.inputs}
        for name in found:
            if name not in ports and self._checks(carrier, "unknown_input"):
                raise ServerError("INVALID_ARGUMENT", f"unexpected inference input '{name}'")
        for port in model.inputs:
            if port.name not in found:
                if not self._checks(carrier, "missing_input"):
                    continue
                raise ServerError("INVALID_ARGUMENT", f"expected input '{port.name}'")
            tensor = found[port.name]
            if tensor.datatype != port.datatype and self._checks(carrier, "datatype"):
                raise ServerError(
                    "INVALID_ARGUMENT",
                    f"expected {port.datatype} for '{port.name}', got {tensor.datatype}",
                )
            fits = len(tensor.shape) == len(port.shape) and all(
                expected in {-1, size}
                for expected, size in zip(port.shape, tensor.shape, strict=True)
            )
            if not fits and self._checks(carrier, "shape"):
                raise ServerError(
                    "INVALID_ARGUMENT",
                    f"expected shape {port.shape} for '{port.name}', got {tensor.shape}",
                )

    def _compute(self, carrier: str, model: Model, call: Inference) -> Iterator[list[Tensor]]:
        given = [each for each in call.inputs if each.name in {port.name for port in model.inputs}]
        if model.kind == "identity":
            yield [replace(each, name=f"OUT{each.name[2:]}") for each in given]
        elif model.kind == "sum":
            first, second = given[0].values, given[-1].values
            yield [
                replace(given[0], name=name, values=values)
                for name, values in (("OUT0", first + second), ("OUT1", first - second))
            ]
        elif model.kind == "decoupled":
            for value in given[0].values:
                yield [Tensor("OUT0", "INT32", (1,), np.array([value], "<i4"))]
        else:
            yield [Tensor("OUT0", "INT32", (1,), np.array([self._add(carrier, call)], "<i4"))]

    def _add(self, carrier: str, call: Inference) -> int:
        key = call.parameters.get("sequence_id")
        if not key and self._checks(carrier, "sequence_id"):
            raise ServerError("INVALID_ARGUMENT", "a sequence needs the parameter 'sequence_id'")
        if call.parameters.get("sequence_start"):
            self._sums[key] = 0
        elif key not in self._sums:
            raise ServerError("INVALID_ARGUMENT", f"sequence {key} has not begun")
        self._sums[key] = self._sums.get(key, 0) + int(call.inputs[0].values[0])
        total = self._sums[key]
        if call.parameters.get("sequence_end"):
            del self._sums[key]
        return total

    def _wanted(self, call: Inference, outputs: list[Tensor]) -> list[Tensor]:
        if not call.outputs:
            return outputs
        found = {each.name: each for each in outputs}
        return [
            _classes(found[each.name], each.classes) if each.classes else found[each.name]
            for each in call.outputs
            if each.name in found
        ]

    # HTTP.

    async def handle_http(self, request: web.Request) -> web.StreamResponse:
        """Answer one request over HTTP."""
        self._requests += 1
        body = await request.read()
        broken = await self._at("http", "wire", _nothing, request, self._requests)(request)
        if broken is not None:
            return broken  # type: ignore[no-any-return]  # what a fault of the wire wrote
        response = Response(request.path, 200, None)
        try:
            self._answer_http(request, body, response)
        except ServerError as error:
            error = self._at("http", "error", error, request.path)
            response = Response(
                request.path, _STATUSES[error.code], {"error": error.text}, sent=error
            )
        response = self._at("http", "response", response)
        return self._written(response)

    def _written(self, response: Response) -> web.Response:
        is_text = isinstance(response.document, bytes)
        head = response.document if is_text else b""
        if response.document is not None and not is_text:
            head = json.dumps(response.document).encode()
        headers = {"Content-Type": "application/json"}
        if response.parts:
            headers = {"Content-Type": "application/octet-stream", LENGTH: str(len(head))}
        body = self._at("http", "body", head + b"".join(response.parts), response)
        return web.Response(status=response.status, body=body, headers=headers | response.headers)

    def _answer_http(self, request: web.Request, body: bytes, response: Response) -> None:
        match request.method, request.path.strip("/").split("/"):
            case "GET", ["v2"]:
                response.document = {
                    "name": "faulty",
                    "version": "1.0",
                    "extensions": list(EXTENSIONS),
                }
            case "GET", ["v2", "health", "live" | "ready" as what]:
                response.document = {what: True}
            case "POST", ["v2", "repository", "index"]:
                response.document = _index()
            case method, ["v2", "models", name, *rest]:
                version = rest[1] if rest[:1] == ["versions"] and len(rest) > 1 else ""
                action = (*rest[2 if version else 0 :], "metadata")[0]
                self._answer_model((method, action), name, version, (request, body), response)
            case _:
                self._unknown_path(request)

    def _unknown_path(self, request: web.Request) -> None:
        if self._checks("http", "path"):
            raise ServerError("NOT_FOUND", f"unknown path {request.method} {request.path}")

    def _answer_model(
        self,
        action: tuple[str, str],
        name: str,
        version: str,
        sent: tuple[web.Request, bytes],
        response: Response,
    ) -> None:
        if action == ("POST", "infer"):
            call = _read_http(self, name, version, *sent)
            call = self._at("http", "inputs", call)
            model = self.model("http", name, version)
            if model.kind == "decoupled":
                raise ServerError("UNIMPLEMENTED", "a decoupled model needs a stream")
            outputs = next(self.infer("http", call))
            response.document = {"model_name": name, "model_version": version or model.versions[-1]}
            if call.id:
                response.document["id"] = call.id
            response.document["outputs"] = [
                self._write_http(call, each, response) for each in outputs
            ]
            response.sent = call
        elif action == ("GET", "metadata"):
            response.document = _metadata(self.model("http", name, version), version)
        elif action == ("GET", "config"):
            response.document = _config(self.model("http", name, version))
        elif action == ("GET", "ready"):
            self.model("http", name, version)
            response.document = {"name": name, "ready": True}
        elif action[1] in {"infer", "metadata", "config", "ready"} and self._checks(
            "http", "method"
        ):
            raise ServerError("METHOD_NOT_ALLOWED", f"{action[0]} is not allowed")
        else:
            self._unknown_path(sent[0])

    def _write_http(self, call: Inference, tensor: Tensor, response: Response) -> dict[str, Any]:
        wanted = next((each for each in call.outputs if each.name == tensor.name), None)
        document = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
        if wanted.binary if wanted else call.binary:
            part = self._at("http", "raw", raw(tensor), tensor)
            response.parts.append(part)
            return document | {"parameters": {"binary_data_size": len(part)}}
        data = self._at("http", "data", _json_values, tensor)(tensor)
        return document | {"data": data}

    # gRPC.

    async def handle_unary(self, method: str, request: Any, context: Any) -> Any:
        """Answer one call over gRPC that is no stream."""
        self._requests += 1
        await self._at("grpc", "wire", _nothing, method, self._requests)(request)
        try:
            message = self._answer_grpc(method, request)
        except ServerError as error:
            error = self._at("grpc", "error", error, method)
            if isinstance(error, ServerError):
                await context.abort(grpc.StatusCode[error.code], error.text)
            return error
        return self._at("grpc", "message", message, method, request)

    def _answer_grpc(self, method: str, request: Any) -> Any:
        match method:
            case "ServerLive":
                return pb.ServerLiveResponse(live=True)
            case "ServerReady":
                return pb.ServerReadyResponse(ready=True)
            case "ServerMetadata":
                return pb.ServerMetadataResponse(
                    name="faulty", version="1.0", extensions=EXTENSIONS
                )
            case "RepositoryIndex":
                entry = pb.RepositoryIndexResponse.ModelIndex
                return pb.RepositoryIndexResponse(models=[entry(**each) for each in _index()])
            case "ModelInfer":
                call = self._at("grpc", "inputs", _read_grpc(self, request))
                if self.model("grpc", call.model, call.version).kind == "decoupled":
                    raise ServerError("UNIMPLEMENTED", "a decoupled model needs a stream")
                return self._write_grpc(call, next(self.infer("grpc", call)))
        model = self.model("grpc", request.name, request.version)
        answers: dict[str, Callable[[], Any]] = {
            "ModelReady": lambda: pb.ModelReadyResponse(ready=True),
            "ModelConfig": lambda: pb.ModelConfigResponse(config=_config(model)),
            "ModelMetadata": lambda: pb.ModelMetadataResponse(**_metadata(model, request.version)),
        }
        return answers[method]()

    def _write_grpc(self, call: Inference, outputs: Sequence[Tensor]) -> Any:
        model = self.model("grpc", call.model, call.version)
        output = pb.ModelInferResponse.InferOutputTensor
        return pb.ModelInferResponse(
            model_name=call.model,
            model_version=call.version or model.versions[-1],
            id=call.id,
            outputs=[
                output(name=each.name, datatype=each.datatype, shape=each.shape) for each in outputs
            ],
            raw_output_contents=[self._at("grpc", "raw", raw(each), each) for each in outputs],
        )

    async def handle_stream(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """Answer the calls of one stream over gRPC."""
        async for request in requests:
            messages = self._at("grpc", "stream", self._replies(request), request)
            for message in messages:
                if isinstance(message, float):
                    await asyncio.sleep(message)
                elif isinstance(message, ServerError):
                    await context.abort(grpc.StatusCode[message.code], message.text)
                else:
                    yield message

    def _replies(self, request: Any) -> Iterator[Any]:
        try:
            call = self._at("grpc", "inputs", _read_grpc(self, request))
            is_decoupled = self.model("grpc", call.model, call.version).kind == "decoupled"
            for outputs in self.infer("grpc", call):
                yield self._streamed(self._write_grpc(call, outputs), is_final=not is_decoupled)
            if is_decoupled and call.parameters.get("triton_enable_empty_final_response"):
                empty = pb.ModelInferResponse(model_name=call.model, id=call.id)
                yield self._streamed(empty, is_final=True)
        except ServerError as error:
            failed = pb.ModelInferResponse(model_name=request.model_name, id=request.id)
            yield pb.ModelStreamInferResponse(error_message=error.text, infer_response=failed)

    def _streamed(self, message: Any, *, is_final: bool) -> Any:
        message.parameters["triton_final_response"].bool_param = is_final
        message = self._at("grpc", "message", message, "ModelStreamInfer", None)
        return pb.ModelStreamInferResponse(infer_response=message)


_STATUSES = {
    "INVALID_ARGUMENT": 400,
    "NOT_FOUND": 404,
    "METHOD_NOT_ALLOWED": 405,
    "UNIMPLEMENTED": 501,
}


async def _nothing(_request: Any) -> None:
    """Break nothing on the wire."""


# Documents of both carriers.


def _index() -> list[dict[str, Any]]:
    return [
        {"name": model.name, "version": version, "state": "READY"}
        for model in MODELS.values()
        for version in model.versions
    ]


def _metadata(model: Model, version: str) -> dict[str, Any]:
    def ports(each: tuple[Port, ...]) -> list[dict[str, Any]]:
        return [
            {"name": port.name, "datatype": port.datatype, "shape": list(port.shape)}
            for port in each
        ]

    return {
        "name": model.name,
        "versions": [version] if version else list(model.versions),
        "platform": "python",
        "inputs": ports(model.inputs),
        "outputs": ports(model.outputs),
    }


def _config(model: Model) -> dict[str, Any]:
    def ports(each: tuple[Port, ...]) -> list[dict[str, Any]]:
        kinds = {port.name: port.datatype.replace("BYTES", "STRING") for port in each}
        return [
            {"name": port.name, "data_type": f"TYPE_{kinds[port.name]}", "dims": list(port.shape)}
            for port in each
        ]

    config: dict[str, Any] = {
        "name": model.name,
        "backend": "python",
        "max_batch_size": 0,
        "input": ports(model.inputs),
        "output": ports(model.outputs),
        "model_transaction_policy": {"decoupled": model.kind == "decoupled"},
    }
    if model.kind == "sequence":
        config["sequence_batching"] = {"direct": {}}
    return config


# Tensors.


def raw(tensor: Tensor) -> bytes:
    """Return the raw form of a tensor, little-endian."""
    if tensor.datatype == "BYTES":
        return b"".join(len(each).to_bytes(4, "little") + each for each in tensor.values)
    return tensor.values.astype(DTYPES[tensor.datatype]).tobytes()


def array(values: Any, datatype: str) -> np.ndarray[Any, Any]:
    """Return elements as a flat array."""
    if datatype != "BYTES":
        return np.array(values, DTYPES[datatype])
    texts = np.empty(len(values), object)
    texts[:] = values
    return texts


def _read_raw(
    server: FaultyServer, carrier: str, name: str, kind: tuple[str, tuple[int, ...]], data: bytes
) -> Tensor:
    datatype, shape = kind
    count = int(np.prod(shape, dtype=object))
    if datatype == "BYTES":
        elements = []
        while data:
            end = 4 + int.from_bytes(data[:4], "little")
            if len(data) < end:
                raise ServerError("INVALID_ARGUMENT", f"input '{name}' ends within an element")
            elements.append(data[4:end])
            data = data[end:]
        values = array(elements, datatype)
    elif datatype not in DTYPES:
        raise ServerError("INVALID_ARGUMENT", f"unknown datatype '{datatype}' of input '{name}'")
    else:
        size = np.dtype(DTYPES[datatype]).itemsize
        if len(data) != count * size and not server._checks(carrier, "size"):
            data = (data + bytes(count * size))[: count * size]
        if len(data) != count * size:
            raise ServerError("INVALID_ARGUMENT", f"input '{name}' has {len(data)} bytes")
        values = np.frombuffer(data, DTYPES[datatype])
    if len(values) != count:
        raise ServerError(
            "INVALID_ARGUMENT", f"input '{name}' has {len(values)} elements, not {count}"
        )
    return Tensor(name, datatype, shape, values)


def _classes(tensor: Tensor, count: int) -> Tensor:
    """Return the best classes of each row, ties by lower index."""
    texts = []
    for row in tensor.values.reshape(-1, tensor.shape[-1]):
        order = np.argsort(-row, kind="stable")
        texts += [f"{row[index]:f}:{index}".encode() for index in order[:count]]
    shape = (*tensor.shape[:-1], min(count, tensor.shape[-1]))
    return Tensor(tensor.name, "BYTES", shape, array(texts, "BYTES"))


def _json_values(tensor: Tensor) -> list[Any]:
    """Return the elements as JSON has them.

    Raises:
        ServerError: JSON cannot have one of them.
    """
    values = tensor.values
    if tensor.datatype in {"FP16", "BF16"} or (
        values.dtype.kind == "f" and not np.isfinite(values).all()
    ):
        raise ServerError("INVALID_ARGUMENT", f"'{tensor.name}' cannot be sent as JSON")
    if tensor.datatype == "FP32":
        return [float(str(each)) for each in values]
    if tensor.datatype != "BYTES":
        return list(values.tolist())
    try:
        return [each.decode() for each in values]
    except UnicodeDecodeError as error:
        raise ServerError("INVALID_ARGUMENT", f"'{tensor.name}' is no text") from error


# Requests over HTTP.


def _read_http(
    server: FaultyServer, name: str, version: str, request: web.Request, body: bytes
) -> Inference:
    length = int(request.headers.get(LENGTH, len(body)))
    try:
        document = json.loads(body[:length])
        parameters = dict(document.get("parameters") or {})
        inputs, rest = [], body[length:]
        for each in document["inputs"]:
            tensor, rest = _read_input(server, each, rest)
            inputs.append(tensor)
        wanted = [
            Wanted(each["name"], **_wishes(each.get("parameters") or {}))
            for each in document.get("outputs") or ()
        ]
    except ServerError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ServerError("INVALID_ARGUMENT", f"malformed request: {error!r}") from error
    if rest and server._checks("http", "size"):
        raise ServerError("INVALID_ARGUMENT", f"{len(rest)} bytes belong to no input")
    binary = bool(parameters.get("binary_data_output"))
    return Inference(
        name,
        version,
        str(document.get("id") or ""),
        tuple(inputs),
        tuple(wanted),
        parameters,
        binary,
    )


def _wishes(parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "classes": int(parameters.get("classification", 0)),
        "binary": bool(parameters.get("binary_data", False)),
    }


def _read_input(
    server: FaultyServer, document: dict[str, Any], rest: bytes
) -> tuple[Tensor, bytes]:
    name, datatype, shape = document["name"], document["datatype"], tuple(document["shape"])
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ServerError("INVALID_ARGUMENT", f"the shape of input '{name}' is not valid")
    size = (document.get("parameters") or {}).get("binary_data_size")
    if size is not None:
        if "data" in document or size > len(rest):
            raise ServerError(
                "INVALID_ARGUMENT", f"the binary data of input '{name}' are not there"
            )
        return _read_raw(server, "http", name, (datatype, shape), rest[:size]), rest[size:]
    if datatype in {"FP16", "BF16"} or datatype not in {*DTYPES, "BYTES"}:
        raise ServerError("INVALID_ARGUMENT", f"{datatype} cannot be sent as JSON")
    values = _flat(document["data"])
    if len(values) != int(np.prod(shape, dtype=object)) and server._checks("http", "size"):
        raise ServerError("INVALID_ARGUMENT", f"input '{name}' has {len(values)} elements")
    allowed: dict[str, tuple[type, ...]] = {
        "BOOL": (bool,),
        "BYTES": (str,),
        "FP32": (int, float),
        "FP64": (int, float),
    }
    if not all(type(each) in allowed.get(datatype, (int,)) for each in values):
        raise ServerError("INVALID_ARGUMENT", f"an element of input '{name}' is no {datatype}")
    if datatype == "BYTES":
        values = [each.encode() for each in values]
    return Tensor(name, datatype, shape, array(values, datatype)), rest


def _flat(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise TypeError("data is no array")
    return [value for each in data for value in (_flat(each) if isinstance(each, list) else [each])]


# Requests over gRPC.


def _parameters(found: Any) -> dict[str, Any]:
    return {
        key: getattr(value, value.WhichOneof("parameter_choice") or "int64_param")
        for key, value in found.items()
    }


def _read_grpc(server: FaultyServer, request: Any) -> Inference:
    raws = list(request.raw_input_contents)
    typed = [each for each in request.inputs if each.HasField("contents")]
    if raws and typed and not server._checks("grpc", "mixed"):
        raws = []
    if raws and typed:
        raise ServerError("INVALID_ARGUMENT", "raw and typed contents in one request")
    if raws and len(raws) != len(request.inputs):
        raise ServerError(
            "INVALID_ARGUMENT", f"{len(raws)} raw contents for {len(request.inputs)} inputs"
        )
    inputs = []
    for index, each in enumerate(request.inputs):
        kind = (each.datatype, tuple(each.shape))
        if index < len(raws):
            inputs.append(_read_raw(server, "grpc", each.name, kind, raws[index]))
        else:
            inputs.append(_read_typed(server, each, kind))
    wanted = [
        Wanted(each.name, int(_parameters(each.parameters).get("classification", 0)))
        for each in request.outputs
    ]
    return Inference(
        request.model_name,
        request.model_version,
        request.id,
        tuple(inputs),
        tuple(wanted),
        _parameters(request.parameters),
    )


def _read_typed(server: FaultyServer, tensor: Any, kind: tuple[str, tuple[int, ...]]) -> Tensor:
    datatype, shape = kind
    expected = TYPED.get(datatype)
    found = [each.name for each, _ in tensor.contents.ListFields()]
    if expected is None or (
        any(each != expected for each in found) and server._checks("grpc", "field")
    ):
        raise ServerError(
            "INVALID_ARGUMENT", f"input '{tensor.name}' has contents {found} for {datatype}"
        )
    field_name = server._at("grpc", "field", found[0] if found else expected)
    values = list(getattr(tensor.contents, field_name))
    if len(values) != int(np.prod(shape, dtype=object)) and server._checks("grpc", "size"):
        raise ServerError("INVALID_ARGUMENT", f"input '{tensor.name}' has {len(values)} elements")
    try:
        return Tensor(tensor.name, datatype, shape, array(values, datatype))
    except OverflowError as error:
        raise ServerError("INVALID_ARGUMENT", str(error)) from error


# Start and stop.

_UNARY = {
    name: getattr(pb, f"{name}Request")
    for name in (
        "ServerLive",
        "ServerReady",
        "ServerMetadata",
        "ModelReady",
        "ModelMetadata",
        "ModelConfig",
    )
} | {"ModelInfer": pb.ModelInferRequest, "RepositoryIndex": pb.RepositoryIndexRequest}


def _serialized(message: Any) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()


def _unary(server: FaultyServer, method: str, request: Any) -> grpc.RpcMethodHandler:
    async def answer(message: Any, context: Any) -> Any:
        return await server.handle_unary(method, message, context)

    return grpc.unary_unary_rpc_method_handler(answer, request.FromString, _serialized)


@contextmanager
def running() -> Iterator[FaultyServer]:
    """Run a server without a fault on two free ports of the loopback."""
    server = FaultyServer()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        stop = asyncio.run_coroutine_threadsafe(_start(server), loop).result(30)
        try:
            yield server
        finally:
            asyncio.run_coroutine_threadsafe(stop(), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _start(server: FaultyServer) -> Callable[[], Any]:
    application = web.Application(client_max_size=2**26)
    application.router.add_route("*", "/{path:.*}", server.handle_http)
    runner = web.AppRunner(application, shutdown_timeout=0, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.http = "127.0.0.1:{1}".format(*runner.addresses[0])
    handlers = {name: _unary(server, name, request) for name, request in _UNARY.items()}
    handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
        server.handle_stream, pb.ModelInferRequest.FromString, _serialized
    )
    listener = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers)
    listener.add_generic_rpc_handlers((service,))
    server.grpc = f"127.0.0.1:{listener.add_insecure_port('127.0.0.1:0')}"
    await listener.start()

    async def stop() -> None:
        await listener.stop(None)
        await runner.cleanup()

    return stop
