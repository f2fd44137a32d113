"""The layers of an endpoint of an upstream that need to know its server."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gateway.api.layer import Calls, Entries, Layer, LayerContext
from gateway.api.protocol import Codec
from gateway.app.chains.rows import for_questions, with_part
from gateway.app.chains.tracing import Spans
from gateway.ir.context import Need
from gateway.policies.classify import Classify
from gateway.policies.complete.policy import Complete
from gateway.policies.confirm_unload import ConfirmUnload
from gateway.policies.model_config import ModelConfigurationLayer
from gateway.service import Service
from gateway.settings.units import Url


@dataclass(frozen=True, slots=True)
class ServerTraits:
    """The server of an endpoint, as its layers need to know it.

    Attributes:
        needs: What its codec needs.
        classifies: Whether it computes classes; None if it depends on the server.
        ends_at_empty_classes: Whether it may end at classes of an empty output.
        upstream: The name of its upstream; "" for a server without one.
        url: Its URL; None for a server without an upstream.
        codec: Says which messages it gets as they came; None for none.
    """

    needs: frozenset[Need]
    classifies: bool | None = None
    ends_at_empty_classes: Callable[[], bool] = bool
    upstream: str = ""
    url: Url | None = None
    codec: Codec[Any, Any] | None = None


def _classify(inner: Entries, server: ServerTraits) -> Service:
    return Classify(
        inner.questions,
        by_target=server.classifies,
        inference=inner.inference,
        ends_at_empty=server.ends_at_empty_classes,
    )


def _complete(inner: Entries, server: ServerTraits) -> Service:
    return Complete(
        inner.questions,
        server.needs,
        inference=inner.inference,
        codec=server.codec,
    )


def _trace(inner: Entries, at: LayerContext) -> Service | None:
    server, tracing = at.part(ServerTraits), at.part(Spans).tracing
    if server.url is None or tracing is None:
        return None
    return tracing.attempt(server.upstream, server.url, inner.questions)


CLASSIFY: Final = Layer(
    "Classify",
    "refuses classes of text, computes classes if the server does not",
    "endpoint",
    with_part(ServerTraits, _classify),
)
COMPLETE: Final = Layer(
    "Complete",
    "adds what the codecs need: names, datatypes, shapes, order",
    "endpoint",
    with_part(ServerTraits, _complete),
)
MODEL_CONFIGURATION: Final = Layer(
    "ModelConfigurationLayer",
    "derives configurations from metadata, and batch sizes",
    "endpoint",
    for_questions(ModelConfigurationLayer),
    Calls.QUESTIONS,
)
CONFIRM_UNLOAD: Final = Layer(
    "ConfirmUnload",
    "replies to an unload when the model is no longer ready",
    "endpoint",
    for_questions(ConfirmUnload),
    Calls.QUESTIONS,
)
TRACE_ATTEMPT: Final = Layer(
    "TraceAttempt",
    "makes the span of each request, if `telemetry.otlp` has traces",
    "endpoint",
    _trace,
)
