"""Requests for Triton as they are on the wire, over HTTP and gRPC, and what a server replies.

`triton_probes` has the table of those that are sent.
"""

from __future__ import annotations

import http.client
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from gateway.schema import open_inference_pb2 as pb

Outcome = tuple[Any, Any]
"""Status and reply: of HTTP, or of gRPC by its name."""

_TIMEOUT_S = 30.0
_SERVICE = "/inference.GRPCInferenceService/"


@dataclass(frozen=True)
class Http:
    """A request over HTTP; *body* is JSON or bytes."""

    method: str
    path: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def ask(self, addresses: tuple[str, str]) -> Outcome:
        """Return the status, and the reply as JSON, text or a list of events."""
        connection = http.client.HTTPConnection(addresses[0], timeout=_TIMEOUT_S)
        body = self.body
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        try:
            connection.request(self.method, self.path, body, dict(self.headers))
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        return response.status, _reply_of(
            data, response.getheader("Inference-Header-Content-Length")
        )


def _reply_of(data: bytes, length: str | None) -> Any:
    if length is not None:
        end = int(length)
        return [json.loads(data[:end]), data[end:].hex()]
    text = data.decode("utf-8", "replace")
    if text.startswith("data: "):
        return [_parsed(each.removeprefix("data: ")) for each in text.split("\n\n") if each]
    return _parsed(text)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@dataclass(frozen=True)
class Grpc:
    """A call over gRPC: one message, or those of a stream."""

    method: str
    request: Any
    reply: Any
    more: tuple[Any, ...] = ()
    stream: bool = False

    def ask(self, addresses: tuple[str, str]) -> Outcome:
        """Return the status by name, and the reply, or the text of the error."""
        with grpc.insecure_channel(addresses[1]) as channel:
            kind = channel.stream_stream if self.stream else channel.unary_unary
            call = kind(
                _SERVICE + self.method,
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=self.reply.FromString,
            )
            try:
                if self.stream:
                    messages = iter((self.request, *self.more))
                    return "OK", [_as_document(each) for each in call(messages, timeout=_TIMEOUT_S)]
                return "OK", _as_document(call(self.request, timeout=_TIMEOUT_S))
            except grpc.RpcError as error:
                return error.code().name, error.details()


def _as_document(message: Any) -> Any:
    return MessageToDict(message, preserving_proto_field_name=True)


Probe = Http | Grpc


def tensor(
    name: str = "INPUT0", datatype: str = "INT32", data: Any = (1, 2, 3), **more: Any
) -> dict[str, Any]:
    """Return an input of a JSON request."""
    return {"name": name, "datatype": datatype, "shape": [len(data)], "data": list(data), **more}


def infer(model: str, *inputs: dict[str, Any], path: str = "infer", **more: Any) -> Http:
    """Return a JSON inference."""
    return Http("POST", f"/v2/models/{model}/{path}", {"inputs": list(inputs), **more})


SUMS = tuple(tensor(f"INPUT{n}", data=range(16), shape=[1, 16]) for n in (0, 1))


def message(model: str, *inputs: tuple[str, str, list[int], bytes | None], **more: Any) -> Any:
    """Return a ModelInferRequest with raw inputs; one whose data is None has none."""
    parameters = more.pop("parameters", {})
    outputs = more.pop("outputs", ())
    request = pb.ModelInferRequest(model_name=model, **more)
    for name, datatype, shape, data in inputs:
        request.inputs.add(name=name, datatype=datatype, shape=shape)
        if data is not None:
            request.raw_input_contents.append(data)
    for key, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(request.parameters[key], kind, value)
    for output in outputs:
        request.outputs.add(name=output)
    return request


def unary(model: str, *inputs: tuple[str, str, list[int], bytes | None], **more: Any) -> Grpc:
    """Return an inference over gRPC."""
    return Grpc("ModelInfer", message(model, *inputs, **more), pb.ModelInferResponse)


def streamed(*messages: Any) -> Grpc:
    """Return a stream of inferences over gRPC."""
    first, *others = messages
    return Grpc("ModelStreamInfer", first, pb.ModelStreamInferResponse, tuple(others), stream=True)


THREE = ("INPUT0", "INT32", [3], struct.pack("<3i", 1, 2, 3))
SUM_INPUTS = tuple((f"INPUT{n}", "INT32", [1, 16], struct.pack("<16i", *range(16))) for n in (0, 1))


def ints(name: str, *values: int) -> tuple[str, str, list[int], bytes]:
    """Return a raw INT32 input of rank 1."""
    return name, "INT32", [len(values)], struct.pack(f"<{len(values)}i", *values)


def sequence(value: int, **parameters: Any) -> Any:
    """Return one request of a sequence."""
    data = ("INPUT", "INT32", [1, 1], struct.pack("<i", value))
    return message("sequence_sum", data, parameters=parameters)
