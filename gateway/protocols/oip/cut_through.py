"""Requests whose binary tensors are still on their way: begun by their heads, and passed on.

Over HTTP the JSON says all that there is to know of the tensors behind it, and its length stands
in a header. Towards an upstream such tensors are the end of a message, over HTTP and over gRPC.
BYTES and BOOL are looked at element by element, so a request with such a one is read whole.

Source: Open Inference Protocol, binary tensor extension; docs/protocols/open-inference.md,
"4. Binary tensors over HTTP".
"""

from __future__ import annotations

from typing import Any

from gateway.ir.calls import Call, InferRequest
from gateway.ir.errors import GatewayError
from gateway.ir.streaming_body import can_cut_through, streaming_body_of
from gateway.protocols.oip.grpc.codec import GrpcCodec
from gateway.protocols.oip.grpc.encode import between
from gateway.protocols.oip.http.codec import HttpCodec
from gateway.protocols.oip.json.binary_tensors import LENGTH_HEADER, NeededWhole, is_length
from gateway.wire.grpc import GrpcRequest
from gateway.wire.http import HttpRequest
from gateway.wire.interleaved_body import InterleavedBody

_LENGTH_KEY = LENGTH_HEADER.lower()
# Longer paths are not remembered, for they cost memory.
_PATH_BYTES = 512


class PassingHttpCodec(HttpCodec):
    """`HttpCodec`, which begins when the JSON of a binary request has come."""

    def early_bytes(self, wire: HttpRequest, /) -> int | None:
        """Return the length of the JSON of an inference request; None for any other.

        What is wrong with a request is for `decode_call` to say, which gets it whole.
        """
        length = wire.headers.get(_LENGTH_KEY)
        if length is None or not is_length(length) or not int(length):
            return None
        if len(wire.path) > _PATH_BYTES:
            return None
        try:
            route = self._remembered(wire.method, wire.path)
        except GatewayError:
            return None
        return int(length) if route.call is InferRequest else None

    def decode_early(self, wire: HttpRequest, /) -> Call[Any] | None:
        """Read the JSON; None where an input must be looked at. Raises as `decode_call`."""
        try:
            return self.decode_call(wire)
        except NeededWhole:
            return None

    def encode_cut_through(self, call: Call[Any], /) -> HttpRequest | None:
        """Write a request that ends in what is still to come; None where it must be whole."""
        if (
            not isinstance(call, InferRequest)
            or not self._dialect.binary
            or not can_cut_through(call)
        ):
            return None
        return self.encode_call(call).with_body_stream(streaming_body_of(call))


class PassingGrpcCodec(GrpcCodec):
    """`GrpcCodec`, which writes a request while its last inputs are on their way."""

    def encode_cut_through(self, call: Call[Any], /) -> GrpcRequest | None:
        """Write a request that ends in what is still to come; None where it must be whole."""
        rest = streaming_body_of(call)
        if rest is None or not isinstance(call, InferRequest) or not can_cut_through(call):
            return None
        wire = self.encode_call(call)
        inserts = between(call.inputs)  # each tensor has a field of its own
        if inserts:
            rest = InterleavedBody(rest, inserts)
        return GrpcRequest(wire.method, wire.message, wire.metadata, wire.deadline, rest)
