"""Layers of installed packages: what the gateway adds around one.

Outside it is what makes known what the layer reads, and what names its faults. Inside is what keeps
the faults of the chain below from being taken for those of the layer.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast, get_args, get_origin

from gateway.api.layer import Calls, Entries, Layer, LayerContext, Reads
from gateway.ir.bodies.streams import close_stream
from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    OpaqueCall,
    StreamInferRequest,
    inference_of,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import Unsupported
from gateway.policies.buffer_body import BufferBody
from gateway.policies.complete.policy import Complete
from gateway.policies.complete.tensors import ALL_NEEDS
from gateway.registry import layers
from gateway.routing.router import Route, Router
from gateway.service import ReplyCoroutine, Service, bound_call, bound_inference
from gateway.settings.config_view import ConfigView
from gateway.settings.setting import Setting
from gateway.telemetry.faults import FAULTS, Faults

R = TypeVar("R")

_INFERENCES: Final = frozenset({InferRequest, StreamInferRequest})
_LOCAL: Final = frozenset({"model", "pipeline"})
_END: Final = InferResponse(model=ModelRef(""), outputs=())


@dataclass(frozen=True, slots=True)
class ListenerRoutes:
    """The routes of a listener. The metadata of a model are those of the route of its call.

    Attributes:
        routes: In order of precedence.
        default_model: Model of a call that must name a model and does not; "" for no default.
    """

    routes: Sequence[Route]
    default_model: str = ""


def reads(layer: Layer) -> bool:
    """Return whether a layer reads tensors."""
    return layer.needs is not Reads.NOTHING and layer.calls is not Calls.QUESTIONS


def configured_readers(config: ConfigView) -> list[str]:
    """Return the names of layers that read tensors on the way to upstreams, and may be in force."""
    return [
        name
        for name, layer in layers().items()
        if reads(layer)
        and layer.chain not in _LOCAL
        and (not layer.settings or any(_is_set(config, each) for each in layer.settings))
    ]


def _is_set(config: ConfigView, setting: Setting[Any]) -> bool:
    return bool(setting.default) or any(bool(value) for _, value in config.values(setting))


def guarded(entry: str, layer: Layer) -> Layer:
    """Return a layer of a package with what it needs, and with its name for its faults.

    Args:
        entry: The name of its entry point.
        layer: The layer of the package.
    """
    return replace(layer, build=_builder(f"layer {entry!r}", layer))


def _builder(part: str, layer: Layer) -> Callable[[Entries, LayerContext], Service | None]:
    def build(inner: Entries, at: LayerContext) -> Service | None:
        below = Entries(*(_Below(each) for each in inner))
        try:
            built = layer.build(below, at)
            found = None if built is None else PackageLayer(part, built, layer, inner)
        except FAULTS as error:
            message = f"{part} cannot be built for {at.name!r}: {type(error).__name__}: {error}"
            raise ValueError(message) from error
        return found if found is None or not reads(layer) else _informed(found, layer, inner, at)

    return build


def _informed(built: "PackageLayer", layer: Layer, inner: Entries, at: LayerContext) -> Service:
    """Return a layer with what makes known what it reads."""

    def complete(metadata: Service) -> Complete:
        inference = bound_inference(built)
        return Complete(built, ALL_NEEDS, inference=inference, metadata=metadata)

    found: Service
    if layer.chain == "listener":
        found = _ByRoute(at.part(ListenerRoutes), complete, built)
    else:
        found = complete(inner.questions)
    if layer.needs is not Reads.VALUES:
        return found
    return BufferBody(found, inference=bound_inference(found))


class _ByRoute:
    """Completes inferences by the metadata of their routes; other calls go to the layer."""

    def __init__(
        self, of: ListenerRoutes, complete: Callable[[Service], Service], layer: Service
    ) -> None:
        routes = [Route(each.name, each.rule, complete(each.service)) for each in of.routes]
        self._router = Router(routes, layer, default_model=of.default_model)
        self._layer = layer

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call the layer."""
        found = self._router if type(call) in _INFERENCES else self._layer
        return cast("ReplyCoroutine[R]", found(call))


class PackageLayer:
    """Calls a layer of a package. What it raises but a `GatewayError` is logged with its name.

    Args:
        part: How the log names it.
        built: The layer.
        layer: What the package says about it.
        inner: The chain inside it, for calls that it is not for.
    """

    def __init__(self, part: str, built: Service, layer: Layer, inner: Entries) -> None:
        self._part = part
        self._layer = bound_call(built)
        self._inference = bound_inference(built)
        self._is_for_inference = layer.calls is Calls.INFERENCE
        self._reads = reads(layer)
        self._reads_values = self._reads and layer.needs is Reads.VALUES
        self._inner = inner.questions

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call the layer, or what is inside it.

        Raises:
            Unsupported: The layer reads tensors that the gateway does not read.
            InternalError: The layer failed.
        """
        if self._reads and isinstance(call, OpaqueCall) and not call.only_asks:
            return self._refuse(call, "passes the gateway unread")
        if self._is_for_inference and type(call) not in _INFERENCES:
            return self._inner(call)
        return self._guarded(self._layer, call)

    def handle_inference(self, call: InferRequest, /) -> ReplyCoroutine[InferResponse]:
        """Call the layer with an InferRequest."""
        return self._guarded(self._inference, call)

    async def _refuse(self, call: Call[Any], why: str) -> Any:
        raise Unsupported(f"the request {why}, and {self._part} reads tensors", model=call.model)

    async def _guarded(self, layer: Service, call: Call[R]) -> R:
        if self._reads:
            request = inference_of(call)
            if self._reads_values and request is not None and request.shares_memory:
                await self._refuse(call, "has tensors in shared memory that the gateway forwards")
            if request is not None and not call.context.needs >= ALL_NEEDS:
                call = call.with_context(needs=call.context.needs | ALL_NEEDS)
        with Faults(self._part, call.model):
            reply = await layer(call)
            _check_reply(call, reply)
        if type(call) is StreamInferRequest:
            return cast("R", _GuardedStream(cast("Any", reply), self._part, call.model))
        return reply


class _Below:
    """The chain inside a layer of a package: its faults are not those of the layer."""

    def __init__(self, inner: Service) -> None:
        self._inner = inner

    async def __call__(self, call: Call[R], /) -> R:
        with Faults("", call.model):
            reply = await self._inner(call)
        if type(call) is StreamInferRequest:
            return cast("R", _GuardedStream(cast("Any", reply), "", call.model))
        return reply


class _GuardedStream:
    """A stream of replies whose faults are logged with the name of a part."""

    def __init__(
        self, items: AsyncIterator[InferResponse], part: str, model: ModelRef | None
    ) -> None:
        self._items = items
        self._part = part
        self._model = model

    def __aiter__(self) -> AsyncIterator[InferResponse]:
        return self

    async def __anext__(self) -> InferResponse:
        """Return the next reply."""
        with Faults(self._part, self._model):
            item = await anext(self._items, _END)
            if not isinstance(item, InferResponse):
                raise TypeError(f"sent {type(item).__name__}; expected InferResponse")
        if item is _END:
            raise StopAsyncIteration
        return item

    async def aclose(self) -> None:
        """Close the underlying stream; may be called twice."""
        with Faults(self._part, self._model):
            await close_stream(self._items)


def _check_reply(call: Call[Any], reply: object) -> None:
    expected = _REPLIES.get(type(call), object)
    if not isinstance(reply, expected):
        raise TypeError(f"returned {type(reply).__name__}; expected {expected.__name__}")


def _reply_type(kind: type[Call[Any]]) -> type:
    """Return the class of the replies to a class of calls: the R of its base `Call[R]`."""
    (base,) = kind.__orig_bases__  # type: ignore[attr-defined]  # of a generic base
    (found,) = get_args(base)
    return cast("type", get_origin(found) or found)


_REPLIES: Final[Mapping[type[Call[Any]], type]] = MappingProxyType(
    {kind: _reply_type(kind) for kind in Call.__subclasses__()}
)
"""The class of the replies to each class of calls."""
