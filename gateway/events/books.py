"""The books of events: each event that was sampled is delivered, dropped for a reason, or waits."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Literal, get_args

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.events import names
from gateway.telemetry.families import counter_family, gauge_family

DropReason = Literal["rate", "outbox", "refused", "attempts", "worker_died", "shutdown"]

REASONS: Final[tuple[DropReason, ...]] = get_args(DropReason)


class EventBooks:
    """What became of the events of one sink in one serving process.

    Attributes:
        sampled: Events of all calls that were chosen.
        delivered: Events that the sink took.
        dropped: Events that were lost, by reason.
    """

    def __init__(self) -> None:
        self.sampled = 0
        self.delivered = 0
        self.dropped: Counter[str] = Counter()

    @property
    def in_flight(self) -> int:
        """Events that wait or are being sent."""
        return self.sampled - self.delivered - self.dropped.total()


class EventMetrics(Collector):
    """The books of all sinks of a serving process.

    Args:
        books: Returns them by the name of the sink.
    """

    def __init__(self, books: Callable[[], Mapping[str, EventBooks]]) -> None:
        self._books = books

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        sampled, delivered = (
            counter_family(names.EVENTS_SAMPLED),
            counter_family(names.EVENTS_DELIVERED),
        )
        dropped, in_flight = (
            counter_family(names.EVENTS_DROPPED),
            gauge_family(names.EVENTS_IN_FLIGHT),
        )
        for sink, books in self._books().items():
            sampled.add_metric([sink], books.sampled)
            delivered.add_metric([sink], books.delivered)
            for reason in REASONS:
                dropped.add_metric([sink, reason], books.dropped[reason])
            in_flight.add_metric([sink], books.in_flight)
        return sampled, delivered, dropped, in_flight
