"""A grpc.aio server that survives a request with an undecodable path.

From 1.84 on, grpc.aio decodes the path of each call in its accept loop.  A path that is not UTF-8
ends the loop and so the server, measured with 1.84.0 and 1.85.1.  Earlier versions hold an
oversized message in memory before they reject it, which is worse.

Here every method is registered, so the C core matches paths as bytes.  All other calls go to one
handler, with their path unread.  This uses private names of grpcio; without them, the plain server
is used, and a test reports whether it survives.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import structlog
from grpc import aio
from grpc._cython import cygrpc
from grpc.aio import _server

from gateway.transports.reference.grpc_quirks import Context

log = structlog.get_logger(__name__)

_FIRST_BOUNDED = (1, 84)


def guarded_server(
    handlers: Mapping[str, grpc.RpcMethodHandler],
    options: Sequence[tuple[str, Any]],
    maximum_calls: int,
    unknown: grpc.RpcMethodHandler | None = None,
) -> aio.Server:
    """Return a server of *handlers*, by full path.

    Any other path has the handler *unknown*, or else is UNIMPLEMENTED.
    """
    unknown = unknown or _UNKNOWN
    version = tuple(int(part) for part in grpc.__version__.split(".")[:2])
    if version < _FIRST_BOUNDED:
        log.warning(
            "grpcio holds messages of any size in memory", found=grpc.__version__, needed="1.84"
        )
    if not hasattr(cygrpc.AioServer, "_make_request_call_future"):
        return aio.server(
            handlers=(_Methods(handlers, unknown),),
            options=options,
            maximum_concurrent_rpcs=maximum_calls,
        )
    return _Server(handlers, options, maximum_calls, unknown)


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpcio is not typed
    """Finds the handler of a path."""

    def __init__(
        self, handlers: Mapping[str, grpc.RpcMethodHandler], unknown: grpc.RpcMethodHandler
    ) -> None:
        self._handlers = handlers
        self._unknown = unknown

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Return the handler of a path."""
        return self._handlers.get(details.method, self._unknown)


async def answer_unknown(_requests: Any, context: Context) -> None:
    """Reply UNIMPLEMENTED without reading a message."""
    context.set_code(grpc.StatusCode.UNIMPLEMENTED)
    context.set_details("no protocol here serves this method")


_UNKNOWN = grpc.stream_stream_rpc_method_handler(answer_unknown)


class _Server(_server.Server):  # type: ignore[misc]  # grpcio is not typed
    """The public face of `_Core`."""

    def __init__(
        self,
        handlers: Mapping[str, grpc.RpcMethodHandler],
        options: Sequence[tuple[str, Any]],
        maximum_calls: int,
        unknown: grpc.RpcMethodHandler,
    ) -> None:
        # Not the parent's `__init__`: it creates a core server that would never be freed.
        self._loop = cygrpc.get_working_loop()
        arguments = _server._augment_channel_arguments(tuple(options), None)  # noqa: SLF001
        self._server = _Core(self._loop, None, (), None, arguments, maximum_calls)
        self._server.unknown = unknown
        self._server.add_registered_method_handlers(dict(handlers))


class _Core(cygrpc.AioServer):  # type: ignore[misc]  # grpcio is not typed
    """Keeps calls of unknown methods out of the accept loop.

    Attributes:
        unknown: Handles them.
    """

    unknown: grpc.RpcMethodHandler

    def _make_request_call_future(self, method: bytes | None) -> asyncio.Future[Any]:
        if method is not None:
            return super()._make_request_call_future(method)  # type: ignore[no-any-return]
        return asyncio.ensure_future(self._answer_unknown())

    async def _answer_unknown(self) -> None:
        """Reply to unknown calls until the server stops."""
        loop = asyncio.get_running_loop()
        answering: set[asyncio.Task[None]] = set()
        while True:
            state = await self._request_call()
            answer = cygrpc._handle_stream_stream_rpc(self.unknown, state, loop)  # noqa: SLF001
            task = loop.create_task(
                cygrpc._schedule_rpc_coro(answer, state, loop, "unknown")  # noqa: SLF001
            )
            answering.add(task)
            task.add_done_callback(answering.discard)
