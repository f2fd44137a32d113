"""LostLines: the metric of the log lines of a process that were lost."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.telemetry import names
from gateway.telemetry.families import counter_family


class LostLines(Collector):
    """Publishes the number of lost lines.

    Args:
        outputs: By the name of the output, what returns the numbers by reason.
    """

    def __init__(self, outputs: Mapping[str, Callable[[], Mapping[str, int]]]) -> None:
        self._outputs = outputs

    def collect(self) -> Iterable[Metric]:
        """Return the metric."""
        metric = counter_family(names.LOG_LINES_LOST)
        for output, read in self._outputs.items():
            for reason, count in read().items():
                metric.add_metric((output, reason), count)
        yield metric
