"""The attributes of spans, by OpenTelemetry's semantic conventions.

Names that begin with `gateway.` are ours. Attributes hold what log lines hold: never a payload, and
no header but the request id and the `user-agent`.

Source: OpenTelemetry semantic conventions, "RPC", "HTTP" and "Generative AI".
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from gateway.api.protocol import Codec
from gateway.ir.calls import Call, StreamInferRequest
from gateway.ir.context import Client
from gateway.ir.errors import Cancelled, ErrorCode, GatewayError, InternalError
from gateway.ir.identity import ANONYMOUS
from gateway.settings.units import Url
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.log.call_log import code_of
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus
from gateway.wire.http import HttpRequest, HttpResponse

Attributes = dict[str, str | int | float]

_NAME_LENGTH: Final = 128
_CANCELLED: Final = ErrorCode.CANCELLED.value

CLIENT_FAULTS: Final = frozenset(
    code.value
    for code in (
        ErrorCode.INVALID_ARGUMENT,
        ErrorCode.NOT_FOUND,
        ErrorCode.TOO_LARGE,
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.FORBIDDEN,
        ErrorCode.QUOTA_EXCEEDED,
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
            "gateway.client_name": _client_name(context.client),
            "user_agent.original": context.client.agent,
            **model_attributes(call),
            **({} if origin is None else _wire_attributes(origin.wire, call)),
        }
    )


def _client_name(client: Client) -> str:
    """Return the name of a client that sent a credential; "" for others."""
    return "" if client.identity is ANONYMOUS else client.identity.name


def path_attributes(path: CallPath, kind: str) -> Attributes:
    """Return what is known of a call of *kind* when it ends."""
    return _without_empty(
        {
            "gateway.route": path.route,
            "gateway.target": path.target,
            "gateway.endpoint": path.endpoint,
            "gateway.attempts": path.attempts_of(kind),
        }
    )


def endpoint_attributes(upstream: str, url: Url) -> Attributes:
    """Return the attributes of every request to one endpoint."""
    system = {"rpc.system.name": "grpc"} if url.carrier == "grpc" else {}
    return _without_empty(
        {
            "gateway.upstream": upstream,
            "gateway.protocol": f"{url.protocol}.{url.carrier}",
            "server.address": url.host or url.socket,
            "server.port": url.port or 0,
            **system,
        }
    )


def rejection_status(error: GatewayError, codec: Codec[Any, Any] | None) -> Attributes:
    """Return the status of the response to a request that reached no service; {} for none.

    Args:
        error: Why it was rejected.
        codec: It writes the response; None if the transport does.
    """
    status = error.wire_status
    if status is None:
        return {} if codec is None else status_attributes(None, error, codec)
    return _grpc_status(status) if isinstance(status, GrpcStatus) else _http_status(status)


def status_attributes(
    call: Call[Any] | None, error: BaseException | None, codec: Codec[Any, Any]
) -> Attributes:
    """Return the status of the response to a call, as its codec writes it; {} for no status.

    Args:
        call: What was called; None for a request that could not be decoded.
        error: What it failed with; None for success.
        codec: It writes the response.
    """
    origin = None if call is None else call.context.origin
    if error is None:
        if origin is not None and isinstance(origin.wire, HttpRequest):
            return _http_status(HTTPStatus.OK.value)
        if origin is not None and isinstance(origin.wire, GrpcRequest):
            return _grpc_status(GrpcStatus.OK)
        return {}
    if not isinstance(error, GatewayError):
        error = Cancelled("the client left") if code_of(error) == _CANCELLED else InternalError("")
    response = codec.encode_error(call, error)
    if isinstance(response, GrpcResponse):
        return _grpc_status(response.status)
    if not isinstance(response, HttpResponse) or isinstance(call, StreamInferRequest):
        return {}  # a stream may have begun with another status
    return _http_status(response.status)


def rejection_attributes(listener: str, protocol: str, error: GatewayError) -> Attributes:
    """Return what is known of a request that reached no service."""
    client = error.client
    return _without_empty(
        {
            "gateway.listener": listener,
            "gateway.protocol": protocol,
            "gateway.request_id": error.request_id,
            "gateway.limit": error.limit or "",
            "client.address": "" if client is None else client.address,
            "user_agent.original": "" if client is None else client.agent,
            **error_attributes(error),
        }
    )


def _http_status(status: int) -> Attributes:
    return {"http.response.status_code": status}


def _grpc_status(status: GrpcStatus) -> Attributes:
    # The second name is the older one, which many backends read.
    return {"rpc.response.status_code": status.name, "rpc.grpc.status_code": status.value}


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
