"""The layers of an upstream and of its endpoints."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.api.layer import Calls, Entries, Layer
from gateway.app.chains.rows import for_questions, with_part
from gateway.app.chains.tracing import Wrap
from gateway.app.declarations import Declarations
from gateway.app.signatures import Signatures
from gateway.config.signatures import SignatureConfig
from gateway.ir.context import Need
from gateway.policies.classify import Classify
from gateway.policies.complete.policy import Complete
from gateway.policies.confirm_unload import ConfirmUnload
from gateway.policies.forward_headers import forwarding
from gateway.policies.model_config import ModelConfigurationLayer
from gateway.service import Service


@dataclass(frozen=True, slots=True)
class UpstreamParts:
    """Parameters of the chain of an upstream."""

    adaptive: Wrap | None = None


@dataclass(frozen=True, slots=True)
class EndpointParts:
    """Parameters of the chain of one endpoint of an upstream.

    Attributes:
        classifies: Whether the server computes classes; None if it depends on the server.
        client_header: The header with the name of the client; None for none.
        count: Builds the layer that counts inferences; None for none.
        ends_at_empty_classes: Whether the server may end at classes of an empty output.
    """

    needs: frozenset[Need]
    signatures: Mapping[str, SignatureConfig]
    classifies: bool | None
    forward_headers: tuple[str, ...]
    headers: Mapping[str, str]
    ends_at_empty_classes: Callable[[], bool] = bool
    client_header: str | None = None
    trace: Wrap | None = None
    count: Wrap | None = None
    declarations: Declarations = field(default_factory=dict)


def _adapt(inner: Entries, at: UpstreamParts) -> Service | None:
    return None if at.adaptive is None else at.adaptive(inner.questions)


def _forward_headers(inner: Entries, at: EndpointParts) -> Service:
    return forwarding(
        inner.questions,
        at.forward_headers,
        at.headers,
        at.client_header,
        inference=inner.inference,
    )


def _classify(inner: Entries, at: EndpointParts) -> Service:
    return Classify(
        inner.questions,
        by_target=at.classifies,
        inference=inner.inference,
        ends_at_empty=at.ends_at_empty_classes,
    )


def _complete(inner: Entries, at: EndpointParts) -> Service:
    return Complete(inner.questions, at.needs, inference=inner.inference)


def _describe(inner: Entries, at: EndpointParts) -> Service:
    return Signatures(inner.questions, at.signatures, at.declarations)


def _trace(inner: Entries, at: EndpointParts) -> Service | None:
    return None if at.trace is None else at.trace(inner.questions)


def _count(inner: Entries, at: EndpointParts) -> Service | None:
    return None if at.count is None else at.count(inner.questions)


ADAPTIVE_CONCURRENCY: Final = Layer(
    "AdaptiveConcurrency",
    "limits inferences by the latency of the upstream",
    "upstream",
    with_part(UpstreamParts, _adapt),
)
FORWARD_HEADERS: Final = Layer(
    "ForwardHeaders",
    "drops the headers that are not forwarded, adds configured ones",
    "endpoint",
    with_part(EndpointParts, _forward_headers),
)
CLASSIFY: Final = Layer(
    "Classify",
    "refuses classes of text, computes classes if the server does not",
    "endpoint",
    with_part(EndpointParts, _classify),
)
COMPLETE: Final = Layer(
    "Complete",
    "adds what the codecs need: names, datatypes, shapes, order",
    "endpoint",
    with_part(EndpointParts, _complete),
)
MODEL_CONFIGURATION: Final = Layer(
    "ModelConfigurationLayer",
    "derives configurations from metadata, and batch sizes",
    "endpoint",
    for_questions(ModelConfigurationLayer),
    Calls.QUESTIONS,
)
SIGNATURES: Final = Layer(
    "Signatures",
    "replies to metadata calls from the configuration's signatures",
    "endpoint",
    with_part(EndpointParts, _describe),
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
    with_part(EndpointParts, _trace),
)
COUNT_SENT: Final = Layer(
    "CountSent",
    "counts inferences at the server, if `telemetry.metrics.compat` is set",
    "endpoint",
    with_part(EndpointParts, _count),
)
