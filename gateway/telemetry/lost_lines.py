"""LostLines: the metric of the log lines of a process that were lost."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class LostLines(Collector):
    """Publishes the number of lost lines.

    Args:
        outputs: By the name of the output, what returns the numbers by reason.
    """

    def __init__(self, outputs: Mapping[str, Callable[[], Mapping[str, int]]]) -> None:
        self._outputs = outputs

    def collect(self) -> Iterable[Metric]:
        """Return the metric."""
        metric = CounterMetricFamily(
            "gateway_log_lines_lost",
            "Lines of the log that were lost, by output and reason: buffer_full or write_failed.",
            labels=("output", "reason"),
        )
        for output, read in self._outputs.items():
            for reason, count in read().items():
                metric.add_metric((output, reason), count)
        yield metric
