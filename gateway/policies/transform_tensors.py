"""TransformTensors: lets a `TensorTransform` of a package change requests and replies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from gateway.api.layer import Entries, Layer, LayerContext
from gateway.api.transform import TensorTransform
from gateway.ir.bodies.streams import MappedStream
from gateway.ir.calls import Call, InferRequest, InferResponse, OpaqueCall, StreamInferRequest
from gateway.ir.errors import Unsupported
from gateway.policies.buffer_body import BufferBody
from gateway.policies.classify import Classify
from gateway.policies.complete.policy import Complete
from gateway.service import ReplyCoroutine, Service
from gateway.settings.fields import Name
from gateway.settings.setting import Setting
from gateway.telemetry.faults import Faults

R = TypeVar("R")
M = TypeVar("M", InferRequest, InferResponse)


TRANSFORM: Final = Setting[str | None](
    key="transform",
    type=Name | None,
    default=None,
    help=(
        "What changes requests and replies: the entry point of an installed "
        "`TensorTransform`. Default: none."
    ),
    places=("target",),
)


@dataclass(frozen=True, slots=True)
class TargetTransform:
    """The transform of a target; None for none."""

    transform: TensorTransform | None = None


class TransformTensors:
    """Passes each inference through a transform; other calls are not changed.

    Args:
        inner: The target; `Complete` is outside, so that requests have what the transform needs.
        transform: Changes requests and replies.
        name: The name of the transform, for the log.
    """

    def __init__(self, inner: Entries, transform: TensorTransform, name: str) -> None:
        self._inner = inner
        self._transform = transform
        self._name = name

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call the target.

        Raises:
            InternalError: The transform raised anything but a `GatewayError`.
            Unsupported: The call has tensors that the gateway does not read.
        """
        # Each branch has its R; the type system cannot follow an isinstance that far.
        if isinstance(call, InferRequest):
            return cast("ReplyCoroutine[R]", self.handle_inference(call))
        if isinstance(call, StreamInferRequest):
            return cast("ReplyCoroutine[R]", self._stream(call))
        if isinstance(call, OpaqueCall) and not call.only_asks:
            return self._refuse(call)
        return self._inner.questions(call)

    async def _refuse(self, call: Call[Any]) -> Any:
        raise Unsupported(
            f"the request passes the gateway unread, and transform {self._name!r} changes tensors",
            model=call.model,
        )

    async def handle_inference(self, call: InferRequest, /) -> InferResponse:
        """Call the target with an InferRequest."""
        request = self._before(call)
        return self._after(request, await self._inner.inference(request))

    async def _stream(self, call: StreamInferRequest) -> MappedStream:
        request = self._before(call.request)
        items = await self._inner.questions(
            call.changed(model=request.model, context=request.context, request=request)
        )

        async def after(item: InferResponse) -> InferResponse:
            return self._after(request, item)

        return MappedStream(items, after)

    def _before(self, call: InferRequest) -> InferRequest:
        needs = self._transform.needs - call.context.needs
        if needs:  # the reply too
            call = call.changed(context=call.context.changed(needs=call.context.needs | needs))
        return self._applied(InferRequest, call, lambda: self._transform.before(call))

    def _after(self, request: InferRequest, reply: InferResponse) -> InferResponse:
        if reply.error is not None:
            return reply
        return self._applied(InferResponse, request, lambda: self._transform.after(request, reply))

    def _applied(self, kind: type[M], request: InferRequest, apply: Callable[[], M]) -> M:
        with Faults(f"transform {self._name!r}", request.model):
            return _checked(kind, apply())


def _checked(kind: type[M], found: M) -> M:
    if not isinstance(found, kind):
        raise TypeError(f"returned {type(found).__name__}; expected {kind.__name__}")
    return found


def _buffer_body(inner: Entries, at: LayerContext) -> Service | None:
    if at.part(TargetTransform).transform is None:
        return None
    return BufferBody(inner.questions, inference=inner.inference)


def _classify(inner: Entries, at: LayerContext) -> Service | None:
    if at.part(TargetTransform).transform is None:
        return None
    return Classify(inner.questions, by_target=False, inference=inner.inference)


def _complete(inner: Entries, at: LayerContext) -> Service | None:
    found = at.part(TargetTransform).transform
    if found is None:
        return None
    return Complete(inner.questions, found.needs, inference=inner.inference)


def _transform(inner: Entries, at: LayerContext) -> Service | None:
    found = at.part(TargetTransform).transform
    return None if found is None else TransformTensors(inner, found, at.setting(TRANSFORM) or "")


LAYERS: Final = (
    Layer(
        "BufferBody",
        "waits for the whole body of a request, if `transform` is set",
        "target",
        _buffer_body,
    ),
    Layer("Classify", "computes classes of what `transform` returns", "target", _classify),
    Layer("Complete", "adds what `transform` needs", "target", _complete),
    Layer(
        "TransformTensors",
        "changes requests and replies, if `transform` is set",
        "target",
        _transform,
        settings=(TRANSFORM,),
    ),
)
