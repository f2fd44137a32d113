"""Codecs joined as the gateway joins them: a call passes through each, and its reply returns.

Each link is an upstream's half of a codec and a listener's half, with `Complete` before both, for
what one protocol leaves out and the next one needs.  Nothing is sent: messages are joined into one
fresh buffer, as a wire would deliver them.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ServerStatusRequest,
)
from gateway.ir.context import Context, Need
from gateway.ir.metadata import ModelMetadata, ModelStatus, ServerStatus, TensorMetadata
from gateway.policies.complete.policy import Complete
from tests.properties.carries import Carries
from tests.properties.registered import arrived

R = TypeVar("R")

WHOLE = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})


class ChainEnd:
    """The end of a chain: keeps the received call and returns the one reply."""

    def __init__(self, call: Call[Any], reply: Any) -> None:
        self._reply = reply
        self._metadata = _signature(call, reply)
        self.call: Call[Any] | None = None

    async def __call__(self, call: Call[R], /) -> R:
        """Return the reply, or the metadata of the model, which `Complete` requests."""
        if isinstance(call, ModelMetadataRequest) and not isinstance(self._reply, ModelMetadata):
            return cast("R", self._metadata)
        self.call = call
        return cast("R", self._reply)


class Told:
    """A service that also returns a model's metadata as the status of a server."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __call__(self, call: Call[R], /) -> R:
        """Return the status; other calls are forwarded."""
        if not isinstance(call, ServerStatusRequest):
            return cast("R", await self._inner(call))
        metadata = await self._inner(ModelMetadataRequest(model=call.about))
        return cast("R", ServerStatus(is_ready=True, models=(ModelStatus(metadata),)))


class Link:
    """A service on the far side of one codec.

    Attributes:
        request: The last wire request of an inference, as it arrived.
        response: Its wire response, as it arrived.
    """

    def __init__(self, carries: Carries, inner: Any) -> None:
        made = carries.registered.make
        self.upstream, self.listener = made(carries.upstream), made(carries.listener)
        self._inner = Told(inner)
        self._declared = carries.declared
        self.request: Any = None
        self.response: Any = None

    async def __call__(self, call: Call[R], /) -> R:
        """Send the call through the wire."""
        if self._declared and isinstance(call, ModelMetadataRequest):
            return cast("R", await self._inner(call))
        request = arrived(self.upstream.encode_call(call))
        read = self.listener.decode_call(request)
        reply = await self._inner(read)
        response = arrived(self.listener.encode_reply(read, reply))
        if isinstance(call, InferRequest):
            self.request, self.response = request, response
        return cast("R", self.upstream.decode_reply(call, response))


def chain(call: Call[Any], reply: Any, *ways: Carries) -> tuple[Any, ChainEnd, list[Link]]:
    """Return a service that calls through the codecs of *ways*, its end, and its links."""
    end = ChainEnd(call, reply)
    service: Any = Complete(end, WHOLE)
    links: list[Link] = []
    for way in reversed(ways):
        link = Link(way, service)
        links.insert(0, link)
        service = Complete(link, link.upstream.needs)
    return service, end, links


async def send_call(service: Any, call: Call[R]) -> R:
    """Call *service* as a client that needs a complete reply."""
    return cast("R", await service(call.with_context(needs=WHOLE)))


def bare(call: Call[Any] | None) -> Call[Any]:
    """Return a call without its context, for comparison."""
    assert call is not None
    return call.changed(context=Context())


def _signature(call: Call[Any], reply: Any) -> ModelMetadata:
    """Return the metadata of a model that accepts *call* and returns *reply*."""
    inputs = call.inputs if isinstance(call, InferRequest) else ()
    outputs = reply.outputs if isinstance(reply, InferResponse) else ()
    return ModelMetadata(
        name="" if call.model is None else call.model.name,
        max_batch_size=0,
        inputs=tuple(TensorMetadata(one.name, one.datatype, one.shape) for one in inputs),
        outputs=tuple(TensorMetadata(one.name, one.datatype, one.shape) for one in outputs),
    )
