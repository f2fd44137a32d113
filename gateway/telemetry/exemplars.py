"""Exemplars: for each bucket of a histogram, the latest call that has a trace.

They are shown on the metrics page in the format of OpenMetrics only.
"""

import time
from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client.samples import Exemplar

Bucket = tuple[str, float] | tuple[str, float, Exemplar]


class Exemplars:
    """The exemplars of one metric, by the labels of its histograms.

    Args:
        bounds: Upper bounds of the buckets, in ascending order.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._latest: dict[tuple[tuple[str, ...], int], Exemplar] = {}

    def note(self, labels: tuple[str, ...], value: float, trace_id: str) -> None:
        """Keep the trace of a call for the bucket of *value*."""
        exemplar = Exemplar({"trace_id": trace_id}, value, round(time.time_ns() / 1e9, 3))
        self._latest[labels, bisect_left(self._bounds, value)] = exemplar

    def attach(
        self, labels: tuple[str, ...], buckets: Sequence[tuple[str, float]]
    ) -> Sequence[Bucket]:
        """Return *buckets*, each with its exemplar if there is one."""
        if not self._latest:
            return buckets
        found = [self._latest.get((labels, place)) for place in range(len(buckets))]
        return [
            bucket if exemplar is None else (*bucket, exemplar)
            for bucket, exemplar in zip(buckets, found, strict=True)
        ]
