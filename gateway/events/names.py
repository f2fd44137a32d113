"""The metrics of payload events, with their labels and help."""

from typing import Final

from gateway.telemetry.names import Metric

EVENTS_SAMPLED: Final = Metric(
    "gateway_events_sampled_total",
    "counter",
    "Payload events of the calls that were chosen.",
    ("sink",),
)
EVENTS_DELIVERED: Final = Metric(
    "gateway_events_delivered_total", "counter", "Payload events that the sink took.", ("sink",)
)
EVENTS_DROPPED: Final = Metric(
    "gateway_events_dropped_total",
    "counter",
    "Payload events that were lost.",
    ("sink", "reason"),
)
EVENTS_IN_FLIGHT: Final = Metric(
    "gateway_events_in_flight",
    "gauge",
    "Payload events that wait for the sink or are being sent.",
    ("sink",),
)

METRICS: Final[tuple[Metric, ...]] = (
    EVENTS_SAMPLED,
    EVENTS_DELIVERED,
    EVENTS_DROPPED,
    EVENTS_IN_FLIGHT,
)
"""All of them, in the order of the documentation."""
