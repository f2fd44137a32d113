"""The limits on connections: their defaults, and their log lines."""

from __future__ import annotations

import resource

import pytest
from structlog.testing import capture_logs

from gateway.app.build.upstreams import max_connections
from gateway.app.listen.rejection_log import RejectionLog
from gateway.config.models import UpstreamConfig
from gateway.ir.context import Client
from gateway.ir.errors import MalformedMessage, Overloaded
from gateway.telemetry.log.call_log import CallLog
from gateway.telemetry.metrics import Metrics
from gateway.transports.connection_count import ConnectionCount, TooManyConnections
from gateway.transports.net.sockets import max_descriptors, raise_descriptor_limit


@pytest.mark.parametrize(
    ("limit", "per_address", "expected"),
    [(0, 0, (500, 438)), (100, 0, (100, 100)), (0, 7, (500, 7)), (100, 7, (100, 7))],
)
def test_connection_limits_derive_from_descriptors(
    limit: int, per_address: int, expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the descriptors are for connections; one address leaves an eighth to others."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, 1000))
    count = ConnectionCount(limit, per_address)
    entered = 0
    while count.exceeded("a") is None:
        count.enter("a")
        entered += 1
    assert expected[1] == entered
    while count.exceeded(f"b{entered}") is None:
        count.enter(f"b{entered}")
        entered += 1
    assert expected[0] == entered
    assert "connections" == count.exceeded("c")


@pytest.mark.parametrize(("upstreams", "expected"), [(100, 450), (900, 250)])
def test_upstream_connections_reduce_the_client_limit(
    upstreams: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients get half of the rest, and at least a quarter of all descriptors."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, 1000))
    count = ConnectionCount(0, 0, upstreams)
    entered = 0
    while count.exceeded(f"a{entered}") is None:
        count.enter(f"a{entered}")
        entered += 1
    assert expected == entered


def test_upstream_connections_are_counted_per_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address has the limit of its upstream, or a quarter of the descriptors."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, 1000))
    upstreams = {
        "one": {"url": "oip+http://10.0.0.1:1"},
        "two": {
            "urls": ["oip+grpc://10.0.0.1:1", "oip+grpc://10.0.0.2:1"],
            "limits": {"connections": 7},
        },
    }
    configs = [UpstreamConfig.model_validate(each) for each in upstreams.values()]
    assert 250 + 2 * 7 == max_connections(configs)


def test_the_soft_limit_of_descriptors_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised to the hard limit."""
    limits = {"now": (10, 4000)}
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda _, found: limits.update(now=found))
    assert 10 == max_descriptors()
    assert 4000 == raise_descriptor_limit()


def test_refused_connections_are_logged_once_a_second() -> None:
    """The line has the address, the limit and the count; the metric counts each one."""
    metrics = Metrics("1")
    rejections = RejectionLog("main", metrics, CallLog())
    with capture_logs() as logs:
        for _ in range(5):
            refusal = TooManyConnections("too many", "10.0.0.1", "connections")
            rejections.rejected("http", refusal)
    (line,) = logs
    counted = 'gateway_limit_exceeded_total{limit="connections",protocol="http"} 5.0'
    assert counted in metrics.page("")[0].decode()
    assert ("connections refused", "main", "10.0.0.1", "connections", 1) == (
        line["event"],
        line["listener"],
        line["address"],
        line["limit"],
        line["count"],
    )


def test_rejected_requests_are_logged_with_limit_and_id() -> None:
    """The line has the client, the rule, and the request id that the client receives."""
    rejections = RejectionLog("main", Metrics("1"), CallLog())
    limited, broken = Overloaded("busy", limit="requests_in_flight"), MalformedMessage("no JSON")
    limited.client, broken.request_id = Client("10.0.0.1", "curl/8"), "client's own"
    with capture_logs() as logs:
        new = rejections.rejected("http", limited)
        assert "client's own" == rejections.rejected("oip.http", broken)
    usual = {"event": "rejected", "log_level": "warning", "listener": "main"}
    assert [
        {
            **usual,
            "code": "overloaded",
            "limit": "requests_in_flight",
            "error": "busy",
            "protocol": "http",
            "request_id": new,
            "client": "10.0.0.1",
            "agent": "curl/8",
        },
        {
            **usual,
            "code": "invalid_argument",
            "rule": "MalformedMessage",
            "error": "no JSON",
            "protocol": "oip.http",
            "request_id": "client's own",
        },
    ] == logs
