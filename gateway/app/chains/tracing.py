"""Tracing: builds the layers that make spans; `gateway.otlp.spans` does."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from gateway.api.protocol import Codec
from gateway.ir.calls import Call
from gateway.ir.errors import GatewayError
from gateway.policies.batch.policy import Batch
from gateway.service import Service
from gateway.settings.units import Url

C = TypeVar("C", bound=Call[Any])


class Tracing(Protocol):
    """Builds the layers that make spans; `gateway.otlp.spans` does."""

    def call(self, inner: Service, /) -> Service:
        """Return the layer that makes the span of a client's call."""
        ...

    def attempt(self, upstream: str, url: Url, inner: Service, /) -> Service:
        """Return the layer that makes the span of each request to an endpoint."""
        ...

    def model(self, inner: Service, /) -> Service:
        """Return the layer that makes the span of each call of a model in this process."""
        ...

    def step(self, inner: Service, /) -> Service:
        """Return the layer that makes the span of each call of a pipeline."""
        ...

    def batch(self, *arguments: Any, **options: Any) -> Batch:
        """Return a batch queue that makes a span of each merged call."""
        ...

    def block(
        self, name: str, call: C, attributes: dict[str, str | int | float], /
    ) -> AbstractContextManager[C]:
        """Make the span of a block in a layer; return the call for what is inside."""
        ...

    def with_codec(self, inner: Service, codec: Codec[Any, Any], /) -> Service:
        """Return the layer that tells the span of a call which codec writes its response."""
        ...

    def rejected(
        self, listener: str, protocol: str, error: GatewayError, codec: Codec[Any, Any] | None, /
    ) -> None:
        """Make the span of a request that reached no service."""
        ...


@dataclass(frozen=True, slots=True)
class Spans:
    """What makes the spans of a process; None for no spans."""

    tracing: Tracing | None = None
