"""Counting of answered calls: beside the client library's own counters and histogram."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.exposition import generate_latest

from gateway.telemetry.call_metrics import CallMetrics

BOUNDS = (0.001, 0.25, 1.0)
CALL = st.tuples(
    st.tuples(
        st.sampled_from(["r", "s"]),
        st.sampled_from(["m", "n"]),
        st.just("oip.http"),
        st.just("InferRequest"),
        st.sampled_from(["ok", "internal"]),
    ),
    # Exact in binary: sums do not depend on the order of addition.
    st.sampled_from([0.0, 0.001, 0.125, 0.25, 0.5, 1.0, 64.0]),
)


@given(calls=st.lists(CALL, max_size=30))
def test_page_is_that_of_the_library(
    calls: list[tuple[tuple[str, str, str, str, str], float]],
) -> None:
    """The same calls make the same page, buckets at their very bounds included."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the library is half typed
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    answered = CallMetrics(ours, BOUNDS)
    counter = Counter(
        "gateway_requests",
        "Completed calls.",
        ("route", "model", "protocol", "kind", "code"),
        registry=theirs,
    )
    histogram = Histogram(
        "gateway_request_duration_seconds",
        "Time from the decoded call to the complete reply.",
        ("route", "protocol", "kind"),
        buckets=BOUNDS,
        registry=theirs,
    )
    for labels, seconds in calls:
        answered.count(labels, seconds)
        counter.labels(*labels).inc()
        histogram.labels(labels[0], labels[2], labels[3]).observe(seconds)
    assert generate_latest(theirs).splitlines() == generate_latest(ours).splitlines()
