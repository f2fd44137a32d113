"""The attributes of spans, by OpenTelemetry's semantic conventions.

Names that begin with `gateway.` are ours. Attributes hold what log lines hold: never a payload, and
no header but the request id and the `user-agent`.

Source: OpenTelemetry semantic conventions, "RPC", "HTTP" and "Generative AI".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.config.units import Url
from gateway.ir.calls import Call
from gateway.ir.errors import ErrorCode
from gateway.telemetry.call_log import code_of
from gateway.telemetry.call_path import CallPath
from gateway.wire.grpc import GrpcRequest
from gateway.wire.http import HttpRequest

Attributes = dict[str, str | int | float]

_NAME_LENGTH: Final = 128

CLIENT_FAULTS: Final = frozenset(
    code.value
    for code in (
        ErrorCode.INVALID_ARGUMENT,
        ErrorCode.NOT_FOUND,
        ErrorCode.TOO_LARGE,
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.FORBIDDEN,
        ErrorCode.OVERLOADED,
        ErrorCode.CANCELLED,
    )
)
"""Codes that are no error of a server span. Source: "RPC", "Server spans" of gRPC."""


def operation_of(call: Call[Any]) -> str:
    """Return the name of a call's span, such as "Infer resnet"."""
    kind = type(call).__name__.removesuffix("Request")
    model = "" if call.model is None else call.model.name[:_NAME_LENGTH]
    return f"{kind} {model}" if model else kind


def model_attributes(call: Call[Any]) -> Attributes:
    """Return the attributes that name the model."""
    model = call.model
    if model is None:
        return {}
    return _without_empty(
        {"gateway.model.name": model.name, "gateway.model.version": model.version}
    )


def client_attributes(call: Call[Any]) -> Attributes:
    """Return what is known of a client's call when it begins."""
    context = call.context
    origin = context.origin
    return _without_empty(
        {
            "gateway.protocol": context.protocol,
            "gateway.request_id": context.request_id,
            "client.address": context.client.address,
            "user_agent.original": context.client.agent,
            **model_attributes(call),
            **({} if origin is None else _wire_attributes(origin.wire, call)),
        }
    )


def path_attributes(path: CallPath) -> Attributes:
    """Return what is known of a call when it ends."""
    return _without_empty(
        {
            "gateway.route": path.route,
            "gateway.target": path.target,
            "gateway.endpoint": path.endpoint,
            "gateway.attempts": path.attempts,
        }
    )


def endpoint_attributes(upstream: str, url: Url) -> Attributes:
    """Return the attributes of every request to one endpoint."""
    system = {"rpc.system.name": "grpc"} if url.carrier == "grpc" else {}
    return _without_empty(
        {
            "gateway.upstream": upstream,
            "gateway.protocol": f"{url.protocol}.{url.carrier}",
            "server.address": url.host or url.path,
            "server.port": url.port or 0,
            **system,
        }
    )


def error_attributes(error: BaseException) -> Attributes:
    """Return the attributes of a failure."""
    return {"error.type": code_of(error)}


def _wire_attributes(wire: object, call: Call[Any]) -> Mapping[str, str | int]:
    if isinstance(wire, GrpcRequest):
        return {"rpc.system.name": "grpc", "rpc.method": wire.method.removeprefix("/")}
    if not isinstance(wire, HttpRequest):
        return {}
    found: dict[str, str | int] = {
        "http.request.method": wire.method,
        "url.path": wire.path,
        "http.request.body.size": wire.size_bytes,
    }
    if call.model is not None and wire.path.rpartition("/")[2] in {"generate", "generate_stream"}:
        found |= {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.request.model": call.model.name,
        }
    return found


def _without_empty(attributes: Mapping[str, str | int | float]) -> Attributes:
    return {key: value for key, value in attributes.items() if value}
