"""Metrics of the evidence of migrations: outputs that differ, noise, and times at both targets."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_QUANTILES: Final = {"p50": "0.5", "p90": "0.9", "p99": "0.99"}


def evidence_metrics(documents: Mapping[str, Mapping[str, Any]]) -> Iterable[Metric]:
    """Yield the metrics of the latest evidence of each migration.

    Args:
        documents: Of `MigrationEvidence.document`, by the name of the migration.
    """
    outputs = CounterMetricFamily(
        "gateway_migration_output_mismatches",
        "Compared calls in which an output differs. It starts again with the evidence.",
        labels=("migration", "output"),
    )
    noise = CounterMetricFamily(
        "gateway_migration_noise",
        "Calls that the old target got twice, by whether its replies agree (match or mismatch).",
        labels=("migration", "outcome"),
    )
    seconds = GaugeMetricFamily(
        "gateway_migration_latency_seconds",
        "Quantiles of the time of the same calls at the old and at the new target.",
        labels=("migration", "side", "quantile"),
    )
    for name, document in documents.items():
        for output in document["outputs"]:
            outputs.add_metric((name, output["name"]), output["mismatched"])
        found = document["noise"]
        if found is not None:
            noise.add_metric((name, "mismatch"), found["mismatched"])
            noise.add_metric((name, "match"), found["compared"] - found["mismatched"])
        for side in ("old", "new"):
            for key, quantile in _QUANTILES.items():
                value = document["latency"][side][key]
                if value is not None:
                    seconds.add_metric((name, side, quantile), value)
    yield from (outputs, noise, seconds)
