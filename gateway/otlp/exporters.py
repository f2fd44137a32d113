"""The SDK's exporters and processors, as the variables `OTEL_*` configure them.

The SDK reads most variables itself: endpoints, headers, timeouts, limits, the sampler, the sizes of
batches. Two it reads only for programs that it starts, so they are read here: the exporter of each
signal, and the protocol of OTLP.
"""

import os
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any, Final, Literal

from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from gateway import __version__

Signal = Literal["traces", "metrics", "logs"]

SERVICE: Final = "tensor-gateway"
_PROTOCOLS: Final = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


def exporters(signal: Signal) -> list[Any]:
    """Return the exporters of a signal; `OTEL_TRACES_EXPORTER=none` and the like mean none.

    Raises:
        ValueError: A variable names an exporter or a protocol that is not available.
    """
    return [_exporter(signal, name) for name in _exporter_names(signal)]


def resource() -> Resource:
    """Return the description of this process: `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME`.

    The service has the name "tensor-gateway" by default. The SDK adds an id of the process.
    """
    found = Resource.create()
    own: dict[str, str] = {}
    if str(found.attributes["service.name"]).startswith("unknown_service"):
        own["service.name"] = SERVICE
    if "service.version" not in found.attributes:
        own["service.version"] = __version__
    return found.merge(Resource(own))


def tracer_provider(sampling: float | None) -> TracerProvider:
    """Return a provider of tracers that exports in the background.

    Args:
        sampling: Fraction of the traces that begin here; None for `OTEL_TRACES_SAMPLER`. A caller
            that sends `traceparent` decides about its own trace.

    Raises:
        ValueError: A variable names an exporter or a protocol that is not available.
    """
    sampler = None if sampling is None else ParentBased(TraceIdRatioBased(sampling))
    provider = TracerProvider(sampler=sampler, resource=resource(), shutdown_on_exit=False)
    for exporter in exporters("traces"):
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def logger_provider() -> LoggerProvider:
    """Return a provider of loggers that exports in the background.

    Raises:
        ValueError: A variable names an exporter or a protocol that is not available.
    """
    provider = LoggerProvider(resource=resource(), shutdown_on_exit=False)
    for exporter in exporters("logs"):
        provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    return provider


def _exporter_names(signal: Signal) -> Iterator[str]:
    """Yield the entry points of the exporters that `OTEL_<SIGNAL>_EXPORTER` names."""
    for name in os.environ.get(f"OTEL_{signal.upper()}_EXPORTER", "otlp").split(","):
        found = name.strip()
        if found == "otlp":
            yield _otlp_name(signal)
        elif found not in {"", "none"}:
            yield found


def _otlp_name(signal: Signal) -> str:
    general = "OTEL_EXPORTER_OTLP_PROTOCOL"
    variable = f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL"
    variable = variable if variable in os.environ else general
    protocol = os.environ.get(variable, "").strip() or "grpc"
    if protocol not in _PROTOCOLS:
        raise ValueError(f"{variable} is {protocol!r}; expected {' or '.join(_PROTOCOLS)}")
    return _PROTOCOLS[protocol]


def _exporter(signal: Signal, name: str) -> Any:
    group = f"opentelemetry_{signal}_exporter"
    found = entry_points(group=group)
    if name not in found.names:
        raise ValueError(
            f"no exporter {name!r} of {signal} is installed; expected one of "
            f"{', '.join(sorted(found.names))}"
        )
    return found[name].load()()
