"""One connection to an HTTP/1 upstream: one request at a time, clean before it is used again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any

from gateway.ir.errors import GatewayError
from gateway.ir.streaming_body import StreamingBody
from gateway.transports.http.client_rules import UpstreamErrors
from gateway.transports.http1.head_reader import READ_BYTES
from gateway.transports.http1.response_reader import ResponseHeadCache, ResponseReader
from gateway.transports.net.sockets import peer_refused, reset_when_closed, tune
from gateway.wire.http import Buffer, HttpResponse

_WAITING_BYTES = 1 << 20


class Http1ClientConnection(asyncio.BufferedProtocol):
    """A connection of a pool.

    Args:
        peer: Its far end.
        loop: It runs on.
        buffer: Read into and emptied within one call of the loop: one for all connections.
        known: Heads of answers, of all connections to this peer.

    Attributes:
        loop: Its own.
        born: When it was made, on the clock of `time.monotonic`.
        since: When it was last used.
        uses: Requests sent on it.
        usable: Another request may be sent on it.
        refused: The peer has reset it: what was sent last was not read.
        failure: Why there will be no answer.
        awaited: An answer is, that is not whole yet.
        answer: That one, unless nothing of it has come, or all at once; until it is let go of.
    """

    def __init__(
        self,
        peer: UpstreamErrors,
        loop: asyncio.AbstractEventLoop,
        buffer: memoryview,
        known: ResponseHeadCache,
    ) -> None:
        self._peer = peer
        self._known = known
        self.loop = loop
        self._buffer = buffer
        self._socket: Any = None
        self._method = ""
        self._waiter: asyncio.Future[HttpResponse | None] | None = None
        self._paused = False
        self._pending = b""
        self._growing: asyncio.Task[None] | None = None
        self._rest: StreamingBody | None = None
        self._first: list[Buffer] | None = None
        self.transport: Any = None
        self.born = self.since = monotonic()
        self.uses = 0
        self.usable = False
        self.refused = False
        self.failure: Exception | None = None
        self.awaited = False
        self.answer: ResponseReader | None = None

    # -- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket's options."""
        self.transport = transport
        self.usable = True
        self._socket = transport.get_extra_info("socket")
        tune(self._socket)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's
        """Return where the next bytes go: into the body that is being read, if it is large."""
        answer = self.answer
        room = answer.room() if answer is not None and answer.lands else None
        return self._buffer if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        """Take a part of an answer; what comes unasked ends the connection."""
        answer = self.answer
        if answer is not None:
            if answer.lands and not answer.done:
                answer.received(nbytes)
                if answer.is_short:
                    self._grow(answer)
                self._tell(answer)
            else:
                self._feed(answer, self._buffer[:nbytes].tobytes())
        elif self.awaited:
            data = self._buffer[:nbytes].tobytes()
            whole = self._known.complete_response(data) if self._method != "HEAD" else None
            if whole is not None:
                self.awaited = False
                self._wake(whole)
            else:
                self.answer = ResponseReader(
                    self._peer, self._method, streamed=False, known=self._known
                )
                self._feed(self.answer, data)
        else:
            self.abort()

    def eof_received(self) -> bool:
        """Learn, while the socket is still open, how the upstream closed it."""
        # A peer that closed an idle connection resets it when the request arrives; one that took
        # the request and then failed merely ends it.
        self.refused = peer_refused(self._socket)
        self.usable = False
        self._end("it was closed before the answer was whole")
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        """Note a reset: what was sent was not read."""
        if isinstance(exc, ConnectionResetError | BrokenPipeError):
            self.refused = True
        self.usable = False
        self._end(str(exc) if exc else "it was closed before the answer was whole")
        self.transport = None
        if self._rest is not None:
            self._rest.detach()

    def pause_writing(self) -> None:
        """Take no more of a body that is arriving: the kernel has not taken what was written."""
        if self._rest is not None:
            self._rest.pause()

    def resume_writing(self) -> None:
        """Take more of it."""
        if self._rest is not None:
            self._rest.resume()

    # -- one request

    def exchange(
        self, method: str, buffers: Sequence[Buffer]
    ) -> asyncio.Future[HttpResponse | None]:
        """Send a request; return what ends with its answer, as nearly all of them come.

        It ends with None for what needs another look: see `taken`.

        Args:
            method: Of the request.
            buffers: Head and body.
        """
        self.uses += 1
        self.refused = False
        self.awaited = True
        self._method = method
        self._waiter = waiter = self.loop.create_future()
        self.transport.writelines(buffers)
        return waiter

    def response_reader(self) -> ResponseReader:
        """Return the whole answer; raises as `more`."""
        if self.failure is not None:
            raise self.failure
        assert self.answer is not None  # noqa: S101  # else there was a failure
        return self.answer

    def begin(
        self, method: str, buffers: Sequence[Buffer], rest: StreamingBody | None, *, streamed: bool
    ) -> ResponseReader:
        """Send a request; return its answer, which is to come: see `more`.

        Args:
            method: Of the request.
            buffers: Head and body.
            rest: What follows of the body, as it comes.
            streamed: The answer's body is wanted in pieces.
        """
        self.uses += 1
        self.refused = False
        self.awaited = True
        self.answer = answer = ResponseReader(
            self._peer, method, streamed=streamed, known=self._known
        )
        if rest is not None:
            self._rest = rest
            self._first = [*buffers]  # what is here already goes with the head
            rest.pipe_to(self)
            buffers, self._first = self._first, None
        self.transport.writelines(buffers)
        return answer

    def write(self, piece: memoryview) -> None:
        """Send the next piece of a body that is arriving."""
        if self._first is not None:
            self._first.append(piece)
        elif self.usable:
            self.transport.write(piece)

    def on_timeout(self) -> None:
        """Fail the exchange: its deadline has passed."""
        if self.awaited:
            self._fail(self._peer.late())

    async def more(self) -> None:
        """Wait until all of the answer has come; of a streamed one, more of it.

        Raises:
            Unavailable: The connection broke.
            UpstreamProtocolError, TooLarge: The answer cannot be used.
        """
        if self.failure is None:
            self._waiter = self.loop.create_future()
            if not self._pending and self._growing is None:
                self._read_on()
            await self._waiter
        if self.failure is not None:
            raise self.failure

    def release(self) -> bool:
        """Let go of the answer, read to its end; return whether the connection may be kept.

        Not one on which a body is not all sent: what is missing would be taken from what follows.
        """
        answer, self.answer = self.answer, None
        self._waiter = self.failure = None  # an error holds who waited, and so this
        self.since = monotonic()
        keeps = not self.awaited
        if answer is not None:
            answer.close()
            keeps = keeps and answer.keeps
        self.awaited = False
        if self._growing is not None:
            self._growing.cancel()
        keeps = keeps and not self._pending
        if self._rest is not None:
            self._rest.detach()
            keeps = keeps and not self._rest.remaining_bytes
            self._rest = None
        return keeps and self.usable and not self._paused

    def abort(self) -> None:
        """Close at once; closing in good order would first send what is still unsent.

        The server is told by a reset: it may take the mere end of what is sent for half a close,
        and work on.
        """
        if self.transport is not None:
            self.usable = False
            reset_when_closed(self._socket)
            self.transport.abort()

    def _pause(self) -> None:
        if not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def _read_on(self) -> None:
        if self._paused and self.transport is not None and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    def _feed(self, answer: ResponseReader, data: bytes) -> None:
        """Give an answer what has come of it, as much as its turn and the memory allow."""
        try:
            at = answer.feed(data)
        except GatewayError as error:
            self._fail(error)
            return
        if answer.is_short and not answer.done:
            self._pending = data[at:]
            self._grow(answer)
        elif answer.is_behind:
            self._pending = data[at:]
            self._pause()
            self.loop.call_soon(self._take_turn, answer)
        elif at != len(data):
            answer.keeps = False  # an answer that nobody asked for follows
        self._tell(answer)

    def _take_turn(self, answer: ResponseReader) -> None:
        """Go on with what had to wait for the turns of others."""
        data, self._pending = self._pending, b""
        if answer is not self.answer or self.failure is not None or not self.usable:
            return
        if data:
            self._feed(answer, data)
        waits = self._pending or self._growing is not None
        if not waits and not (answer.streamed and answer.pieces):
            self._read_on()

    def _grow(self, answer: ResponseReader) -> None:
        """Read no more of an answer until there is memory for it."""
        self._pause()
        if self._growing is None:
            self._growing = self.loop.create_task(self._wait_for_memory(answer))

    async def _wait_for_memory(self, answer: ResponseReader) -> None:
        try:
            await answer.grow()
        except GatewayError as error:
            self._fail(error)
        finally:
            self._growing = None
        self._take_turn(answer)

    def spoil(self) -> None:
        """Use the connection no more: what came on it was not the answer to what was asked."""
        self.usable = False

    def _tell(self, answer: ResponseReader) -> None:
        """Let whoever waits know what has come of an answer."""
        self.awaited = not answer.done
        if answer.streamed:
            if answer.pieces and sum(map(len, answer.pieces)) > _WAITING_BYTES:
                self._pause()
            self._wake()
        elif answer.done:
            self._wake()

    def _end(self, why: str) -> None:
        if not self.awaited:
            return
        if self.answer is not None and self.answer.ended():
            self._tell(self.answer)
        else:
            self._fail(self._peer.lost(why))

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
        self._wake()

    def _wake(self, whole: HttpResponse | None = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(whole)


def read_buffer() -> memoryview:
    """Return what the connections of a pool read into."""
    return memoryview(bytearray(READ_BYTES))
