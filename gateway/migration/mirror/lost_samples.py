"""The sampled calls of a serving process that died before it knew what became of them.

Its last metrics count them as sampled only. The supervisor counts them as dropped, so that the sum
of all results is that of the sampled calls again.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from gateway.migration import names
from gateway.telemetry.aggregation import Snapshot

_REASON: Final = "worker_died"
_RESULTS: Final = {
    names.MIGRATION_SAMPLED.family: (
        names.MIGRATION_SAMPLES.family,
        names.MIGRATION_SKIPPED.family,
        names.MIGRATION_DROPPED.family,
    ),
    names.CAPTURE_SAMPLED.family: (names.CAPTURE_CALLS.family, names.CAPTURE_DROPPED.family),
    names.EVENTS_SAMPLED.family: (names.EVENTS_DELIVERED.family, names.EVENTS_DROPPED.family),
}
"""The counters of sampled calls, and those of their results; the last one is that of lost calls."""

_COUNTED: Final = frozenset(each for one, others in _RESULTS.items() for each in (one, *others))
_OWNERS: Final = frozenset({"migration", "sink"})
"""The labels that name whose samples they are."""

_Labels = tuple[tuple[str, str], ...]


def with_lost_samples(metrics: Snapshot) -> Snapshot:
    """Return the last metrics of a process that has died, with its calls in flight as dropped."""
    families: dict[str, list[Any]] = {}  # the samples of all pieces
    for name, _, _, samples, *_ in metrics:
        if name in _COUNTED:
            families.setdefault(name, []).extend(samples)
    added: dict[str, list[Any]] = {}
    for sampled, results in _RESULTS.items():
        counts = _counts(sampled, families)
        for result in results:
            counts.subtract(_counts(result, families))
        lost = {labels: count for labels, count in counts.items() if count > 0}
        if lost:
            added[results[-1]] = [
                [f"{results[-1]}_total", {**dict(labels), "reason": _REASON}, count]
                for labels, count in lost.items()
            ]
    return [
        *metrics,
        *([name, text, kind, added.pop(name)] for name, text, kind, *_ in metrics if name in added),
    ]


def _counts(family: str, families: Mapping[str, list[Any]]) -> Counter[_Labels]:
    """Return a counter by its migration or sink; the labels of a capture are none."""
    found: Counter[_Labels] = Counter()
    for name, labels, value, *_ in families.get(family, ()):
        if name == f"{family}_total":
            found[tuple((key, each) for key, each in labels.items() if key in _OWNERS)] += int(
                value
            )
    return found
