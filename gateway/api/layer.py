"""Layer: a policy, which wraps the services of one chain.

`gateway.app.layers` has the order of the gateway's own layers. Those of installed packages come
where that table says; they are found by entry points of the group `gateway.layers`.
"""

import enum
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from gateway.ir.calls import Call
from gateway.service import Service
from gateway.settings.config_view import ConfigView, Finding
from gateway.settings.setting import Setting
from gateway.telemetry.names import Metric, MetricCell

T = TypeVar("T")
C = TypeVar("C", bound=Call[Any])

Chain = Literal["listener", "route", "target", "upstream", "endpoint", "model", "pipeline"]
"""What a chain of layers belongs to; "model" is a model of the gateway or a shared one."""


class Calls(enum.Enum):
    """The calls that a layer is for; others pass it without a frame.

    INFERENCE is `InferRequest` and `StreamInferRequest`.
    """

    ALL = "all"
    INFERENCE = "inference"
    QUESTIONS = "questions"


class Reads(enum.Enum):
    """What a layer reads of the tensors of requests and replies.

    Protocols may send tensors without names, datatypes and shapes, and elements may still arrive
    when a call begins. The gateway adds what a layer reads before the layer is called, and refuses
    requests for which it cannot.
    """

    NOTHING = "nothing"
    """Nothing, or only what every protocol sends."""
    SHAPES = "shapes"
    """Names, datatypes and shapes."""
    VALUES = "values"
    """Names, datatypes, shapes and elements. A body is received before the layer is called."""


class Entries(NamedTuple):
    """The ways into the inner chain.

    Attributes:
        questions: Handles every call, an inference too.
        inference: Handles an InferRequest, past the layers that do nothing for one.
        plain: Handles an InferRequest that arrived with all names, datatypes, shapes and bytes
            (`Origin.has_bytes`) and requests no outputs by name.
    """

    questions: Service
    inference: Service
    plain: Service


class LayerContext(Protocol):
    """Where a layer is built, and what it may use there."""

    @property
    def name(self) -> str:
        """The name of the listener, route, target, upstream, endpoint, model or pipeline."""

    def setting(self, setting: Setting[T], /) -> T:
        """Return the value here: that of the route, for example, else that of `policies`."""

    def metric(self, metric: Metric, /, **labels: str) -> MetricCell:
        """Return one series of a metric, which is published from now on."""

    def part(self, kind: type[T], /) -> T:
        """Return an object of the process or of the chain by its class.

        Raises:
            LookupError: There is none here.
        """

    def span(self, name: str, call: C, /, **attributes: str | float) -> AbstractContextManager[C]:
        """Make a span of a block, inside that of the call, if `telemetry.otlp` has traces.

        Args:
            name: The name of the span.
            call: The call that the block is about.
            attributes: The attributes of the span.

        Returns:
            A context manager. It returns the call for the inner chain, whose spans are inside.
        """

    def kept(self, source: object, make: Callable[[], T], /) -> T:
        """Return what the layer of the same place had before a reload.

        Args:
            source: What the object depends on; another one than before the reload makes it anew.
            make: Returns a new object.
        """


def no_findings(_config: ConfigView, /) -> Iterator[Finding]:
    """Find nothing wrong."""
    return iter(())


@dataclass(frozen=True, slots=True)
class Layer:
    """A policy.

    Attributes:
        name: The name of its class.
        purpose: A description for `gateway explain --layers`.
        chain: The chain that it belongs to.
        build: Returns the layer around the inner chain; None if it is not configured.
        calls: The calls that it is for.
        settings: Its keys in the configuration file.
        metrics: Its metrics.
        check: Yields what is wrong with its keys, beyond their types.
        needs: What it reads of tensors. The gateway's own layers stand where they know it, so it
            holds for layers of packages.
    """

    name: str
    purpose: str
    chain: Chain
    build: Callable[[Entries, LayerContext], Service | None]
    calls: Calls = Calls.ALL
    settings: tuple[Setting[Any], ...] = ()
    metrics: tuple[Metric, ...] = ()
    check: Callable[[ConfigView], Iterator[Finding]] = no_findings
    needs: Reads = Reads.VALUES
