"""Rules for cut-through: which requests are handled before their bodies have arrived.

A frontend that can start with the beginning of a large body gets that early, and the rest as it
arrives.  Chunked and compressed bodies, and those of which little is missing, are received
completely.  So are bodies above a share of the slots, because a request that was started early
holds its slot while its client sends.
"""

from collections.abc import Callable
from typing import Final, Protocol

from gateway.ir.bodies.streaming_body import StreamingBody
from gateway.transports.contract import HttpFrontend, ServerLimits
from gateway.transports.http.faults import HttpError
from gateway.transports.http.request_head import Head
from gateway.transports.slots import ConcurrencyLimiter
from gateway.wire.http import HttpRequest

LARGEST_HEAD_BYTES: Final = 64 * 1024
_SHARE: Final = 4
_REQUESTS: Final = 256
"""What the share is part of where only memory limits the requests in flight."""

OnBodyError = Callable[[HttpError], None]
"""Called with the error of a body that arrives too slowly."""


class OpenBodyStream(StreamingBody, Protocol):
    """A body of which a part has arrived, as an exchange uses it."""

    @property
    def head(self) -> memoryview:
        """The beginning of the body."""
        ...

    async def drop(self) -> None:
        """Read and drop the rest. Raises ConnectionError if the client has left."""
        ...

    def close(self) -> None:
        """Drop all data. A second call does nothing."""
        ...


def cut_through_limiter(limits: ServerLimits) -> ConcurrencyLimiter:
    """Return the limiter of requests that are started early."""
    most = limits.requests_in_flight or _REQUESTS
    return ConcurrencyLimiter("requests_in_flight", most // _SHARE, 0)


def early_dispatch_bytes(frontend: HttpFrontend, head: Head, limits: ServerLimits) -> int | None:
    """Return how much of its body a request starts with; None for the whole body."""
    length, least = head.length, limits.cut_through_bytes
    if length is None or not least or not least < length <= limits.message_bytes:
        return None
    if head.has_content_coding:
        return None
    wire = HttpRequest(head.method, head.path, head.query, head.headers)
    start = frontend.early_bytes(wire)
    if start is None or start > LARGEST_HEAD_BYTES or length - start < least:
        return None
    return start


async def whole_of(wire: HttpRequest) -> HttpRequest:
    """Return *wire* with its complete body. Raises what `StreamingBody.read_all` raises."""
    if wire.body_stream is None:
        return wire
    body = (await wire.body_stream.read_all(),)
    return HttpRequest(
        wire.method,
        wire.path,
        wire.query,
        wire.headers,
        body,
        wire.deadline,
        client=wire.client,
    )
