"""All metrics of the migration kit, with their labels and help."""

from typing import Final

from gateway.telemetry.names import Metric

CAPTURE_SAMPLED: Final = Metric("gateway_capture_sampled_total", "counter", "Calls to record.")
CAPTURE_CALLS: Final = Metric("gateway_capture_calls_total", "counter", "Calls that were recorded.")
CAPTURE_BYTES: Final = Metric(
    "gateway_capture_bytes_total", "counter", "Bytes of elements and messages that were recorded."
)
CAPTURE_DROPPED: Final = Metric(
    "gateway_capture_dropped_total",
    "counter",
    "Sampled calls that were not recorded.",
    ("reason",),
)
CAPTURE_UNREAD: Final = Metric(
    "gateway_capture_unread_total",
    "counter",
    "Sampled calls that a server got unread (forwarded), or that the gateway itself refused.",
    ("reason",),
)
CAPTURE_OUTBOX_BYTES: Final = Metric(
    "gateway_capture_outbox_bytes",
    "gauge",
    "Bytes of sampled calls that wait for the shadow process.",
)
CAPTURE_UPLOADS: Final = Metric(
    "gateway_capture_uploads_total",
    "counter",
    "Uploads of sealed files of captures: ok, failed (tried again) or lost (removed before).",
    ("outcome",),
)
CAPTURE_UPLOADS_PENDING: Final = Metric(
    "gateway_capture_uploads_pending",
    "gauge",
    "Sealed files of captures that wait to be uploaded.",
)
MIGRATION_SAMPLED: Final = Metric(
    "gateway_migration_sampled_total",
    "counter",
    "Calls that were chosen for comparison.",
    ("migration",),
)
MIGRATION_SAMPLES: Final = Metric(
    "gateway_migration_samples_total",
    "counter",
    "Calls that were compared.",
    ("migration", "outcome"),
)
MIGRATION_SKIPPED: Final = Metric(
    "gateway_migration_skipped_total",
    "counter",
    "Chosen calls that cannot be compared.",
    ("migration", "reason"),
)
MIGRATION_DROPPED: Final = Metric(
    "gateway_migration_dropped_total",
    "counter",
    "Chosen calls that were lost.",
    ("migration", "reason"),
)
MIGRATION_OUTBOX_BYTES: Final = Metric(
    "gateway_migration_outbox_bytes",
    "gauge",
    "Bytes of chosen calls that wait for the shadow process.",
)
MIGRATION_OUTPUT_MISMATCHES: Final = Metric(
    "gateway_migration_output_mismatches_total",
    "counter",
    "Compared calls in which an output differs. It starts again with the evidence.",
    ("migration", "output"),
)
MIGRATION_NOISE: Final = Metric(
    "gateway_migration_noise_total",
    "counter",
    "Calls that the old target got twice, by whether its replies agree (match or mismatch).",
    ("migration", "outcome"),
)
MIGRATION_LATENCY: Final = Metric(
    "gateway_migration_latency_seconds",
    "gauge",
    "Quantiles of the time of the same calls at the old and at the new target.",
    ("migration", "side", "quantile"),
)
CUTOVER_STEP: Final = Metric(
    "gateway_cutover_step", "gauge", "Step of the cut-over; 0 only mirrors.", ("migration",)
)
CUTOVER_WEIGHT: Final = Metric(
    "gateway_cutover_weight", "gauge", "Percentage of calls to the new target.", ("migration",)
)
CUTOVER_STATE: Final = Metric(
    "gateway_cutover_state", "gauge", "1 for the state it is in.", ("migration", "state")
)
CUTOVER_GUARD: Final = Metric(
    "gateway_cutover_guard",
    "gauge",
    "Whether the guard holds (1), is undecided (0) or trips (-1).",
    ("migration", "guard"),
)
CUTOVER_ROLLBACKS: Final = Metric(
    "gateway_cutover_rollbacks_total",
    "counter",
    "How often all calls went back to the old target.",
    ("migration", "guard"),
)

METRICS: Final[tuple[Metric, ...]] = (
    CAPTURE_SAMPLED,
    CAPTURE_CALLS,
    CAPTURE_BYTES,
    CAPTURE_DROPPED,
    CAPTURE_UNREAD,
    CAPTURE_OUTBOX_BYTES,
    CAPTURE_UPLOADS,
    CAPTURE_UPLOADS_PENDING,
    MIGRATION_SAMPLED,
    MIGRATION_SAMPLES,
    MIGRATION_SKIPPED,
    MIGRATION_DROPPED,
    MIGRATION_OUTBOX_BYTES,
    MIGRATION_OUTPUT_MISMATCHES,
    MIGRATION_NOISE,
    MIGRATION_LATENCY,
    CUTOVER_STEP,
    CUTOVER_WEIGHT,
    CUTOVER_STATE,
    CUTOVER_GUARD,
    CUTOVER_ROLLBACKS,
)
"""All of them, in the order of the documentation."""
