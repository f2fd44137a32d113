"""The sampled calls of a serving process that died before it knew what became of them.

Its last metrics count them as sampled only. The supervisor counts them as dropped, so that the sum
of all results is that of the sampled calls again.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from gateway.telemetry.aggregation import Snapshot

Results = Mapping[str, tuple[str, ...]]
"""The counters of sampled calls, and those of their results; the last one is that of lost calls."""

_REASON: Final = "worker_died"
_Labels = tuple[tuple[str, str], ...]


def with_lost_samples(metrics: Snapshot, results: Results, owner: str) -> Snapshot:
    """Return the last metrics of a process that has died, with its calls in flight as dropped.

    Args:
        metrics: The last metrics.
        results: The counters whose sums were equal in the end.
        owner: The label that names whose samples they are, where there is one.
    """
    counted = frozenset(each for one, others in results.items() for each in (one, *others))
    families: dict[str, list[Any]] = {}  # the samples of all pieces
    for name, _, _, samples, *_ in metrics:
        if name in counted:
            families.setdefault(name, []).extend(samples)
    added: dict[str, list[Any]] = {}
    for sampled, found in results.items():
        counts = _counts(sampled, families, owner)
        for result in found:
            counts.subtract(_counts(result, families, owner))
        lost = {labels: count for labels, count in counts.items() if count > 0}
        if lost:
            added[found[-1]] = [
                [f"{found[-1]}_total", {**dict(labels), "reason": _REASON}, count]
                for labels, count in lost.items()
            ]
    return [
        *metrics,
        *([name, text, kind, added.pop(name)] for name, text, kind, *_ in metrics if name in added),
    ]


def _counts(family: str, families: Mapping[str, list[Any]], owner: str) -> Counter[_Labels]:
    """Return a counter by its owner; the labels of a capture are none."""
    found: Counter[_Labels] = Counter()
    for name, labels, value, *_ in families.get(family, ()):
        if name == f"{family}_total":
            found[tuple((key, each) for key, each in labels.items() if key == owner)] += int(value)
    return found
