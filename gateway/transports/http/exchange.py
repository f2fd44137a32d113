"""Exchange: one HTTP request and its response, from the head until the response is sent.

It checks the head, reads the body, calls the frontend and sends the response.  The bytes of the
body are reserved while it arrives and until the service has replied; those of the response until
they are sent.  A slot is acquired when the body is complete and released when the service has
replied, so neither slow senders nor slow readers hold one.

The steps are: preflight and identify, where the listener has them (`_receive_guarded`); receive and
admit, in one step if all has arrived (`_try_immediate`); handle; write.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from functools import partial
from typing import Any

from msgspec.structs import replace  # noqa: TID251  # of messages, not of calls

from gateway.accelerator import accelerated
from gateway.concurrency.limiter import WAITED_S, waited_s
from gateway.ir import errors
from gateway.ir.context import Client
from gateway.transports.authentication import MAX_DRAINED_BYTES, challenge
from gateway.transports.callers import IdentifiedCaller
from gateway.transports.contract import HttpAsk, HttpFrontend, is_probe
from gateway.transports.http.content_coding import ACCEPTED, coding_of, compress
from gateway.transports.http.cors import CorsRules, is_preflight
from gateway.transports.http.cut_through import OpenBodyStream, early_dispatch_bytes, whole_of
from gateway.transports.http.faults import HttpError, text_response
from gateway.transports.http.interfaces import HttpConnection, ListenerState, RequestReader
from gateway.transports.http.request_body import EMPTY, check_declared, undo_coding
from gateway.transports.http.request_head import Head
from gateway.transports.http.response_writer import HTTP1, ResponseWriter
from gateway.transports.http.states import OPEN
from gateway.transports.memory_budget import UNLIMITED
from gateway.transports.net.write_drain import SlowReaderError, drain_writes
from gateway.transports.read_ahead import ReadAhead
from gateway.transports.reservation import (
    RESPONSE_PATIENCE_S,
    RESPONSE_UNCOUNTED_BYTES,
    Reservation,
    no_memory,
)
from gateway.transports.reserved_buffer import uncounted_bytes
from gateway.wire.errors import HTTP_STATUS
from gateway.wire.heads.request_id import header_request_id
from gateway.wire.http import (
    NO_HEADERS,
    ExtendedHeaders,
    Headers,
    HttpRequest,
    HttpResponse,
    size_of,
    with_headers,
)


class Exchange:
    """A request of a connection, until its response is written.

    Args:
        listener: The state of the listener.
        connection: The connection of the client.
        incoming: The request.
        task: The task that will run the exchange.
        writer: Writes the response.
    """

    __slots__ = (
        "_arrival",
        "_body",
        "_client",
        "_connection",
        "_deadline",
        "_elements",
        "_fault",
        "_frontend",
        "_handle",
        "_has_slot",
        "_head",
        "_held",
        "_incoming",
        "_is_cancelled",
        "_listener",
        "_reservation",
        "_should_close",
        "_should_drop",
        "_task",
        "_writer",
    )

    def __init__(
        self,
        listener: ListenerState,
        connection: HttpConnection,
        incoming: RequestReader,
        task: asyncio.Task[Any] | None,
        writer: ResponseWriter = HTTP1,
    ) -> None:
        self._writer = writer
        self._listener = listener
        self._connection = connection
        self._incoming = incoming
        self._task = task
        self._should_close = incoming.should_close
        self._head: Head | None = None
        self._frontend: HttpFrontend | None = None
        self._handle: HttpAsk
        self._deadline: float | None = None
        self._body: memoryview | None = None
        self._held = 0
        self._has_slot = True
        self._reservation = incoming.reservation
        self._arrival: OpenBodyStream | None = None
        self._should_drop = False
        self._elements: int | None = None
        self._fault: HttpError | None = None
        self._is_cancelled = False
        self._client: Client | None = None  # only where clients are asked for

    async def run(self) -> bool:  # noqa: C901, PLR0912, PLR0915  # one frame
        """Handle the request; return whether the connection may carry another one."""
        connection, listener = self._connection, self._listener
        connection.is_head_sent = False
        connection.cancel_exchange = self._cancel
        try:
            # Written out: each frame that a request waits in is gone through twice.
            if listener.is_plain:
                wire = self._try_immediate() or await self._receive()
            else:
                wire = await self._receive_guarded()
            if wire is not None:
                response: HttpResponse | None = None
                try:
                    found = await (
                        self._handle(wire) if wire.body_stream is None else self._early(wire)
                    )
                    if isinstance(found, HttpResponse):
                        response = found
                    else:
                        await self._relay(found)
                finally:
                    if self._has_slot:  # as `_release_slot`
                        listener.slots.release(1, connection.client.slots)
                if response is not None:
                    wire = None  # with the body, of which nothing is needed any more
                    body, head = response.body, self._head
                    size = len(body[0]) if len(body) == 1 else size_of(body)
                    if size > RESPONSE_UNCOUNTED_BYTES or head is None or head.wants is not None:
                        await self._send(response)
                    elif not self._write(response, response.is_compressible and size > 0):
                        await self._finish_write()
            if self._arrival is not None and self._should_drop:
                await self._arrival.drop()
        except (HttpError, OSError, asyncio.CancelledError) as error:
            if not await self._ended(error):
                raise
        finally:
            connection.cancel_exchange = None
            # The error would keep this frame and the body alive until the next garbage collection.
            self._task = None
            connection.responses_sent += 1
            if self._held:
                listener.budget.release(self._held, connection.client.memory)
            if waited_s():  # the next request of the connection has the same task
                WAITED_S.set(0.0)
            if self._reservation is not None:
                self._free(self._reservation)
        return not self._should_close

    def _free(self, reservation: Reservation) -> None:
        """Release the reservation of a body."""
        if self._arrival is not None:
            self._arrival.close()
            self._listener.cut_through_limiter.release()
        reservation.close()

    async def _ended(self, error: BaseException) -> bool:
        """Send *error* to the client if possible; return False if it must be raised."""
        try:
            if isinstance(error, OSError):
                self._on_disconnect(error)
            elif isinstance(error, HttpError):
                await self._send_error(error)
            elif self._should_send_error():
                await self._send_final_error()
            else:
                return False
        except OSError as later:
            self._on_disconnect(later)
        return True

    def _should_send_error(self) -> bool:
        """Return whether a cancelled request still gets a response; abort it otherwise."""
        wanted = self._is_cancelled or self._fault is not None
        if not wanted or self._connection.is_head_sent or self._task is None:
            self._connection.abort()
            return False
        self._task.uncancel()
        return True

    async def _send_final_error(self) -> None:
        if self._fault is not None:
            await self._send_error(self._fault)
        else:
            await self._refuse(errors.Unavailable("the gateway is shutting down"))

    def _on_disconnect(self, error: OSError) -> None:
        """Note that the client has left."""
        self._should_close = True
        if isinstance(error, SlowReaderError):
            self._report(errors.Cancelled(str(error), limit=error.limit))
        else:
            self._connection.abort()

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    # -- steps before a request is received, which only some listeners have

    async def _receive_guarded(self) -> HttpRequest | None:
        """Return a request whose client is known; None if it was a preflight, or is rejected.

        The client is asked for before memory is reserved or a body is read.
        """
        listener, caller = self._listener, self._connection.client.caller
        head = self._head = self._incoming.head(listener.limits)
        if listener.cors is not None and is_preflight(head.method, head.headers):
            wire = HttpRequest(head.method, head.path, head.query, head.headers)
            await self._send(await listener.cors.preflight(wire))
            return None
        authentication = listener.authentication
        # A connection that was accepted before the listener asked for clients is drained.
        if authentication is None or not isinstance(caller, IdentifiedCaller):
            return self._try_immediate() or await self._receive()
        try:
            found = authentication.client(caller, head.headers, head.path)
            client = self._client = found if isinstance(found, Client) else await found
        except errors.GatewayError as error:
            await self._deny(head, error)
            return None
        received = self._try_immediate() or await self._receive()
        if received is None:
            return None
        headers = authentication.visible(caller, head.headers)
        # Another request of the connection may have named another client meanwhile.
        if headers is head.headers and received.client is client:
            return received
        return replace(received, headers=headers, client=client)

    async def _deny(self, head: Head, error: errors.GatewayError) -> None:
        """Send *error* to a client that may not send the request."""
        error.__traceback__ = None
        await self._drain_small_body(head)
        try:
            self._frontend, _ = self._listener.handler_of(head.path)
        except HttpError:  # nothing serves the path
            status = HTTP_STATUS[error.code]
            response = text_response(status, error.message, self._report(error, status))
            await self._send(with_headers(response, self._hints(error)))
        else:
            wire = HttpRequest(head.method, head.path, head.query, self._visible())
            self._frontend.note_request(wire, error)
            await self._refuse(error)

    async def _drain_small_body(self, head: Head) -> None:
        """Read the rest of a small body, which keeps the connection; a larger one is not read."""
        incoming = self._incoming
        is_small = not head.has_expectation and 0 < (head.length or 0) <= MAX_DRAINED_BYTES
        if incoming.is_complete or not is_small:
            return
        held = Reservation(UNLIMITED, None)  # of a client that may have none of the budget
        try:
            await incoming.body(head.length, self._listener.limits, held)
        except errors.GatewayError:
            self._should_close = True  # its framing is broken, and nobody needs it
        finally:
            held.close()

    def _visible(self) -> Headers:
        """Return the headers, without credentials where clients are asked for them."""
        if self._head is None:
            return NO_HEADERS
        headers, caller = self._head.headers, self._connection.client.caller
        authentication = self._listener.authentication
        if authentication is None or not isinstance(caller, IdentifiedCaller):
            return headers
        return authentication.visible(caller, headers)

    # -- the request

    @accelerated
    def _try_immediate(self) -> HttpRequest | None:
        """Return a request that has arrived completely, with a slot acquired. The usual case.

        The result is None if the request has to wait; `_receive` continues then.

        Raises:
            HttpError: The request is rejected.
        """
        listener, incoming = self._listener, self._incoming
        head = self._head = incoming.head(listener.limits)
        self._frontend, self._handle = listener.handler_of(head.path)
        if head.timeout_s is not None:
            self._deadline = time.monotonic() + head.timeout_s
        body, length, client = EMPTY, head.length, self._connection.client
        budget = listener.budget
        size = budget.call_bytes
        if length is not None:
            here = incoming.buffered_body
            if here is None:
                return None
            if self._reservation is None:
                if head.has_content_coding or length > listener.limits.message_bytes:
                    return None
                size += length
            body = here
        elif head.is_chunked:
            return None
        if not budget.try_acquire(size, client.memory):
            if size == budget.call_bytes:  # there are no bytes, or their memory is reserved
                self._body = body
            return None
        self._held = size
        if not listener.slots.try_acquire(1, client.slots):
            self._body = body
            return None
        caller, fields = client.caller, head.headers
        return HttpRequest(
            head.method,
            head.path,
            head.query,
            fields,
            (body,),
            self._deadline,
            client=caller.last if caller.fields is fields else caller.client(fields),
        )

    async def _receive(self) -> HttpRequest | None:
        """Wait for the rest of a request, and for a slot; return None if it was rejected."""
        head, body = self._head, self._body
        assert head is not None  # noqa: S101  # set by `_try_immediate`
        try:
            if body is None:
                body = await self._begin(head)
            if body is None:
                body = await self._received(head)
            wire = HttpRequest(
                head.method,
                head.path,
                head.query,
                head.headers,
                (body,),
                self._deadline,
                self._arrival,
                elements=self._elements,
                client=self._connection.client.caller.client(head.headers),
            )
            await self._admit(wire, len(body))
        except errors.GatewayError as error:
            if self._reservation is not None:
                self._reservation.close()
            await self._refuse(error)
            return None
        return wire

    async def _admit(self, wire: HttpRequest, size: int) -> None:
        """Acquire what a request of *size* bytes counts beside its body, and a slot.

        A health check needs neither if they are not free.
        """
        listener, client = self._listener, self._connection.client
        slots, budget = listener.slots, listener.budget
        began = time.monotonic()
        if not self._held and budget.try_acquire(budget.call_bytes, client.memory):
            self._held = budget.call_bytes
        self._has_slot = slots.try_acquire(1, client.slots) if self._held else False
        if not self._has_slot:
            if self._frontend is not None and is_probe(self._frontend, wire, size):
                return
            if not self._held:
                # The wait counts the body, so that bodies that wait for each other are seen.
                body = self._reservation if self._arrival is None else None
                held = body or self._reservation_of_client()
                if not held.try_grow_rest(budget.call_bytes):
                    await held.grow(budget.call_bytes)
                self._held = held.detach(budget.call_bytes)
            await slots.wait(listener.limits.queue_wait_s, client.slots, deadline=self._deadline)
            self._has_slot = True
        seconds = time.monotonic() - began
        if self._reservation is not None:
            seconds += self._reservation.waited_s
        WAITED_S.set(seconds)

    def _early(
        self, wire: HttpRequest
    ) -> Awaitable[HttpResponse | AsyncGenerator[HttpResponse, None]]:
        """Call the frontend with the beginning of a streaming body."""
        assert self._frontend is not None  # noqa: S101  # `early_bytes` returned a number
        return self._frontend.handle_early(wire, partial(whole_of, wire))

    async def _begin(self, head: Head) -> memoryview | None:
        """Return the beginning of a body that is streamed; None to read it completely."""
        limits, incoming = self._listener.limits, self._incoming
        if self._frontend is None or incoming.reservation is not None or incoming.is_complete:
            return None
        start = early_dispatch_bytes(self._frontend, head, limits)
        if (
            start is None
            or head.length is None
            or not self._listener.cut_through_limiter.try_acquire()
        ):
            return None
        self._continue(head)
        try:
            held = self._reserve()
            self._arrival = await incoming.open_body_stream(
                head.length, start, limits, held, self._on_body_error
            )
        finally:
            if self._arrival is None:
                self._listener.cut_through_limiter.release()
        return None if self._arrival is None else self._arrival.head

    def _continue(self, head: Head) -> None:
        if (
            head.has_expectation
            and not self._incoming.is_complete
            and self._connection.transport is not None
        ):
            self._writer.proceed(self._connection.transport)

    async def _received(self, head: Head) -> memoryview:
        limits, incoming = self._listener.limits, self._incoming
        reservation = incoming.reservation
        if reservation is not None:
            reservation.watch_progress(incoming.received_bytes, self._abort_stalled)
            body = await incoming.body(head.length, limits, reservation)
            reservation.stop_watching()
            return body
        codings = head.all("content-encoding") if head.has_content_coding else []
        coding_of(codings)  # an unknown one is refused before its bytes are read
        check_declared(head.length, limits)
        self._continue(head)
        held = self._reserve()
        held.watch_progress(incoming.received_bytes, self._abort_stalled)
        body = await incoming.body(head.length, limits, held)
        held.stop_watching()
        if not head.has_content_coding:
            return body
        self._elements = limits.decompressed_elements + len(body)
        return await undo_coding(body, codings, limits, held)

    def _on_body_error(self, fault: HttpError) -> None:
        """End a request whose body arrives too slowly."""
        if self._fault is None and self._task is not None:
            self._fault = fault
            if self._connection.is_head_sent:
                self._report(fault.error)
            self._task.cancel()

    def _reserve(self) -> Reservation:
        """Return what holds the bytes of this request, and then of its response."""
        self._reservation = self._reservation_of_client()
        return self._reservation

    def _reservation_of_client(self) -> Reservation:
        listener, memory = self._listener, self._connection.client.memory
        return Reservation(listener.budget, listener.limits.queue_wait_s, memory, self._deadline)

    def _abort_stalled(self, error: errors.Overloaded) -> None:
        """End a request whose body does not arrive, or a response that the client does not read."""
        if self._connection.is_head_sent:
            self._report(error)
            self._connection.abort()
        else:
            self._on_body_error(HttpError(503, error.message, limit=error.limit, close=True))

    # -- the response

    async def _send(self, response: HttpResponse) -> None:
        body = response.body
        if (len(body[0]) if len(body) == 1 else size_of(body)) > RESPONSE_UNCOUNTED_BYTES:
            size = uncounted_bytes(body)
            if not self._hold_response(size):
                await self._refuse(no_memory(size))
                return
        head = self._head
        varies = response.is_compressible and head is not None and bool(response.body)
        if varies and head is not None and head.wants is not None:
            response = await _coded(response, head.wants)
        if not self._write(response, varies):
            await self._finish_write()

    def _write(self, response: HttpResponse, varies: bool) -> bool:
        """Write a response as it is; return False if `_finish_write` must follow."""
        connection, incoming = self._connection, self._incoming
        transport = connection.transport
        if transport is None:
            raise ConnectionResetError("the client has left")
        if self._listener.cors is not None:
            response = self._shared(self._listener.cors, response)
        close = self._should_close or (connection.state is not OPEN and connection.must_close)
        unread = not incoming.is_complete
        if unread:
            self._should_drop = self._arrival is not None and not close
            close = not self._should_drop
        self._should_close = close
        connection.is_head_sent = True
        self._writer.complete(
            transport, response, not close, incoming.version, varies, incoming.method == "HEAD"
        )
        return connection.write_paused is None and not unread

    async def _finish_write(self) -> None:
        """Wait until a response is sent, and end the output if its request is still arriving."""
        connection = self._connection
        unread = not self._incoming.is_complete
        if connection.write_paused is not None:
            await self._flush(self._reservation if self._arrival is None else None)
        transport = connection.transport
        if unread and not self._should_drop and transport is not None and transport.can_write_eof():
            # The client is still sending.  It sees the response and its end; the connection reads
            # for a moment, so that no reset destroys the response.
            transport.write_eof()

    def _hold_response(self, size: int) -> bool:
        """Reserve memory for a response instead of its request; return whether there is enough."""
        held = self._reservation
        if held is None:
            held = self._reserve()
        if self._held:
            self._listener.budget.release(self._held, held.share)
            self._held = 0
        if self._arrival is None:
            held.release(held.size_bytes)
        self._body = None
        self._incoming.forget()
        return held.try_grow_response(size)

    async def _flush(self, held: Reservation | None = None) -> None:
        """Wait until the write buffer is empty; *held* is the reservation of its bytes."""
        connection = self._connection
        transport = connection.transport
        if transport is None:
            raise ConnectionResetError("the client has left")
        if held is not None and connection.write_paused is not None:
            held.watch_progress(
                transport.get_write_buffer_size, self._abort_stalled, RESPONSE_PATIENCE_S
            )
        while connection.write_paused is not None:
            await drain_writes(connection.transport, connection.write_paused, self._listener.limits)

    async def _relay(self, found: AsyncGenerator[HttpResponse, None]) -> None:
        """Send the frontend's responses: one of known length, or several in chunks.

        A unary response ends the generator without waiting.  If the generator waits for a second
        one, the first is sent as the beginning of a stream.
        """
        loop = asyncio.get_running_loop()
        ahead = ReadAhead(
            self._reservation_of_client(),
            self._is_blocked,
            self._flush,
            self._unsent_bytes,
            self._abort_stalled,
        )
        async with ahead:
            async with aclosing(found) as answers:
                first = part = await anext(answers, None)
                if first is not None:
                    begin = loop.call_soon(self._begin_stream, first)
                    try:
                        part = await anext(answers, None)
                    finally:
                        begin.cancel()
                if part is not None and first is not None and not self._connection.is_head_sent:
                    self._begin_stream(first)
                while part is not None:
                    await ahead.admit(size_of(part.body), part.body)
                    self._write_part(part)
                    ahead.written()
                    part = await anext(answers, None)
            # All is computed: only bytes wait for the client from here on.
            self._release_slot()
            if self._connection.is_head_sent:
                transport = self._connection.transport
                if transport is not None and self._incoming.method != "HEAD":
                    self._writer.end(transport, self._incoming.version)
                return
        if first is None:
            await self._refuse(errors.InternalError("a stream began with nothing to send"))
        else:
            await self._send(first)

    def _begin_stream(self, first: HttpResponse) -> None:
        transport = self._connection.transport
        if transport is None:
            return
        self._should_close |= self._connection.must_close or self._incoming.version < (1, 1)
        self._connection.is_head_sent = True
        version, cors = self._incoming.version, self._listener.cors
        head = first if cors is None else self._shared(cors, first)
        self._writer.head(transport, head, keep=not self._should_close, version=version)
        self._write_part(first)

    def _shared(self, cors: CorsRules, response: HttpResponse) -> HttpResponse:
        """Return *response* as pages of other origins may read it."""
        return cors.shared(
            response, None if self._head is None else self._head.headers.get("origin")
        )

    def _write_part(self, part: HttpResponse) -> None:
        transport = self._connection.transport
        if transport is not None and self._incoming.method != "HEAD":
            self._writer.part(transport, part.body, self._incoming.version)

    def _release_slot(self) -> None:
        """Release the slot of the request, whose response is computed."""
        if self._has_slot:
            self._has_slot = False
            self._listener.slots.release(1, self._connection.client.slots)

    def _is_blocked(self) -> bool:
        return self._connection.write_paused is not None

    def _unsent_bytes(self) -> int:
        transport = self._connection.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    # -- errors

    async def _send_error(self, fault: HttpError) -> None:
        request_id = self._report(fault.error, fault.status)
        self._should_close |= fault.should_close
        await self._send(text_response(fault.status, fault.message, request_id))

    async def _refuse(self, error: errors.GatewayError) -> None:
        """Send *error* in the protocol's form."""
        if self._frontend is None:
            status = HTTP_STATUS[errors.ErrorCode.UNAVAILABLE]
            await self._send(text_response(status, error.message, self._report(error, status)))
            return
        self._identify(error)
        response = self._frontend.reject(error)
        headers = response.headers
        hints = [hint for hint in self._hints(error) if headers.get(hint[0].lower()) is None]
        if hints:
            headers = Headers((*headers.pairs, *hints))
        request_id = response.request_id
        await self._send(
            HttpResponse(response.status, headers, response.body, request_id=request_id)
        )

    @staticmethod
    def _hints(error: errors.GatewayError) -> list[tuple[str, str]]:
        """Return the header that tells a client what to do about *error*; or none."""
        if error.code is errors.ErrorCode.OVERLOADED:
            return [("Retry-After", "1")]
        if error.code is errors.ErrorCode.UNSUPPORTED:
            return [("Accept-Encoding", ACCEPTED)]
        if isinstance(error, errors.Unauthenticated):
            return [("WWW-Authenticate", challenge(error))]
        return []

    def _report(self, error: errors.GatewayError, status: int | None = None) -> str:
        """Report a request that reached no frontend; return its request id.

        Args:
            error: Why.
            status: That of the response; None for no response.
        """
        self._identify(error)
        error.wire_status = status
        return self._listener.on_reject(error) or ""

    def _identify(self, error: errors.GatewayError) -> None:
        """Add the client, the headers and the request id to *error*, as far as they are known."""
        headers, client = NO_HEADERS if self._head is None else self._head.headers, self._client
        if error.client is None:
            caller = self._connection.client.caller
            error.client = caller.client(headers) if client is None else client
        error.metadata = self._visible().lowered
        error.request_id = header_request_id(headers)


async def _coded(response: HttpResponse, coding: str) -> HttpResponse:
    body = (await compress(coding, response.body),)
    headers = ExtendedHeaders(response.headers, (("Content-Encoding", coding),))
    return HttpResponse(response.status, headers, body, request_id=response.request_id)
