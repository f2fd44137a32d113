"""Metrics of the requests to upstreams, and of the sizes of messages.

They are counted on the path of every call, without a lock: see `call_metrics`.
"""

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.ir.calls import InferRequest
from gateway.telemetry import names
from gateway.telemetry.call_path import INFERENCES, CallPath
from gateway.telemetry.families import counter_family, in_pieces
from gateway.telemetry.log.call_log import OK

BOUNDS_S: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)
"""Upper bounds of the buckets, in seconds."""


class EndpointAttempts:
    """The attempts of one endpoint.

    Args:
        endpoint: Its name, for the path of each call.

    Attributes:
        inferred: Inferences that succeeded, nearly all of the attempts.
        seconds: Time of the attempts of inferences that are no streams.
    """

    __slots__ = ("_others", "_seconds", "endpoint", "inferred", "seconds")

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self._others: defaultdict[tuple[type, str], int] = defaultdict(int)
        self._seconds: defaultdict[type, float] = defaultdict(float)
        self.inferred = 0
        self.seconds = 0.0

    @property
    def counts(self) -> dict[tuple[type, str], int]:
        """The attempts by the type of the call and the code, those that occurred."""
        found = self._others.copy()
        if self.inferred:
            found[InferRequest, OK] += self.inferred
        return found

    @property
    def times_s(self) -> dict[type, float]:
        """The time of attempts by the type of the call, in seconds; of those that occurred."""
        found = dict(self._seconds)
        if self.seconds:
            found[InferRequest] = self.seconds
        return found

    @property
    def mean_s(self) -> float:
        """Mean time of an inference, in seconds; 0 before the first. Probes are quicker."""
        count = sum(
            found for (kind, _), found in self.counts.items() if kind.__name__ in INFERENCES
        )
        times = (each for kind, each in self.times_s.items() if kind.__name__ in INFERENCES)
        return sum(times) / count if count else 0.0

    def record(
        self,
        kind: type,
        path: CallPath | None,
        seconds: float,
        code: str,
        *,
        is_received: bool = True,
    ) -> None:
        """Count an attempt.

        Args:
            kind: Type of the call.
            path: Of the client's call; None for a call of the gateway itself, or for a batch.
            seconds: From the request to the response.
            code: "ok", or the value of the error's code.
            is_received: Whether the upstream may have received the call.
        """
        self._others[kind, code] += 1
        if kind is InferRequest:
            self.seconds += seconds
        else:
            self._seconds[kind] += seconds
        if path is not None:
            path.endpoint = self.endpoint
            path.sent(kind, is_received=is_received)
            path.upstream_s += seconds


class AttemptMetrics(Collector):
    """Counts the attempts of all endpoints."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.endpoints: dict[tuple[str, str], EndpointAttempts] = {}
        registry.register(self)

    def of(self, upstream: str, endpoint: str) -> EndpointAttempts:
        """Return the counter of one endpoint."""
        key = (upstream, endpoint)
        if key not in self.endpoints:
            self.endpoints[key] = EndpointAttempts(endpoint)
        return self.endpoints[key]

    def forget(self, upstream: str, endpoint: str) -> None:
        """Remove the counter of an endpoint that was removed."""
        self.endpoints.pop((upstream, endpoint), None)

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        found = list(self.endpoints.items())
        yield from in_pieces(partial(counter_family, names.UPSTREAM_ATTEMPTS), found, _add_counts)
        yield from in_pieces(
            partial(counter_family, names.UPSTREAM_ATTEMPT_SECONDS), found, _add_times
        )


def _add_counts(
    family: CounterMetricFamily, series: tuple[tuple[str, str], EndpointAttempts]
) -> None:
    key, attempts = series
    for (kind, code), count in attempts.counts.items():
        family.add_metric((*key, kind.__name__, code), count)


def _add_times(
    family: CounterMetricFamily, series: tuple[tuple[str, str], EndpointAttempts]
) -> None:
    key, attempts = series
    for kind, spent_s in attempts.times_s.items():
        family.add_metric((*key, kind.__name__), spent_s)


class ByteCounter:
    """The bytes of the messages of one protocol on one listener.

    Attributes:
        received: Bytes of requests.
        sent: Bytes of responses.
    """

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0

    def count(self, request: Any = None, response: Any = None) -> None:
        """Count a wire request, or a response, or both."""
        if request is not None:
            self.received += request.size_bytes
        if response is not None:
            self.sent += response.size_bytes


class ByteMetrics(Collector):
    """Counts the bytes of messages, by listener and protocol."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters: dict[tuple[str, str], ByteCounter] = {}
        registry.register(self)

    def of(self, listener: str, protocol: str) -> ByteCounter:
        """Return the counter of a protocol on a listener."""
        return self._counters.setdefault((listener, protocol), ByteCounter())

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        received = counter_family(names.RECEIVED_BYTES)
        sent = counter_family(names.SENT_BYTES)
        for key, counter in self._counters.copy().items():
            received.add_metric(key, counter.received)
            sent.add_metric(key, counter.sent)
        yield received
        yield sent
