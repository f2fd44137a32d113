"""The layers of a listener."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.api.layer import Calls, Entries, Layer
from gateway.api.tap import CountCall
from gateway.app.chains.rows import for_questions, with_part
from gateway.app.chains.tracing import Wrap
from gateway.policies.limits.shed_load import ShedLoad
from gateway.policies.observe import Observe, Recorder
from gateway.policies.shared_memory.policy import SharedMemory, SharedMemoryMode
from gateway.policies.usage_statistics import UsageStatistics
from gateway.routing.server_status import ServerStatusLayer, UnknownModels
from gateway.routing.upstream_queries import RefreshModelIndex
from gateway.service import Service
from gateway.telemetry.call_log import CallLog
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.model_usage import Usage


@dataclass(frozen=True, slots=True)
class ListenerParts:
    """Parameters of the chain of a listener."""

    record: Recorder
    calls: CallLog | None
    usage: Usage | None
    is_counting: Callable[[], bool]
    forget: Callable[[], None]
    memory: SharedMemoryMode
    shed: Callable[[Service], ShedLoad] | None = None
    new_path: Callable[..., CallPath] = CallPath
    on_call: CountCall | None = None
    trace: Wrap | None = None


def _observe(inner: Entries, at: ListenerParts) -> Service:
    return Observe(
        inner.questions,
        at.record,
        inference=inner.inference,
        calls=at.calls,
        new_path=at.new_path,
        on_call=at.on_call,
    )


def _trace(inner: Entries, at: ListenerParts) -> Service | None:
    return None if at.trace is None else at.trace(inner.questions)


def _shed(inner: Entries, at: ListenerParts) -> Service | None:
    return None if at.shed is None else at.shed(inner.questions)


def _count_usage(inner: Entries, at: ListenerParts) -> Service | None:
    if at.usage is None:
        return None
    return UsageStatistics(inner.questions, at.usage, is_counting=at.is_counting)


def _refresh_index(inner: Entries, at: ListenerParts) -> Service:
    return RefreshModelIndex(inner.questions, at.forget)


def _share_memory(inner: Entries, at: ListenerParts) -> Service:
    return SharedMemory(inner.questions, at.memory, inference=inner.inference)


OBSERVE: Final = Layer(
    "Observe",
    "counts, times and logs every call",
    "listener",
    with_part(ListenerParts, _observe),
)
TRACE_CALL: Final = Layer(
    "TraceCall",
    "makes the span of each call, if `telemetry.otlp` has traces",
    "listener",
    with_part(ListenerParts, _trace),
)
SHED_LOAD: Final = Layer(
    "ShedLoad",
    "refuses inferences while the gateway is overloaded, if configured",
    "listener",
    with_part(ListenerParts, _shed),
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
    with_part(ListenerParts, _count_usage),
)
REFRESH_MODEL_INDEX: Final = Layer(
    "RefreshModelIndex",
    "updates the model index after a load or unload",
    "listener",
    with_part(ListenerParts, _refresh_index),
    Calls.QUESTIONS,
)
SHARED_MEMORY: Final = Layer(
    "SharedMemory",
    "rejects, forwards or copies regions of shared memory",
    "listener",
    with_part(ListenerParts, _share_memory),
)
