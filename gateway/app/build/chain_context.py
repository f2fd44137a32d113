"""ChainContext: where a chain of layers is built, and what they may use; see `LayerContext`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar, cast

from gateway.api.layer import Layer
from gateway.app.chains.tracing import Spans
from gateway.ir.calls import Call
from gateway.settings.model import Model
from gateway.settings.setting import Place, Setting
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.names import Metric, MetricCell

T = TypeVar("T")
C = TypeVar("C", bound=Call[Any])

Keep = Callable[[str, object, Callable[[], Any]], Any]
"""Returns what a layer of the chain, by its name, keeps over reloads; else a new object."""


def keep_nothing(_layer: str, _source: object, make: Callable[[], Any]) -> Any:
    """Return a new object."""
    return make()


Sections = Mapping[Place, Model | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainContext:
    """What the layers of one chain may use.

    Attributes:
        name: Of the listener, route, target, upstream, endpoint, model or pipeline.
        sections: The sections of the file that hold its keys, by place, the most specific first.
        parts: Objects of the process and the chain, by the class that layers ask for.
        metrics: Publishes the metrics of layers; None for a chain without a gateway.
        keep: Returns what a layer keeps over reloads.
        layer: The name of the layer that is built.
    """

    name: str = ""
    sections: Sections = field(default_factory=dict)
    parts: Mapping[type, object] = field(default_factory=dict)
    metrics: Metrics | None = None
    keep: Keep = keep_nothing
    layer: str = ""

    def of(self, layer: Layer) -> ChainContext:
        """Return the same for one layer."""
        return replace(self, layer=layer.name)

    def with_parts(self, *parts: object) -> ChainContext:
        """Return the same with further parts."""
        return replace(self, parts={**self.parts, **{type(part): part for part in parts}})

    def inside(self, name: str, place: Place, section: Model) -> ChainContext:
        """Return the same for a chain inside this one, which has a section of its own."""

        def keep(layer: str, source: object, make: Callable[[], Any]) -> Any:
            return self.keep(f"{name} {layer}", source, make)

        return replace(self, name=name, sections={place: section, **self.sections}, keep=keep)

    def setting(self, setting: Setting[T], /) -> T:
        """Return the value in the most specific section that has the key."""
        places = setting.places
        return setting.of(*(found for place, found in self.sections.items() if place in places))

    def metric(self, metric: Metric, /, **labels: str) -> MetricCell:
        """Return one series of a metric, which is published from now on.

        Raises:
            LookupError: The chain belongs to no gateway.
        """
        return self.part(Metrics).cell(metric, **labels)

    def part(self, kind: type[T], /) -> T:
        """Return an object of the process or of the chain by its class.

        Raises:
            LookupError: There is none here.
        """
        found = self.metrics if kind is Metrics else self.parts.get(kind)
        if found is None:  # an extended model of the configuration
            found = next((each for each in self.parts.values() if isinstance(each, kind)), None)
        if found is None:
            raise LookupError(f"layer {self.layer!r} needs a {kind.__name__}, which is not here")
        return cast("T", found)

    def span(self, name: str, call: C, /, **attributes: str | float) -> AbstractContextManager[C]:
        """Make a span of a block, inside that of *call*, if there are spans."""
        spans = self.parts.get(Spans)
        tracing = spans.tracing if isinstance(spans, Spans) else None
        return nullcontext(call) if tracing is None else tracing.block(name, call, attributes)

    def kept(self, source: object, make: Callable[[], T], /) -> T:
        """Return what the layer of the same place had before a reload, if *source* is equal."""
        return cast("T", self.keep(self.layer, source, make))


NO_CONTEXT: Final = ChainContext(parts={Spans: Spans()})
"""A context without a gateway."""

NewContext = Callable[[str, Sections, Keep], ChainContext]
"""Returns what the layers of a chain may use: its name, its sections, and what they keep."""


def no_context(name: str, sections: Sections, keep: Keep) -> ChainContext:
    """Return a context without a gateway."""
    return replace(NO_CONTEXT, name=name, sections=sections, keep=keep)
