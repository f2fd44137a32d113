"""What a frontend reads of a request before it is decoded, and how a response gets its id."""

from collections.abc import Callable
from typing import TypeVar

from gateway.ir.context import NO_CLIENT, Client
from gateway.wire.grpc import GrpcRequest
from gateway.wire.heads.metadata import text_metadata
from gateway.wire.http import HttpRequest

Q = TypeVar("Q")
A = TypeVar("A")

ReadRequestId = Callable[[Q], str]
"""Returns the valid request id in a request that may be unreadable otherwise; "" for none."""

AttachHeaders = Callable[[A, str], A]
"""Returns a response with headers of the call with this request id: the id, and its quota."""


def no_request_id(_wire: object) -> str:
    """Return "", for a carrier without request ids."""
    return ""


def without_headers(response: A, _request_id: str) -> A:
    """Return *response* as it is, for a carrier without headers."""
    return response


def metadata_of(wire: object) -> tuple[tuple[str, str], ...]:
    """Return the headers or metadata of *wire*, by which routes choose."""
    if isinstance(wire, HttpRequest):
        return wire.headers.lowered
    if isinstance(wire, GrpcRequest):
        return text_metadata(wire.metadata)
    return ()


def client_of(wire: object) -> Client:
    """Return the client that sent *wire*, as far as its carrier knows it."""
    client: Client = getattr(wire, "client", NO_CLIENT)
    return client
