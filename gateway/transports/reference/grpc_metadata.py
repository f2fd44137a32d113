"""Statuses and metadata between grpcio's types and those of `wire.grpc`."""

from collections.abc import Iterable

import grpc

from gateway.wire.grpc import GrpcStatus, Metadata

CODE_OF: dict[GrpcStatus, grpc.StatusCode] = {
    GrpcStatus(code.value[0]): code for code in grpc.StatusCode
}
STATUS_OF: dict[grpc.StatusCode, GrpcStatus] = {code: status for status, code in CODE_OF.items()}


def plain_metadata(found: Iterable[tuple[str, str | bytes]] | None) -> Metadata:
    """Return metadata of grpcio as tuples of the type itself, as compiled readers expect them."""
    return tuple([tuple(pair) for pair in found or ()])  # type: ignore[misc]  # pairs
