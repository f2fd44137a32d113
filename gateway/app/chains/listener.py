"""The layers of a listener."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.api.layer import Calls, Entries, Layer
from gateway.app.chains.rows import for_questions, with_part
from gateway.app.chains.tracing import Spans
from gateway.app.run.process_parts import ProcessParts
from gateway.policies.count_models import CountModels
from gateway.policies.observe import Observe
from gateway.policies.own_form import AskInOwnForm
from gateway.policies.usage_statistics import UsageStatistics
from gateway.routing.server_status import ServerStatusLayer, UnknownModels
from gateway.routing.upstream_queries import RefreshModelIndex
from gateway.service import Service
from gateway.telemetry.usage.model_usage import Usage


@dataclass(frozen=True, slots=True)
class ServedModels:
    """What a service graph knows about the models that it serves.

    Attributes:
        usage: Counts inferences by model; None if no listener reports them.
        is_counting: Whether inferences are counted, because a target counts none itself.
        forget: Forgets what a load or unload may have changed.
    """

    usage: Usage | None
    is_counting: Callable[[], bool]
    forget: Callable[[], None]


def _observe(inner: Entries, process: ProcessParts) -> Service:
    return Observe(
        inner.questions,
        process.record,
        inference=inner.inference,
        plain=inner.plain,
        calls=process.call_log,
        new_path=process.new_path,
        on_call=process.parts.on_call,
    )


def _trace(inner: Entries, spans: Spans) -> Service | None:
    return None if spans.tracing is None else spans.tracing.call(inner.questions)


def _count_usage(inner: Entries, models: ServedModels) -> Service | None:
    if models.usage is None:
        return None
    return UsageStatistics(inner.questions, models.usage, is_counting=models.is_counting)


def _count_models(inner: Entries, process: ProcessParts) -> Service | None:
    counts = process.metrics.model_counts
    return None if counts is None else CountModels(inner.questions, counts)


def _refresh_index(inner: Entries, models: ServedModels) -> Service:
    return RefreshModelIndex(inner.questions, models.forget)


OBSERVE: Final = Layer(
    "Observe",
    "counts, times and logs every call",
    "listener",
    with_part(ProcessParts, _observe),
)
TRACE_CALL: Final = Layer(
    "TraceCall",
    "makes the span of each call, if `telemetry.otlp` has traces",
    "listener",
    with_part(Spans, _trace),
)
OWN_FORM: Final = Layer(
    "AskInOwnForm",
    "sends questions about a model on as they came, to a server of the client's protocol",
    "listener",
    for_questions(AskInOwnForm),
    Calls.QUESTIONS,
)
SERVER_STATUS: Final = Layer(
    "ServerStatusLayer",
    "replies to status calls of TensorRT v1 clients",
    "listener",
    for_questions(ServerStatusLayer),
    Calls.QUESTIONS,
)
UNKNOWN_MODELS: Final = Layer(
    "UnknownModels",
    "tells models that no server has from those that are not ready",
    "listener",
    for_questions(UnknownModels),
    Calls.QUESTIONS,
)
USAGE_STATISTICS: Final = Layer(
    "UsageStatistics",
    "counts calls of each model, if a listener has `statistics` on",
    "listener",
    with_part(ServedModels, _count_usage),
)
COUNT_MODELS: Final = Layer(
    "CountModels",
    "counts inferences by model, if `telemetry.metrics.compat` is set",
    "listener",
    with_part(ProcessParts, _count_models),
)
REFRESH_MODEL_INDEX: Final = Layer(
    "RefreshModelIndex",
    "updates the model index after a load or unload",
    "listener",
    with_part(ServedModels, _refresh_index),
    Calls.QUESTIONS,
)
