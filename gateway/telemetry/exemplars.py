"""Exemplars: for each bucket of a histogram, the latest call that has a trace.

They are shown on the metrics page in the format of OpenMetrics only.
"""

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from prometheus_client.samples import Exemplar

_NONE: Final[Mapping[int, Exemplar]] = MappingProxyType({})


class Exemplars:
    """The exemplars of one metric, by the labels of its histograms.

    Args:
        bounds: Upper bounds of the buckets, in ascending order.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._latest: dict[tuple[str, ...], dict[int, Exemplar]] = {}

    def note(self, labels: tuple[str, ...], value: float, trace_id: str) -> None:
        """Keep the trace of a call for the bucket of *value*."""
        exemplar = Exemplar({"trace_id": trace_id}, value, round(time.time_ns() / 1e9, 3))
        self._latest.setdefault(labels, {})[bisect_left(self._bounds, value)] = exemplar

    def of(self, labels: tuple[str, ...]) -> Mapping[int, Exemplar]:
        """Return the exemplars of a histogram by the place of their bucket."""
        return self._latest.get(labels, _NONE)
