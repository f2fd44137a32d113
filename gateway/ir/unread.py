"""Calls whose message nobody here reads: a server gets it as it came, or the gateway refuses it."""

import re
from typing import Any, Final
from urllib.parse import unquote

from gateway.ir.calls import Call, InferResponse, OpaqueCall
from gateway.ir.context import Client, Context, Metadata, ModelRef, Origin
from gateway.ir.errors import SERVER_ERRORS, ErrorCode, GatewayError


def unread_call(
    protocol: str,
    wire: Any,
    client: Client,
    request_id: str,
    model: ModelRef | None = None,
    metadata: Metadata = (),
) -> OpaqueCall:
    """Return the call of a message that no codec has read; its path may name the model."""
    found = _MODEL.search(path_of(wire)) if model is None else None
    model = model if found is None else ModelRef(unquote(found[1]))
    origin = Origin(protocol, wire)
    context = Context(protocol, metadata, request_id, origin=origin, client=client)
    return OpaqueCall(model=model, context=context, message=origin)


_MODEL: Final = re.compile("/(?:models|predictions|explanations)/([^/:]+)")


def is_unread(call: Call[Any], /) -> bool:
    """Return whether a server may get the message of *call*, whose tensors nobody here reads."""
    origin = call.context.origin
    return type(call) is OpaqueCall or (origin is not None and origin.refusal is not None)


def is_unread_reply(reply: InferResponse, /) -> bool:
    """Return whether the client gets a server's response as it came, which nobody here can read."""
    return reply.error is not None and reply.origin is not None and reply.origin.whole != ""


def failure_of(item: InferResponse, /) -> GatewayError | None:
    """Return the error of an item; None where the client gets the item as it came."""
    return None if is_unread_reply(item) else item.error


def message_of(origin: Origin, /) -> Any:
    """Return a message as it came: of an event of a stream, the whole event."""
    return getattr(origin.wire, "whole", origin.wire)


def path_of(wire: Any, /) -> str:
    """Return the path of a request, or its method over gRPC; "" on a byte stream."""
    found: str = getattr(wire, "path", "") or getattr(wire, "method", "")
    return found


def is_refusal(error: BaseException, /) -> bool:
    """Return whether the gateway itself refused a request, whatever a server would have said."""
    if not isinstance(error, GatewayError) or error.code in _OTHERS:
        return False
    # A codec gives an error the request that it refuses, and one of a server the response.
    return error.origin is None or hasattr(error.origin.wire, "method")


_OTHERS: Final = SERVER_ERRORS | {ErrorCode.CANCELLED}
