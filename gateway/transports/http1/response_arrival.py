"""ResponseArrival: reads a response of an HTTP/1 upstream, as far as there is memory for it."""

import asyncio
import sys
from time import monotonic
from typing import Any, Final

from gateway.accelerator import accelerated
from gateway.ir.errors import GatewayError, NotSent
from gateway.ir.streaming_body import StreamingBody
from gateway.transports.http.client_rules import UpstreamErrors
from gateway.transports.http1.response_reader import ResponseHeadCache, ResponseReader
from gateway.transports.net.sockets import (
    peer_left,
    reset_when_closed,
)
from gateway.transports.net.wrong_port import MAYBE_GRPC
from gateway.wire.http import Buffer, HttpResponse

_MAX_UNREAD_BYTES = 1 << 20

# What is paused: one number for both, because `release` looks at it for every request.
READING = 1

WRITING = 2

UNSENT: Final = sys.maxsize
"""What is unread of a request of which nothing was sent, whatever its size is."""


class ResponseArrival(asyncio.BufferedProtocol):
    """The input of a connection, with its arguments."""

    # The compiled methods find these at their offsets.
    __slots__ = (
        "_buffer",
        "_first",
        "_growing",
        "_heads",
        "_late",
        "_method",
        "_paused",
        "_peer",
        "_pending",
        "_rest",
        "_socket",
        "_waiter",
        "created_at",
        "failure",
        "is_awaiting",
        "is_usable",
        "last_used_at",
        "loop",
        "response",
        "transport",
        "unread_bytes",
        "uses",
    )

    def __init__(
        self,
        peer: UpstreamErrors,
        loop: asyncio.AbstractEventLoop,
        buffer: memoryview,
        heads: ResponseHeadCache,
    ) -> None:
        self._peer = peer
        self._heads = heads
        self.loop = loop
        self._buffer = buffer
        self._socket: Any = None
        self._method = ""
        self._waiter: asyncio.Future[HttpResponse | None] | None = None
        self._paused = 0
        self._pending = b""
        self._growing: asyncio.Task[None] | None = None
        self._rest: StreamingBody | None = None
        self._first: list[Buffer] | None = None
        self._late: list[Buffer] = []
        self.transport: Any = None
        self.created_at = self.last_used_at = monotonic()
        self.uses = 0
        self.is_usable = False
        self.failure: Exception | None = None
        self.is_awaiting = False
        self.response: ResponseReader | None = None
        self.unread_bytes = 0

    @accelerated
    def buffer_updated(self, nbytes: int) -> None:
        """Read a part of a response; data that no request expects ends the connection."""
        response = self.response
        if response is not None:
            if response.reads_into_body and not response.is_done:
                response.received(nbytes)
                if response.needs_memory:
                    self._grow(response)
                self._notify(response)
            else:
                self._feed(response, self._buffer[:nbytes].tobytes())
        elif self.is_awaiting:
            data = self._buffer[:nbytes].tobytes()
            complete = self._heads.complete_response(data) if self._method != "HEAD" else None
            if complete is not None:
                self.is_awaiting = False
                self._wake(complete)
            else:
                self._begin_response(data)
        else:
            self.abort()

    def _begin_response(self, data: bytes) -> None:
        """Read the first part of a response that is not plain."""
        self.response = ResponseReader(self._peer, self._method, streamed=False, heads=self._heads)
        self._feed(self.response, data)

    def has_ended(self) -> bool:
        """Return whether the peer has closed it, even if the loop has not read that yet."""
        return peer_left(self._socket)

    def response_reader(self) -> ResponseReader:
        """Return the complete response of `exchange`. Raises what `more` raises."""
        if self.failure is not None:
            raise self.failure
        assert self.response is not None  # noqa: S101  # else there was a failure
        return self.response

    def on_timeout(self) -> None:
        """Fail the exchange: its deadline has passed."""
        if self.is_awaiting:
            self._fail(self._peer.late())

    async def more(self) -> None:
        """Wait until the response is complete; if it is streamed, until more of it has arrived.

        Raises:
            Unavailable: The connection broke.
            UpstreamProtocolError, TooLarge: The response cannot be used.
        """
        if self.failure is None:
            self._waiter = self.loop.create_future()
            if not self._pending and self._growing is None:
                self._resume()
            await self._waiter
        if self.failure is not None:
            raise self.failure

    def abort(self) -> None:
        """Close at once with a reset, without sending the data that is still buffered.

        A server may take a plain end of the stream for a half-close, and go on working.
        """
        if self.transport is not None:
            self.is_usable = False
            reset_when_closed(self._socket)
            self.transport.abort()

    def _pause(self) -> None:
        if not self._paused & READING and self.transport is not None:
            self._paused |= READING
            self.transport.pause_reading()

    def _resume(self) -> None:
        paused = self._paused & READING
        if paused and self.transport is not None and not self.transport.is_closing():
            self._paused &= ~READING
            self.transport.resume_reading()

    def _feed(self, response: ResponseReader, data: bytes) -> None:
        """Parse *data*, as far as the turn of this connection and the memory budget allow."""
        try:
            at = response.feed(data)
        except GatewayError as error:
            self._fail(error)
            return
        if response.needs_memory and not response.is_done:
            self._pending = data[at:]
            self._grow(response)
        elif response.is_behind:
            self._pending = data[at:]
            self._pause()
            self.loop.call_soon(self._continue, response)
        elif at != len(data):
            response.is_persistent = False  # data follows that no request expects
        self._notify(response)

    def _continue(self, response: ResponseReader) -> None:
        """Parse the data that waited for the next turn of the loop, or for memory."""
        data, self._pending = self._pending, b""
        if response is not self.response or self.failure is not None or not self.is_usable:
            return
        if data:
            self._feed(response, data)
        waits = self._pending or self._growing is not None
        if not waits and not (response.is_streamed and response.pieces):
            self._resume()

    def _grow(self, response: ResponseReader) -> None:
        """Stop reading the response until there is memory for it."""
        self._pause()
        if self._growing is None:
            self._growing = self.loop.create_task(self._wait_for_memory(response))

    async def _wait_for_memory(self, response: ResponseReader) -> None:
        try:
            await response.grow()
        except GatewayError as error:
            self._fail(error)
        finally:
            self._growing = None
        self._continue(response)

    @property
    def has_replied(self) -> bool:
        """Whether the server has replied to a request on this connection."""
        return self.uses > 1 or (self.uses == 1 and not self.is_awaiting)

    def mark_unusable(self) -> None:
        """Stop using the connection: its last response does not belong to the request."""
        self.is_usable = False

    def _notify(self, response: ResponseReader) -> None:
        """Wake the caller if the response is complete, or if it is streamed and has grown."""
        self.is_awaiting = not response.is_done
        if response.is_streamed:
            if response.pieces and sum(map(len, response.pieces)) > _MAX_UNREAD_BYTES:
                self._pause()
            self._wake()
        elif response.is_done:
            self._wake()

    def _end(self, why: str) -> None:
        if not self.is_awaiting:
            return
        if self.response is not None and self.response.feed_eof():
            self._notify(self.response)
        else:
            is_silent = self.uses == 1 and not (self.response and self.response.is_started)
            error = self._peer.lost(why, MAYBE_GRPC if is_silent else "")
            self._fail(NotSent(error.message) if self.unread_bytes == UNSENT else error)

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
        self._wake()

    def _wake(self, complete: HttpResponse | None = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(complete)
