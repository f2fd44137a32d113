"""The gRPC health service, on raw bytes, beside the mounts of a server.

Written by hand because its two messages have one field each, and a generated module would put
them into protobuf's process-wide pool.

Source: grpc/health/v1/health.proto; gRPC, "Health Checking Protocol".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc

from gateway.transports.reference.grpc_core import Context, write
from gateway.wire.protobuf import LEN, VARINT, WireError, fields, put_varint, tag, text, varint

Status = Callable[[str], Awaitable[bool | None]]
"""Whether a service answers; "" asks for the whole server, None means there is no such service."""

_SERVING = 1
_NOT_SERVING = 2
_SERVICE_UNKNOWN = 3
_SERVICE = tag(1, LEN)
_STATUS_KEY = varint(tag(1, VARINT))
_MAX_WATCHES = 32
_MAX_FIELDS = 16


class Health:
    """Answers Check and Watch of grpc.health.v1.Health.

    Args:
        status: Asked for each check, and once per interval for each watch.
        interval_s: How soon a watch tells of a change.
    """

    def __init__(self, status: Status, *, interval_s: float = 1.0) -> None:
        self._status = status
        self._interval_s = interval_s
        self._watches = 0

    @property
    def methods(self) -> dict[str, grpc.RpcMethodHandler]:
        """The service's handlers by full path, for the server's *extras*."""
        return {
            "/grpc.health.v1.Health/Check": grpc.unary_unary_rpc_method_handler(self._check),
            "/grpc.health.v1.Health/Watch": grpc.unary_stream_rpc_method_handler(self._watch),
        }

    async def _check(self, message: bytes, context: Context) -> bytes:
        service = _service(message, context)
        if service is None:
            return b""
        status = await self._status(service)
        if status is None:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            context.set_details("no such service here")
            return b""
        return _answer(_SERVING if status else _NOT_SERVING)

    async def _watch(self, message: bytes, context: Context) -> None:
        service = _service(message, context)
        if service is None:
            return
        # A watch lives as long as its client likes.
        if self._watches >= _MAX_WATCHES:
            context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
            context.set_details(f"{self._watches} watches are open, at most {_MAX_WATCHES} may be")
            return
        self._watches += 1
        try:
            async for status in self._changes(service):
                await write(context, _answer(status))
        finally:
            self._watches -= 1

    async def _changes(self, service: str) -> AsyncIterator[int]:
        """Give the status now and after every change, for ever."""
        last = None
        while True:
            found = await self._status(service)
            status = _SERVICE_UNKNOWN if found is None else _SERVING if found else _NOT_SERVING
            if status != last:
                last = status
                yield status
            await asyncio.sleep(self._interval_s)


def _service(message: bytes, context: Context) -> str | None:
    """Read the service's name; None after setting the status of a message that is none."""
    name = ""
    try:
        for key, value in fields(memoryview(message), _MAX_FIELDS):
            if key == _SERVICE:
                name = text(value, "service")
    except WireError as error:
        context.set_code(grpc.StatusCode.INVALID_ARGUMENT)
        context.set_details(f"not a HealthCheckRequest: {error}")
        return None
    return name


def _answer(status: int) -> bytes:
    head = bytearray()
    put_varint(head, _STATUS_KEY, status)
    return bytes(head)
