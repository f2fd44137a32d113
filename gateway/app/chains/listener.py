"""The layers of a listener."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from gateway import registry
from gateway.api.layer import Calls, Entries, Layer, LayerContext
from gateway.app.chains.rows import for_questions, with_part
from gateway.app.chains.tracing import Spans
from gateway.app.run.process_parts import ProcessParts
from gateway.policies.access.authorise import Authorise, ListenerAccess
from gateway.policies.access.external import AUTHORISER, AskAuthoriser, AskExternal
from gateway.policies.access.owners import OwnRegions, OwnSequences, SequenceIds
from gateway.policies.count_models import CountModels
from gateway.policies.observe import Observe
from gateway.policies.own_form import AskInOwnForm
from gateway.policies.usage_statistics import UsageStatistics
from gateway.routing.server_status import ServerStatusLayer, UnknownModels
from gateway.routing.upstream_queries import RefreshModelIndex
from gateway.service import Service
from gateway.settings.config_view import ConfigView, Finding
from gateway.telemetry.model_usage import Usage


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


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """What the clients of a listener may do; None where nothing limits them.

    Attributes:
        rules: The permissions.
        external: Builds the layer that asks a program outside of the gateway.
        sequence_ids: Keeps the sequences and the memory of clients apart.
    """

    rules: ListenerAccess | None = None
    external: Callable[..., AskExternal] | None = None
    sequence_ids: SequenceIds | None = None


NO_ACCESS: Final = ClientAccess()
"""Nothing limits the clients."""


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


def _authorise(inner: Entries, access: ClientAccess) -> Service | None:
    if access.rules is None:
        return None
    return Authorise(inner.questions, access.rules, inference=inner.inference)


def _ask_external(inner: Entries, access: ClientAccess) -> Service | None:
    if access.external is None:
        return None
    return access.external(inner.questions, inference=inner.inference)


def _ask_authoriser(inner: Entries, at: LayerContext) -> Service | None:
    name = at.setting(AUTHORISER)
    return None if name is None else AskAuthoriser(inner, registry.authoriser(name), name)


def _check_authoriser(config: ConfigView) -> Iterator[Finding]:
    for path, name in config.values(AUTHORISER):
        if name is not None:
            try:
                registry.authoriser(name)
            except LookupError as error:
                yield path, str(error)


def _own_sequences(inner: Entries, access: ClientAccess) -> Service | None:
    if access.sequence_ids is None:
        return None
    return OwnSequences(inner.questions, access.sequence_ids)


def _own_regions(inner: Entries, access: ClientAccess) -> Service | None:
    if access.sequence_ids is None:
        return None
    return OwnRegions(inner.questions, inference=inner.inference)


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
AUTHORISE: Final = Layer(
    "Authorise",
    "refuses what the client may not do, if `security.rules` has rules",
    "listener",
    with_part(ClientAccess, _authorise),
)
ASK_EXTERNAL: Final = Layer(
    "AskExternal",
    "refuses what the program of `security.external` denies",
    "listener",
    with_part(ClientAccess, _ask_external),
)
ASK_AUTHORISER: Final = Layer(
    "AskAuthoriser",
    "refuses what an installed package denies, if `authoriser` is set",
    "listener",
    _ask_authoriser,
    settings=(AUTHORISER,),
    check=_check_authoriser,
)
OWN_SEQUENCES: Final = Layer(
    "OwnSequences",
    "keeps the sequences of clients apart, if there are clients",
    "listener",
    with_part(ClientAccess, _own_sequences),
)
OWN_REGIONS: Final = Layer(
    "OwnRegions",
    "keeps the shared memory of clients apart, if there are clients",
    "listener",
    with_part(ClientAccess, _own_regions),
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
