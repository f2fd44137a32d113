"""The metrics of the shadow process, with their labels and help."""

from typing import Final

from gateway.telemetry.names import Metric

SHADOW_UP: Final = Metric(
    "gateway_shadow_up", "gauge", "Whether the shadow process runs (1) or not (0)."
)
SHADOW_RESTARTS: Final = Metric(
    "gateway_shadow_restarts_total", "counter", "Restarts of the shadow process."
)
SHADOW_LOG_LINES_LOST: Final = Metric(
    "gateway_shadow_log_lines_lost_total",
    "counter",
    "Lines of the log of the shadow process that were lost.",
    ("reason",),
)

METRICS: Final[tuple[Metric, ...]] = (SHADOW_UP, SHADOW_RESTARTS, SHADOW_LOG_LINES_LOST)
"""All of them, in the order of the documentation."""
