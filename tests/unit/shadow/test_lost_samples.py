"""Calls that a dead process had sampled, and whose results it did not know."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.shadow.lost_samples import with_lost_samples


def family(name: str, *samples: tuple[dict[str, str], float]) -> list[Any]:
    values = [[f"{name}_total", labels, value] for labels, value in samples]
    return [name, "Text.", "counter", values]


RESULTS = {
    "gateway_migration_sampled": (
        "gateway_migration_samples",
        "gateway_migration_skipped",
        "gateway_migration_dropped",
    ),
    "gateway_capture_sampled": ("gateway_capture_calls", "gateway_capture_dropped"),
}
M, N = {"migration": "m"}, {"migration": "n"}


def test_calls_without_a_result_count_as_dropped() -> None:
    """They are counted per migration and for the capture; other metrics are unchanged."""
    other = family("gateway_requests", ({"route": "r"}, 9.0))
    found = with_lost_samples(
        [
            other,
            family("gateway_migration_sampled", (M, 10.0)),
            family("gateway_migration_sampled", (N, 4.0)),
            family("gateway_migration_samples", ({**M, "outcome": "match"}, 5.0)),
            family("gateway_migration_skipped", ({**N, "reason": "arriving"}, 4.0)),
            family("gateway_migration_dropped", ({**M, "reason": "queue"}, 2.0)),
            family("gateway_capture_sampled", ({}, 7.0)),
            family("gateway_capture_calls", ({}, 1.0)),
            family("gateway_capture_dropped"),
        ],
        RESULTS,
        "migration",
    )
    by_name: dict[str, list[Any]] = {}
    for name, _, _, samples in found:
        by_name.setdefault(name, []).extend(samples)
    assert other[3] == by_name["gateway_requests"]
    dropped = "gateway_migration_dropped_total"
    assert [
        [dropped, {**M, "reason": "queue"}, 2.0],
        [dropped, {**M, "reason": "worker_died"}, 3],
    ] == by_name["gateway_migration_dropped"]
    assert [["gateway_capture_dropped_total", {"reason": "worker_died"}, 6]] == by_name[
        "gateway_capture_dropped"
    ]


@pytest.mark.parametrize(
    "metrics",
    [
        [],
        [family("gateway_requests", ({}, 9.0))],
        [
            family("gateway_capture_sampled", ({}, 3.0)),
            family("gateway_capture_calls", ({}, 3.0)),
            family("gateway_capture_dropped"),
        ],
    ],
)
def test_metrics_without_lost_calls_are_unchanged(metrics: list[Any]) -> None:
    """Nothing is recorded or mirrored, or every call has its result."""
    assert metrics == with_lost_samples(metrics, RESULTS, "migration")
