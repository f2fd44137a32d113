"""The layers of models and pipelines that have no keys of their own."""

from dataclasses import replace
from typing import Final

from gateway.api.layer import Calls, Entries, Layer, LayerContext
from gateway.app.chains.rows import always, for_questions, with_part
from gateway.app.chains.tracing import Spans
from gateway.ir.context import Need
from gateway.policies.buffer_body import BufferBody
from gateway.policies.classify import Classify
from gateway.policies.complete.policy import Complete
from gateway.policies.model_config import ModelConfigurationLayer
from gateway.service import Service

_TENSORS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


def _complete(inner: Entries, _at: LayerContext) -> Service:
    return Complete(inner.questions, _TENSORS, inference=inner.inference)


def _trace(inner: Entries, spans: Spans) -> Service | None:
    return None if spans.tracing is None else spans.tracing.model(inner.questions)


BUFFER_BODY: Final = Layer(
    "BufferBody", "waits for the whole body of a request", "model", always(BufferBody)
)
CLASSIFY: Final = Layer("Classify", "computes classes", "model", always(Classify))
COMPLETE: Final = Layer(
    "Complete", "adds missing names, datatypes and shapes of tensors", "model", _complete
)
MODEL_CONFIGURATION: Final = Layer(
    "ModelConfigurationLayer",
    "derives configurations from metadata, and batch sizes",
    "model",
    for_questions(ModelConfigurationLayer),
    Calls.QUESTIONS,
)
TRACE_INSIDE: Final = Layer(
    "TraceInside",
    "makes the span of each run, if `telemetry.otlp` has traces",
    "model",
    with_part(Spans, _trace),
)
PIPELINE: Final = tuple(
    replace(layer, chain="pipeline")
    for layer in (BUFFER_BODY, CLASSIFY, COMPLETE, MODEL_CONFIGURATION)
)
