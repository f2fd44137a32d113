"""Admission of connections, and the addresses that they count for."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.transports.connection_count import ConnectionCount, client_address, connection_refusal


class Transport:
    def __init__(self, peer: object) -> None:
        self._peer = peer

    def get_extra_info(self, name: str) -> Any:
        return self._peer if name == "peername" else None


@pytest.mark.parametrize(
    ("peer", "address"), [(("10.0.0.1", 5), "10.0.0.1"), (("::1", 5, 0, 0), "::1"), ("", "other")]
)
def test_a_unix_client_counts_for_the_listeners_address(peer: object, address: str) -> None:
    """A TCP client counts for its own address."""
    assert address == client_address(Transport(peer), "other")


def test_a_refusal_names_the_exceeded_limit() -> None:
    """Connections up to the limits are accepted."""
    transport = Transport(None)
    count = ConnectionCount(2, 1)
    assert connection_refusal(count, transport, "a") is None
    count.enter("a")
    refusal = connection_refusal(count, transport, "a")
    assert refusal is not None
    assert "connections_per_address" == refusal.limit
    assert connection_refusal(count, transport, "b") is None
    count.enter("b")
    refusal = connection_refusal(count, transport, "c")
    assert refusal is not None
    assert "connections" == refusal.limit


@pytest.mark.parametrize(("reserve", "limit"), [(False, "descriptors"), (True, None)])
def test_the_last_descriptors_are_reserved(
    reserve: bool, limit: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When descriptors are short, only connections that may use the reserve are accepted."""
    monkeypatch.setattr("gateway.transports.connection_count.descriptors_short", lambda _sock: True)
    refusal = connection_refusal(ConnectionCount(9, 9), Transport(None), "a", reserve=reserve)
    assert limit == (None if refusal is None else refusal.limit)


def test_short_descriptors_are_refused_before_other_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Above another limit the connection would stay open for a while, to read its response."""
    monkeypatch.setattr("gateway.transports.connection_count.descriptors_short", lambda _sock: True)
    count = ConnectionCount(9, 1)
    count.enter("a")
    refusal = connection_refusal(count, Transport(None), "a")
    assert refusal is not None
    assert "descriptors" == refusal.limit
