"""Layers that make spans, and the context that spans have in calls.

Inside the gateway the current span of a call is in its metadata, as `traceparent` and `tracestate`.
So it crosses tasks, batch queues and pipelines as any header does. `OTEL_PROPAGATORS` decides about
the headers of clients and of upstreams.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    format_trace_id,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.api.protocol import Codec
from gateway.ir.bodies.streams import on_stream_end
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelReadyRequest,
    ServerLiveRequest,
    ServerReadyRequest,
)
from gateway.ir.context import Metadata
from gateway.ir.errors import GatewayError
from gateway.otlp.attributes import (
    CLIENT_FAULTS,
    Attributes,
    client_attributes,
    endpoint_attributes,
    error_attributes,
    model_attributes,
    operation_of,
    path_attributes,
    rejection_attributes,
    rejection_status,
    status_attributes,
)
from gateway.policies.batch.policy import Batch
from gateway.policies.observe import Recorder
from gateway.service import ReplyCoroutine, Service
from gateway.settings.units import Url
from gateway.telemetry.call_path import CALL_PATH, CallPath
from gateway.telemetry.log.call_log import CallRecord, code_of
from gateway.telemetry.log.error_texts import error_text

R = TypeVar("R")
C = TypeVar("C", bound=Call[Any])

# Health probes are frequent and repetitive, and have no spans.
_PROBES = frozenset({ServerLiveRequest, ServerReadyRequest, ModelReadyRequest})


class _MetadataGetter(Getter[Metadata]):
    """Reads the headers of a call."""

    def get(self, carrier: Metadata, key: str) -> list[str] | None:
        return [value for name, value in carrier if name == key] or None

    def keys(self, carrier: Metadata) -> list[str]:
        return [name for name, _ in carrier]


_GETTER = _MetadataGetter()
_W3C = TraceContextTextMapPropagator()


class TracedPath(CallPath, gc=True):
    """The path of a call that makes spans of the times that it records.

    Attributes:
        tracer: Makes the spans.
        parent: The context of the call's span; None before it begins.
        is_sampled: Whether the trace is exported.
    """

    tracer: Tracer | None = None
    parent: Context | None = None
    is_sampled: bool = False

    def add_queue_time(self, seconds: float) -> None:
        """Add time in a queue, which ends now."""
        CallPath.add_queue_time(self, seconds)
        self._past_span("queue", seconds)

    def add_batch_time(self, waited_s: float, seconds: float, *, is_received: bool) -> None:
        """Add the time until a batch was sent, and until its reply, which ends now."""
        CallPath.add_batch_time(self, waited_s, seconds, is_received=is_received)
        self._past_span("batch", waited_s + seconds, {"gateway.batch.wait_s": waited_s})

    def _past_span(self, name: str, seconds: float, attributes: Attributes | None = None) -> None:
        if self.tracer is not None and self.parent is not None:
            end = time.time_ns()
            start = end - round(seconds * 1e9)
            span = self.tracer.start_span(
                name, self.parent, attributes=attributes, start_time=start
            )
            span.end(end)


def record_with_trace(record: Recorder, exemplify: Recorder, call: CallRecord) -> None:
    """Record a call, and keep its trace if it is exported."""
    record(call)
    path = call.path
    if isinstance(path, TracedPath) and path.is_sampled:
        exemplify(call)


class CallSpans:
    """Builds the layers that make spans.

    Args:
        tracer: Makes the spans.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def call(self, inner: Service) -> Service:
        """Return the layer that makes the span of a client's call."""
        return TraceCall(inner, self._tracer)

    def attempt(self, upstream: str, url: Url, inner: Service) -> Service:
        """Return the layer that makes the span of each request to an endpoint."""
        return TraceAttempt(inner, self._tracer, endpoint_attributes(upstream, url))

    def model(self, inner: Service) -> Service:
        """Return the layer that makes the span of each call of a model in this process."""
        return TraceInside(inner, self._tracer, "run")

    def step(self, inner: Service) -> Service:
        """Return the layer that makes the span of each call of a pipeline."""
        return TraceInside(inner, self._tracer, "step")

    def batch(self, *arguments: Any, **options: Any) -> Batch:
        """Return a batch queue that makes a span of each merged call; see `Batch`."""
        return TracedBatch(*arguments, tracer=self._tracer, **options)

    @contextmanager
    def block(self, name: str, call: C, attributes: Attributes, /) -> Iterator[C]:
        """Make the span of a block; without one for the gateway's own calls."""
        parent = _parent_of(call)
        if parent is None:
            yield call
            return
        span = self._tracer.start_span(name, parent, attributes=attributes)
        error: BaseException | None = None
        try:
            yield _with_span(call, set_span_in_context(span), _inject_internal)
        except BaseException as raised:
            error = raised
            raise
        finally:
            _end(span, error)
            del error  # its traceback holds this frame

    def with_codec(self, inner: Service, codec: Codec[Any, Any]) -> Service:
        """Return the layer that tells the span of a call which codec writes its response."""
        return NoteCodec(inner, codec)

    def rejected(
        self, listener: str, protocol: str, error: GatewayError, codec: Codec[Any, Any] | None
    ) -> None:
        """Make the span of a request that reached no service, in the trace of its client."""
        span = self._tracer.start_span(
            "rejected",
            propagate.extract(error.metadata, getter=_GETTER),
            SpanKind.SERVER,
            rejection_attributes(listener, protocol, error),
        )
        if span.is_recording():
            span.set_attributes(rejection_status(error, codec))
        _end_server(span, error)


_CODEC: ContextVar[Codec[Any, Any] | None] = ContextVar("codec", default=None)
"""What writes the response to the current call."""


class NoteCodec:
    """Notes the codec of a frontend, so that the span of a call has the status of its response.

    Args:
        inner: Gets each call.
        codec: It writes the responses.
    """

    def __init__(self, inner: Service, codec: Codec[Any, Any]) -> None:
        self._inner = inner
        self._codec = codec

    async def __call__(self, call: Call[R], /) -> R:
        """Call *inner*."""
        token = _CODEC.set(self._codec)
        try:
            return await self._inner(call)
        finally:
            _CODEC.reset(token)


class TraceCall:
    """Makes the server span of each call; probes have none.

    Args:
        inner: Gets each call with its span as the parent of others.
        tracer: Makes the spans.
    """

    def __init__(self, inner: Service, tracer: Tracer) -> None:
        self._inner = inner
        self._tracer = tracer

    async def __call__(self, call: Call[R], /) -> R:
        """Call *inner*."""
        if type(call) in _PROBES:
            return await self._inner(call)
        span = self._tracer.start_span(
            operation_of(call),
            propagate.extract(call.context.metadata, getter=_GETTER),
            SpanKind.SERVER,
            client_attributes(call),
        )
        context = set_span_in_context(span)
        path = CALL_PATH.get()
        if isinstance(path, TracedPath):
            identity = span.get_span_context()
            path.trace_id = format_trace_id(identity.trace_id)
            path.is_sampled = identity.trace_flags.sampled
            path.tracer, path.parent = self._tracer, context
        end = partial(_end_call, span, path, call, _CODEC.get())
        return await _traced(self._inner, _with_span(call, context, _inject_internal), end)


class TraceAttempt:
    """Makes the client span of each request to an endpoint, and sends its context along.

    Args:
        inner: Sends the call.
        tracer: Makes the spans.
        attributes: The attributes that every span gets.
    """

    def __init__(self, inner: Service, tracer: Tracer, attributes: Attributes) -> None:
        self._inner = inner
        self._tracer = tracer
        self._attributes = attributes

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner*; without a span for the gateway's own calls."""
        parent = _parent_of(call)
        if parent is None:
            return self._inner(call)
        span = self._tracer.start_span(
            operation_of(call),
            parent,
            SpanKind.CLIENT,
            {**self._attributes, **model_attributes(call)},
        )
        context = set_span_in_context(span, parent)
        return _traced(
            self._inner, _with_span(call, context, propagate.inject), partial(_end, span)
        )


class TraceInside:
    """Makes a span of each call between two layers of the gateway.

    Args:
        inner: Gets each call with its span as the parent of others.
        tracer: Makes the spans.
        name: The first word of their names.
    """

    def __init__(self, inner: Service, tracer: Tracer, name: str) -> None:
        self._inner = inner
        self._tracer = tracer
        self._name = name

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner*; without a span for the gateway's own calls."""
        parent = _parent_of(call)
        if parent is None:
            return self._inner(call)
        name = f"{self._name} {operation_of(call)}"
        span = self._tracer.start_span(name, parent, attributes=model_attributes(call))
        context = set_span_in_context(span)
        return _traced(
            self._inner, _with_span(call, context, _inject_internal), partial(_end, span)
        )


class TracedBatch(Batch):
    """A batch queue that makes a span of each merged call.

    The span belongs to the trace of the first caller, and links to the calls of the others.

    Args:
        arguments: Positional arguments that `Batch` gets.
        tracer: Makes the spans.
        options: Arguments by name that `Batch` gets.
    """

    def __init__(self, *arguments: Any, tracer: Tracer, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._tracer = tracer

    async def _infer(self, calls: Sequence[InferRequest]) -> InferResponse:
        parents = [parent for parent in map(_parent_of, calls) if parent is not None]
        if not parents:
            return await super()._infer(calls)
        first = calls[0]
        span = self._tracer.start_span(
            f"merged {operation_of(first)}",
            parents[0],
            attributes={"gateway.batch.calls": len(calls), **model_attributes(first)},
            links=[Link(get_current_span(each).get_span_context()) for each in parents[1:]],
        )
        # The merged call has the trace headers of the first call.
        traced = _with_span(first, set_span_in_context(span), _inject_internal)
        end = partial(_end, span)
        try:
            reply = await super()._infer([traced, *calls[1:]])
        except BaseException as error:
            end(error)
            raise
        end(None)
        return reply


async def _traced(inner: Service, call: Call[R], end: Callable[[BaseException | None], None]) -> R:
    """Call *inner*, and *end* its span when the reply is complete."""
    try:
        reply = await inner(call)
    except BaseException as error:
        end(error)
        raise
    return on_stream_end(call, reply, end)


def _end_call(
    span: Span,
    path: CallPath | None,
    call: Call[Any],
    codec: Codec[Any, Any] | None,
    error: BaseException | None,
) -> None:
    """End the span of a client's call."""
    if not span.is_recording():
        span.end()
        return
    if path is not None:
        span.set_attributes(path_attributes(path, type(call).__name__))
    if codec is not None:
        span.set_attributes(status_attributes(call, error, codec))
    _end_server(span, error)


def _end_server(span: Span, error: BaseException | None) -> None:
    """End a server span, which a fault of the client does not mark as failed."""
    if error is not None and code_of(error) in CLIENT_FAULTS:
        span.set_attributes(error_attributes(error))
        span.end()
    else:
        _end(span, error)


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.set_attributes(error_attributes(error))
        text = error_text(error) if isinstance(error, GatewayError) else type(error).__name__
        span.set_status(Status(StatusCode.ERROR, text))
    span.end()


def _parent_of(call: Call[Any]) -> Context | None:
    """Return the context of the current span of *call*; None if it has none."""
    context = _W3C.extract(call.context.metadata, getter=_GETTER)
    return None if get_current_span(context) is INVALID_SPAN else context


def _inject_internal(carrier: dict[str, str], context: Context) -> None:
    _W3C.inject(carrier, context)


def _with_span(call: C, context: Context, inject: Callable[[dict[str, str], Context], None]) -> C:
    """Return *call* with the current span of *context* in its metadata, instead of its own."""
    headers: dict[str, str] = {}
    inject(headers, context)
    replaced = _W3C.fields | headers.keys()
    kept = [pair for pair in call.context.metadata if pair[0] not in replaced]
    return call.with_metadata((*kept, *headers.items()))
