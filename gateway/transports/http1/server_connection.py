"""One HTTP/1 connection of the native make: reading ahead, answering in order, ending.

Requests are read ahead of their answers, within bounds, and answered one after the other by one
task. A body is read when its request is answered and there is room for it; until then it stays with
the client. What broke is answered in its turn, after all that came whole before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from gateway.concurrency.timeouts import RestartableTimer
from gateway.ir.errors import Overloaded
from gateway.transports.admission import (
    CLIENT_MEMORY,
    DESCRIPTORS,
    NOBODY,
    ConnectionCount,
    client_address,
    client_shares,
    connection_refusal,
)
from gateway.transports.http.exchange import Exchange, failure
from gateway.transports.http.faults import HttpError, connection_refused_response
from gateway.transports.http.half_close import HalfCloseMonitor
from gateway.transports.http.interfaces import ListenerState
from gateway.transports.http.request_head import Version, head_too_slow
from gateway.transports.http.response_writer import write_response
from gateway.transports.http1.head_reader import READ_BYTES, HeadReader, RequestHeadCache
from gateway.transports.http1.request import BufferedRequest, ReceivingRequest
from gateway.transports.net.refused_connection import refuse_connection
from gateway.transports.net.sockets import pause_until_taken, peer_missing, peer_refused, tune
from gateway.wire.http import HttpResponse

_LINGER_S = 1.0
_TURN_REQUESTS = 8
_HEAD_BYTES = 4096  # nearly every head is shorter


class Http1ServerProtocol:
    """What the connections of a server share.

    Args:
        listener: Of the server.
        count: Of its connections.
        reserve: They may use the descriptors that are kept in reserve.
    """

    def __init__(self, listener: ListenerState, count: ConnectionCount, *, reserve: bool) -> None:
        self.listener = listener
        self.count = count
        self.reserve = reserve
        self.connections: set[Http1ServerConnection] = set()
        self.memory = RequestHeadCache()
        # Read into and emptied within one call of the loop, so one will do for all.
        self.buffer = memoryview(bytearray(READ_BYTES))

    def __call__(self) -> Http1ServerConnection:
        """Return the protocol of one more connection."""
        return Http1ServerConnection(self, asyncio.get_running_loop())

    @property
    def open_connections(self) -> list[Http1ServerConnection]:
        """Connections there are now."""
        return list(self.connections)

    def refusal(self, transport: Any, address: str) -> Overloaded | None:
        """Return why one connection more from *address* is too many; None where there is room."""
        refusal = connection_refusal(self.count, transport, address, reserve=self.reserve)
        if refusal is not None:
            self.listener.refused(refusal)
        return refusal


class Http1ServerConnection(asyncio.BufferedProtocol):
    """A connection of a server; what `http_exchange.Connection` asks for, and the reading.

    Args:
        door: Of the server.
        loop: Its clock and timers.
    """

    def __init__(self, door: Http1ServerProtocol, loop: asyncio.AbstractEventLoop) -> None:
        limits = door.listener.limits
        self._door = door
        self._loop = loop
        self._limits = limits
        self._heads = HeadReader(limits, door.memory)
        self._queue: deque[BufferedRequest | HttpError] = deque()
        self._current: BufferedRequest | None = None
        self._reading: ReceivingRequest | None = None
        self._unparsed = b""
        self._paused = False
        self._deaf = False
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._head_timer = RestartableTimer(loop, limits.header_timeout_s, self._head_timed_out)
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        self._presence: HalfCloseMonitor | None = None
        self._address: str | None = None
        self.transport: Any = None
        self.write_paused: asyncio.Event | None = None
        self.responses_sent = 0
        self.head_sent = False
        self.ending = False
        self.client = NOBODY
        self.cancel_exchange: Callable[[], None] | None = None

    @property
    def in_flight(self) -> int:
        """Requests received and not yet answered."""
        return len(self._queue) + (self._current is not None)

    @property
    def request_version(self) -> Version | None:
        """Version of the request that is being answered; None for no request."""
        return None if self._current is None else self._current.version

    @property
    def must_close(self) -> bool:
        """Whether the answer being written is the last."""
        return self.ending and not self._queue

    # -- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection in, or close it at once when there are too many."""
        address = client_address(transport)
        refusal = self._door.refusal(transport, address)
        if refusal is not None:
            response = connection_refused_response(refusal.message)
            refuse_connection(transport, response, linger=refusal.limit != DESCRIPTORS)
            return
        self.transport = transport
        self._address = address
        self._door.count.enter(address)
        listener = self._door.listener
        self.client = client_shares(address, listener.slots, listener.budget)
        self._door.connections.add(self)
        tune(transport.get_extra_info("socket"))
        pause_until_taken(transport)
        self._head_timer.start()
        self._task = self._loop.create_task(self._serve())

    def connection_lost(self, exc: BaseException | None) -> None:  # noqa: ARG002  # asyncio's
        """Forget the connection, and cancel what still answers."""
        if self._address is None:
            return
        self._door.count.leave(self._address)
        self._door.connections.discard(self)
        self._address = None
        self.transport = None
        self._forget()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        self.resume_writing()
        if self._reading is not None:
            self._reading.fail(ConnectionResetError("the client has left"))
        # What holds this connection, a body under way too, would else stay until a collection.
        self._reading = None
        self._heads.forget()
        self._head_timer.close()
        if self._presence is not None:
            self._presence.close()
            self._presence = None
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        """Note that the kernel has not taken all that was written."""
        self.write_paused = asyncio.Event()

    def resume_writing(self) -> None:
        """Note that it has."""
        if self.write_paused is not None:
            self.write_paused.set()
            self.write_paused = None

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # asyncio's
        """Return where the next bytes go: into the body that is being read, if there is one."""
        reading = self._reading
        room = None if reading is None else reading.room()
        return self._door.buffer if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        """Take what has come."""
        reading = self._reading
        if reading is not None and reading.room() is not None:
            reading.received(nbytes)
            if reading.is_complete:
                self._reading = None
            return
        data = self._door.buffer[:nbytes]
        if nbytes == READ_BYTES:
            # More is coming, and most of it is a body: with its head, that has a place to go to.
            self.data_received(bytes(data[:_HEAD_BYTES]))
            data = data[_HEAD_BYTES:]
            if self._reading is not None and self._reading.put(data):
                return
        self.data_received(bytes(data))

    def data_received(self, data: bytes) -> None:
        """Take requests from *data*, be it from before this was known as HTTP; hold the rest."""
        if self._deaf:
            return
        if self._unparsed:
            data, self._unparsed = self._unparsed + data, b""
        at, end = 0, len(data)
        while at < end:
            reading = self._reading
            if reading is not None:
                at = reading.feed(data, at)
                if reading.is_complete:
                    self._reading = None
                elif at < end:
                    break
            elif self._queue and len(self._queue) >= self._limits.pipelined_requests:
                break
            else:
                at = self._read_head(data, at)
        if at < end:
            self._unparsed = data[at:]
            self.pause_reading()

    def eof_received(self) -> bool:
        """Keep a half-closed connection open while whole requests await their answers."""
        whole = self.in_flight > 0 and self._reading is None
        encrypted = self.transport is None or self.transport.get_extra_info("sslcontext")
        if not whole or encrypted:
            return False
        self.ending = True
        self._head_timer.stop()
        self._presence = HalfCloseMonitor(self._loop, self)
        self._presence.watch()
        return True

    # -- reading

    def resume_reading(self) -> None:
        """Hand what is held to the body that is now wanted, and read on."""
        self.data_received(b"")  # nothing new behind what is held
        self._read_on()

    def pause_reading(self) -> None:
        """Leave with the client what it has not sent yet, until `give_me`."""
        if not self._paused and self.transport is not None:
            self._paused = True
            self.transport.pause_reading()

    def check_peer(self, missing: int) -> None:
        """End the connection if its client has left, which is not seen while nothing is read."""
        if self.transport is None:
            return
        sock = self.transport.get_extra_info("socket")
        encrypted = self.transport.get_extra_info("sslcontext") is not None
        if peer_refused(sock) if encrypted else peer_missing(sock, missing):
            self.abort()

    def _read_head(self, data: bytes, at: int) -> int:
        try:
            head, at = self._heads.feed(data, at)
        except HttpError as fault:
            self._break(fault)
            return len(data)
        if head is None:
            self._head_timer.start()
            return at
        if self._head_timer.armed:
            self._head_timer.stop()
        stop = at + (head.length or 0)
        if head.chunked or stop > len(data):
            self._reading = coming = ReceivingRequest(self, head, self._door.memory)
            if not self.in_flight:
                coming.preallocate(self._door.listener, self.client)
            self._arrived(coming)
            return coming.feed(data, at)
        self._arrived(BufferedRequest(head, self._door.memory, memoryview(data[at:stop])))
        return stop

    def _break(self, fault: HttpError) -> None:
        """Answer *fault* in its turn, and read no more."""
        self._deaf = True
        self._head_timer.stop()
        self._arrived(fault)

    def _read_on(self) -> None:
        if self._paused and self.transport is not None and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    # -- time

    def _head_timed_out(self) -> None:
        self._door.listener.refused(head_too_slow(self._limits).error)
        if self.in_flight:
            self._deaf = self.ending = True  # answer what came whole, then close
        elif self.transport is not None:
            self.transport.abort()

    def _look_at_idle(self) -> None:
        self._idle_timer = None
        if self.transport is None or self.in_flight or self._heads.begun:
            return  # it is armed again when the connection idles again
        left_s = self._idle_since + self._limits.keepalive_s - self._loop.time()
        if left_s <= 0:
            self.transport.close()
        else:
            self._idle_timer = self._loop.call_later(left_s, self._look_at_idle)

    # -- answering

    def _arrived(self, asked: BufferedRequest | HttpError) -> None:
        self._queue.append(asked)
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _serve(self) -> None:
        """Answer request after request."""
        listener, queue = self._door.listener, self._queue
        CLIENT_MEMORY.set(self.client.memory)
        in_a_row = 0
        try:
            while True:
                if not queue:
                    if self.ending or self._deaf:
                        break
                    await self._idle()
                    in_a_row = 0
                else:
                    in_a_row += 1
                    if in_a_row == _TURN_REQUESTS:  # others have their turn
                        in_a_row = 0
                        await asyncio.sleep(0)
                asked = queue.popleft()
                if isinstance(asked, HttpError):
                    listener.refused(asked.error)
                    self._send_error(asked.response)
                    break
                self._current = asked
                if self._unparsed and self._reading is None:
                    self.resume_reading()
                if not await Exchange(listener, self, asked, self._task).run():
                    break
                self._current = None
                del asked  # a connection that waits for the next holds no body
        except asyncio.CancelledError:
            self.abort()
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is, it ends this connection alone
            self._send_error(failure(error))
        finally:
            self._current = None
            self._task = None  # which holds what ended it, and that this frame
            self._end()

    def _idle(self) -> asyncio.Future[None]:
        """Return what is done when the next request has come."""
        self._idle_since = self._loop.time()
        if self._idle_timer is None:  # one does for all the pauses of a connection
            self._idle_timer = self._loop.call_later(self._limits.keepalive_s, self._look_at_idle)
        self._waiter = self._loop.create_future()
        return self._waiter

    def _send_error(self, response: HttpResponse) -> None:
        """Write an answer of our own, which is the last."""
        if self.transport is None:
            return
        if self.head_sent and self._current is not None:
            self.abort()  # what has begun must not look as if it had ended
            return
        write_response(self.transport, response, keep=False, version=(1, 1))
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _end(self) -> None:
        """Close, once the client has had a moment to take the answer in."""
        self._forget()
        if self.transport is None or self.transport.is_closing():
            return
        if self._reading is None and not self._unparsed and not self._heads.begun:
            self.transport.close()
            return
        # It may be sending still: a reset would destroy what it has not read yet.
        self._reading = None
        self._unparsed = b""
        self._read_on()
        self._idle_timer = self._loop.call_later(_LINGER_S, self.transport.close)

    # -- ending

    def _forget(self) -> None:
        """Take nothing more, and give up what nobody will answer."""
        self._deaf = True
        for asked in self._queue:
            if isinstance(asked, BufferedRequest) and asked.lease is not None:
                asked.lease.close()
        self._queue.clear()

    def announce_close(self) -> None:
        """Let the last answer that is due say that it is."""
        self.ending = True

    def drain(self) -> None:
        """Close when idle, else after the last answer that is due."""
        self.ending = True
        if not self.in_flight and not self._heads.begun and self.transport is not None:
            self.transport.close()

    def fail_in_flight(self) -> None:
        """Answer what is in flight with an error."""
        (self.cancel_exchange or self.abort)()

    def abort(self) -> None:
        """Close at once, without the end of what was being written."""
        if self.transport is not None:
            self.transport.abort()
