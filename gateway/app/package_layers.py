"""Layers of installed packages: what the gateway adds around one, so that its faults are named."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from gateway.api.layer import Calls, Entries, Layer, LayerContext
from gateway.ir.calls import Call, InferRequest, StreamInferRequest
from gateway.ir.errors import GatewayError
from gateway.service import ReplyCoroutine, Service, bound_call, bound_inference

R = TypeVar("R")

_INFERENCES = frozenset({InferRequest, StreamInferRequest})


def guarded(entry: str, layer: Layer) -> Layer:
    """Return a layer of a package that names itself in the exceptions that pass it.

    Args:
        entry: The name of its entry point.
        layer: The layer of the package.
    """
    return replace(layer, build=_builder(f"layer {entry!r}", layer))


def _builder(part: str, layer: Layer) -> Callable[[Entries, LayerContext], "PackageLayer | None"]:
    def build(inner: Entries, at: LayerContext) -> PackageLayer | None:
        try:
            built = layer.build(inner, at)
        except Exception as error:
            message = f"{part} cannot be built for {at.name!r}: {type(error).__name__}: {error}"
            raise ValueError(message) from error
        return None if built is None else PackageLayer(part, built, layer.calls, inner)

    return build


class PackageLayer:
    """Calls a layer of a package, and notes its name in what it raises but a `GatewayError`.

    Args:
        part: How the log names it.
        layer: The layer.
        calls: The calls that it is for; others go to *inner*.
        inner: The chain inside it.
    """

    def __init__(self, part: str, layer: Service, calls: Calls, inner: Entries) -> None:
        self._part = part
        self._layer = bound_call(layer)
        self._inference = bound_inference(layer)
        self._is_for_inference = calls is Calls.INFERENCE
        self._inner = inner.questions

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call the layer, or what is inside it."""
        if self._is_for_inference and type(call) not in _INFERENCES:
            return self._inner(call)
        return self._noting(self._layer, call)

    def handle_inference(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call the layer with an InferRequest."""
        return self._noting(self._inference, call)

    async def _noting(self, layer: Service, call: Call[R]) -> R:
        try:
            return await layer(call)
        except GatewayError:
            raise
        except Exception as error:
            error.add_note(self._part)
            raise
