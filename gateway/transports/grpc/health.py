"""The gRPC health service, on raw bytes, as a frontend like any other.

Written by hand because its two messages have one field each, and a generated module would put
them into protobuf's process-wide pool.

Source: grpc/health/v1/health.proto; gRPC, "Health Checking Protocol".
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from gateway.ir.context import Client
from gateway.ir.errors import ErrorCode, Forbidden, GatewayError, Unauthenticated
from gateway.transports.contract import GrpcFrontend, GrpcMount
from gateway.wire.errors import GRPC_STATUS
from gateway.wire.grpc import GrpcRequest, GrpcResponse, GrpcStatus, MethodKind
from gateway.wire.protobuf.wire_format import (
    LEN,
    VARINT,
    WireError,
    fields,
    put_varint,
    tag,
    text,
    varint,
)

Status = Callable[[str, Client], Awaitable[bool | None]]
"""Whether a service answers a client; "" asks for the whole server, None means there is no such
service. Raises Unauthenticated, or Forbidden if the client may not ask."""

CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
_SERVING = 1
_NOT_SERVING = 2
_SERVICE_UNKNOWN = 3
_SERVICE = tag(1, LEN)
_STATUS_KEY = varint(tag(1, VARINT))
_SHARE = 4
_TOLD_CODES = frozenset(
    {
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.FORBIDDEN,
        ErrorCode.OVERLOADED,
        ErrorCode.UNAVAILABLE,
    }
)
_MAX_FIELDS = 16


class Health(GrpcFrontend):
    """Handles Check and Watch of grpc.health.v1.Health.

    Args:
        status: Returns the status, for each check and once per interval for each watch.
        interval_s: How soon a watch reports a change.
        max_watches: How many may be open; a quarter of them from one address.
    """

    def __init__(self, status: Status, *, interval_s: float = 1.0, max_watches: int = 512) -> None:
        self._status = status
        self._interval_s = interval_s
        self._max_watches = max_watches
        self._watches: Counter[str] = Counter()  # by the address of the client

    @property
    def mount(self) -> GrpcMount:
        """The service, for a server's *extras*."""
        return GrpcMount({CHECK: MethodKind.UNARY, WATCH: MethodKind.SERVER_STREAM}, self)

    async def __call__(self, wire: GrpcRequest, /) -> AsyncGenerator[GrpcResponse, None]:
        """Yield the response to a check, or the responses to a watch until its client leaves."""
        try:
            service = _service(wire.view)
        except WireError as error:
            yield _ended(GrpcStatus.INVALID_ARGUMENT, f"not a HealthCheckRequest: {error}")
            return
        if wire.method == CHECK:
            yield await self._check(service, wire.client)
            return
        address = wire.client.address
        if problem := self._too_many(address):
            yield _ended(GrpcStatus.RESOURCE_EXHAUSTED, problem)
            return
        self._watches[address] += 1
        try:
            async with aclosing(self._changes(service, wire.client)) as answers:
                async for answer in answers:
                    yield answer
        except Unauthenticated as error:
            yield refused(error)
        finally:
            self._watches[address] -= 1
            self._watches += Counter()  # without addresses that have none

    def reject(self, error: GatewayError, /) -> GrpcResponse:
        """Return the error for a request that was not read completely."""
        return refused(error)

    def _too_many(self, address: str) -> str:
        """Return why a client at *address* may open no further watch; "" if it may."""
        for count, most, whose in (
            (self._watches[address], self._max_watches // _SHARE, "from this address"),
            (self._watches.total(), self._max_watches, "here"),
        ):
            if count >= most:
                return f"too many watches: {count} are open {whose}, at most {most} are allowed"
        return ""

    async def _check(self, service: str, client: Client) -> GrpcResponse:
        try:
            status = await self._status(service, client)
        except (Unauthenticated, Forbidden) as error:
            return refused(error)
        if status is None:
            return _ended(GrpcStatus.NOT_FOUND, "no such service here")
        return _answer(_SERVING if status else _NOT_SERVING)

    async def _changes(self, service: str, client: Client) -> AsyncGenerator[GrpcResponse, None]:
        """Yield the status now and after every change, until the client may not ask."""
        last = None
        while True:
            try:
                found = await self._status(service, client)
            except (Unauthenticated, Forbidden) as error:
                yield refused(error)
                return
            status = _SERVICE_UNKNOWN if found is None else _SERVING if found else _NOT_SERVING
            if status != last:
                last = status
                yield _answer(status)
            await asyncio.sleep(self._interval_s)


def refused(error: GatewayError) -> GrpcResponse:
    """Return the reply to a call about the server itself that was not read completely."""
    is_told = error.code in _TOLD_CODES
    return _ended(
        GRPC_STATUS[error.code] if is_told else GrpcStatus.INVALID_ARGUMENT, error.message
    )


def _service(message: memoryview) -> str:
    """Read the service's name. Raises WireError."""
    name = ""
    for key, value in fields(message, _MAX_FIELDS):
        if key == _SERVICE:
            name = text(value, "service")
    return name


def _ended(status: GrpcStatus, details: str) -> GrpcResponse:
    return GrpcResponse(status=status, details=details)


def _answer(status: int) -> GrpcResponse:
    head = bytearray()
    put_varint(head, _STATUS_KEY, status)
    return GrpcResponse((bytes(head),))
