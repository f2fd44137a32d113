"""Metric: a metric with its labels and help, and all metrics of the core in one table.

Whoever publishes a metric takes its name from here.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

MetricKind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric as it is published.

    Attributes:
        name: The whole name; that of a counter ends in `_total`.
        kind: "counter", "gauge" or "histogram".
        help: One sentence.
        labels: The names of its labels.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


class MetricCell(Protocol):
    """One series of a metric: a counter has `inc`, a gauge `set`, a histogram `observe`."""

    def inc(self, amount: float = 1, /) -> None:
        """Add to a counter or a gauge."""

    def set(self, value: float, /) -> None:
        """Set a gauge."""

    def observe(self, amount: float, /) -> None:
        """Add a value to a histogram."""
