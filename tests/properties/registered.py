"""Every codec of the registry, and wire messages as values whichever transport carries them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.api.protocol import ProtocolSpec
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.registry import PROTOCOLS, protocol
from gateway.wire.grpc import GrpcRequest, GrpcResponse
from gateway.wire.http import Buffer, Headers, HttpRequest, HttpResponse
from gateway.wire.stream import Frame

CARRIERS = ("http", "grpc", "stream")


@dataclass(frozen=True, slots=True)
class Registered:
    """One codec that can be named in YAML.

    Attributes:
        name: Such as "oip.http".
    """

    name: str
    carrier: str
    spec: ProtocolSpec

    @property
    def binding(self) -> Any:
        """The protocol's binding to the carrier."""
        return getattr(self.spec, self.carrier)

    def make(self, options: Mapping[str, Any]) -> Any:
        """Return the codec with options as they stand in YAML."""
        return self.binding.codec(DEFAULT_LIMITS, self.spec.options(options))


def _registered() -> dict[str, Registered]:
    found = {}
    for name in PROTOCOLS:
        spec = protocol(name)
        for carrier in CARRIERS:
            if getattr(spec, carrier) is not None:
                binding = getattr(spec, carrier)
                codec = binding.codec(DEFAULT_LIMITS, spec.options({})).name
                found[codec] = Registered(codec, carrier, spec)
    return found


REGISTERED = _registered()


def body_of(wire: Any) -> Sequence[Buffer]:
    """Return the body of a wire message as the buffers it has."""
    if isinstance(wire, HttpRequest | HttpResponse):
        return wire.body
    if isinstance(wire, GrpcRequest | GrpcResponse):
        return wire.message
    assert isinstance(wire, Frame)
    return wire.payload


def with_body(wire: Any, body: bytes) -> Any:
    """Return a wire message with another body, as one read-only view."""
    buffers = (memoryview(body),)
    if isinstance(wire, HttpRequest):
        return HttpRequest(wire.method, wire.path, wire.query, wire.headers, buffers, wire.deadline)
    if isinstance(wire, HttpResponse):
        return HttpResponse(wire.status, wire.headers, buffers)
    if isinstance(wire, GrpcRequest):
        return GrpcRequest(wire.method, buffers, wire.metadata, wire.deadline)
    if isinstance(wire, GrpcResponse):
        return GrpcResponse(buffers, wire.status, wire.details, wire.metadata)
    assert isinstance(wire, Frame)
    return Frame(buffers, wire.correlation, wire.deadline)


def with_pairs(wire: Any, pairs: Sequence[tuple[str, Any]]) -> Any:
    """Return a wire message with other headers or metadata; a frame has none."""
    if isinstance(wire, HttpRequest):
        return HttpRequest(
            wire.method, wire.path, wire.query, Headers(pairs), wire.body, wire.deadline
        )
    if isinstance(wire, HttpResponse):
        return HttpResponse(wire.status, Headers(pairs), wire.body)
    if isinstance(wire, GrpcRequest):
        return GrpcRequest(wire.method, wire.message, tuple(pairs), wire.deadline)
    if isinstance(wire, GrpcResponse):
        return GrpcResponse(wire.message, wire.status, wire.details, tuple(pairs))
    return wire


def pairs_of(wire: Any) -> list[tuple[str, Any]]:
    """Return the headers or metadata of a wire message."""
    if isinstance(wire, HttpRequest | HttpResponse):
        return list(wire.headers.pairs)
    return list(getattr(wire, "metadata", ()))


def arrived(wire: Any) -> Any:
    """Return a wire message as the other end sees it: its body in one fresh buffer."""
    return with_body(wire, b"".join(body_of(wire)))
