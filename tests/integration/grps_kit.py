"""Clients of grps on http.client and grpcio, which know only the schema."""

from __future__ import annotations

import json
from contextlib import closing
from http.client import HTTPConnection
from typing import Any, Self

import grpc

from gateway.schema import grps_pb2 as pb

SERVICE = "/grps.protos.v1.GrpsService/"
TIMEOUT_S = 60.0


def post(
    address: str, path: str, body: object, kind: str = "application/json", method: str = "POST"
) -> tuple[int, str, bytes]:
    """Return status, content type and body."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with closing(HTTPConnection(address, timeout=TIMEOUT_S)) as connection:
        connection.request(method, path, data, {"Content-Type": kind})
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type", ""), response.read()


def values(text: bytes) -> list[dict[str, Any]]:
    """Return the JSON values of a stream, one after another."""
    decoder, found, rest = json.JSONDecoder(), [], text.decode()
    while rest:
        value, end = decoder.raw_decode(rest)
        found.append(value)
        rest = rest[end:]
    return found


class Channel:
    """A gRPC client that knows nothing but the schema."""

    def __init__(self, address: str) -> None:
        # A client that reads slowly reads ahead as far as its window, which grows on a slow machine.
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.http2.lookahead_bytes", 65_536),
            ("grpc.http2.bdp_probe", 0),
        ]
        self._channel = grpc.insecure_channel(address, options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._channel.close()

    def ask(self, method: str, **fields: Any) -> pb.GrpsMessage:
        """Return the response of a unary method."""
        call = self._channel.unary_unary(
            SERVICE + method, pb.GrpsMessage.SerializeToString, pb.GrpsMessage.FromString
        )
        response: pb.GrpsMessage = call(pb.GrpsMessage(**fields), timeout=TIMEOUT_S)
        return response

    def stream(self, **fields: Any) -> Any:
        """Return the responses of PredictStreaming."""
        call = self._channel.unary_stream(
            SERVICE + "PredictStreaming",
            pb.GrpsMessage.SerializeToString,
            pb.GrpsMessage.FromString,
        )
        return call(pb.GrpsMessage(**fields), timeout=TIMEOUT_S)
