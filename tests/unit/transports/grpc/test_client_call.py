"""One call of a gRPC client, without its connection."""

from __future__ import annotations

from unittest import mock

from gateway.transports.grpc.client_call import ClientCall
from gateway.transports.grpc.headers import GrpcResponseHead
from gateway.transports.http2.flood_control import FloodBudget
from gateway.transports.http2.streams import Http2Stream


def test_prefixes_in_frames_of_their_own_are_no_flood() -> None:
    """A server may write the prefix of each token before the token."""
    connection = mock.MagicMock()
    connection.core.flood_budget = budget = FloodBudget()
    connection.core.windows.consume.return_value = False
    call = ClientCall(connection, Http2Stream(1, 0, 65_535, None), 1 << 20, 0, False, None)
    call.on_headers(GrpcResponseHead(200, True, None, "", (), ""), end=False)
    before = budget.remaining
    for _ in range(3000):
        call.on_data(memoryview(b"\0\0\0\0\3"), end=False)
        call.on_data(memoryview(b"abc"), end=False)
    assert before == budget.remaining
    assert 3000 == len(call._messages)
