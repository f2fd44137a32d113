"""Metrics of the evidence of migrations: outputs that differ, noise, and times at both targets."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from prometheus_client.core import Metric

from gateway.migration import names
from gateway.telemetry.families import counter_family, gauge_family

_QUANTILES: Final = {"p50": "0.5", "p90": "0.9", "p99": "0.99"}


def evidence_metrics(documents: Mapping[str, Mapping[str, Any]]) -> Iterable[Metric]:
    """Yield the metrics of the latest evidence of each migration.

    Args:
        documents: Of `MigrationEvidence.document`, by the name of the migration.
    """
    outputs = counter_family(names.MIGRATION_OUTPUT_MISMATCHES)
    noise = counter_family(names.MIGRATION_NOISE)
    seconds = gauge_family(names.MIGRATION_LATENCY)
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
