"""Metrics of what clients may not do."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from gateway.ir.identity import ANONYMOUS, Identity
from gateway.telemetry.access_metrics import AccessMetrics


def test_names_that_are_not_configured_share_one_label() -> None:
    """So tokens with names of their own make no further series."""
    registry = CollectorRegistry()
    metrics = AccessMetrics(registry)
    metrics.allow_clients(["fraud"])
    for name in ("fraud", "corp:alice", "corp:bob"):
        metrics.denied(Identity(name), "inference")
        metrics.quota_refused("day", Identity(name), "enforce")
    metrics.denied(ANONYMOUS, "inference")
    page = generate_latest(registry).decode()
    for client, count in (("fraud", 1), ("_other", 2), ("anonymous", 1)):
        labels = f'client="{client}",operation="inference"'
        assert f"gateway_access_denied_total{{{labels}}} {count}.0" in page
    assert 'gateway_quota_refused_total{client="_other",mode="enforce",quota="day"} 2.0' in page
    assert "corp:" not in page
