"""CallReader: reads requests as calls, by what is known of the servers of their models."""

from collections.abc import Callable
from functools import partial
from time import monotonic
from types import CoroutineType
from typing import Any, Final, Generic, TypeVar, cast

import structlog
from msgspec.structs import replace  # noqa: TID251  # of messages, not of calls

from gateway.api.protocol import Codec, ServerReadingCodec
from gateway.concurrency.offload import ON_LOOP, off_loop, run_bounded
from gateway.frontend.carriers import client_of, metadata_of
from gateway.ir.calls import Call, ServerSwitchRequest
from gateway.ir.context import GATEWAY_CLIENT, Client, Context, ModelRef
from gateway.ir.errors import (
    GatewayError,
    InvalidRequest,
    InvalidTensor,
    MalformedMessage,
    Unsupported,
    VersionNotFound,
)
from gateway.ir.tensors.expected_inputs import UncheckedInputs, with_expected_inputs
from gateway.ir.work import BOUND, LongWork, inflated
from gateway.model_info.known_inputs import KnownInputs
from gateway.model_info.server_lookups import ServerDialects
from gateway.service import Service
from gateway.telemetry.faults import internal_error
from gateway.wire.errors import MethodNotAllowed
from gateway.wire.http import HttpRequest

Q = TypeVar("Q")
A = TypeVar("A")
C = TypeVar("C", bound=Call[Any] | None)

# What a server of the same form may take, for it knows more forms, values and versions.
_UNREAD = (InvalidRequest, Unsupported, VersionNotFound)

log = structlog.get_logger(__name__)

BLOCKED_S: Final = 0.1
"""A request that blocks the event loop for longer is reported."""

OnBlocked = Callable[[str, str, float], None]
"""Called for a request that blocked the event loop for long: codec name, model, seconds."""

CheckInference = Callable[[Client, ModelRef], None]
"""Raises Forbidden if a client may not make any inference of a model."""


class CallReader(Generic[Q, A]):
    """Reads the requests of one codec, with questions to the servers where it needs them.

    Args:
        codec: Decodes requests.
        service: Answers the questions.
        on_blocked: Called for each request that blocked the event loop for more than 100 ms.
    """

    def __init__(self, codec: Codec[Q, A], service: Service, on_blocked: OnBlocked) -> None:
        self._codec = codec
        self._on_blocked = on_blocked
        self.replace_service(service, None)

    def replace_service(self, service: Service, check_inference: CheckInference | None) -> None:
        """Ask *service* from now on, and forget what the other one has answered.

        Args:
            service: Answers the questions.
            check_inference: Asked before any question about the model of a request; None if each
                client may use every model.
        """
        self._check_inference = check_inference
        self._known_inputs = KnownInputs(service)
        self._dialects = ServerDialects(service)

    async def read_for_server(
        self, wire: Q, refused: GatewayError, request_id: str
    ) -> Call[Any] | GatewayError:
        """Return *wire* as the server of its model reads it, or *refused*, the error of the codec.

        A server may read what others refuse, so its clients must not notice the gateway.
        """
        if isinstance(refused, MethodNotAllowed) and isinstance(wire, HttpRequest):
            return await self._decoded_head(wire, refused, request_id)
        reading = self._codec
        if not isinstance(reading, ServerReadingCodec) or not isinstance(refused, InvalidRequest):
            return await self._decode_unread(wire, refused)
        model = reading.inferred_model(wire)
        if model is None:
            return refused
        if self._check_inference is not None:
            try:
                self._check_inference(client_of(wire), model)
            except GatewayError as error:
                return error
        found = await self._decoded_in(reading, reading.most_lenient, wire, refused, request_id)
        if found is None or isinstance(found, GatewayError):
            return found or refused
        context = self._question_context(wire, request_id)
        dialect = await self._dialects.find(model, context)
        if dialect != reading.most_lenient:
            found = await self._decoded_in(reading, dialect, wire, refused, request_id)
        return refused if found is None else found

    async def _decode_unread(self, wire: Q, refused: GatewayError) -> Call[Any] | GatewayError:
        """Return *wire* as a call that only a server of its form reads; *refused* if none may."""
        if not self._codec.whole or not isinstance(refused, _UNREAD):
            return refused
        decode, elements = self._codec.decode_unread, getattr(wire, "elements", None)
        if elements is not None:
            decode = partial(inflated, elements, decode)
        try:
            call = await run_bounded(decode, wire, refused)
        except GatewayError:
            return refused
        return refused if call is None else call

    async def _decoded_head(
        self, wire: HttpRequest, refused: GatewayError, request_id: str
    ) -> Call[Any] | GatewayError:
        """Return a request with HEAD as that with GET, whose response has the same head.

        The transport leaves out the body.  What changes a server needs another method than HEAD.
        Source: RFC 9110 9.3.2.
        """
        if wire.method != "HEAD":
            return refused
        get = cast("Q", replace(wire, method="GET"))
        call = await self.decoded(self._codec.decode_call, get, request_id)
        return refused if isinstance(call, ServerSwitchRequest) else call

    async def _decoded_in(
        self,
        reading: ServerReadingCodec[Q, A],
        dialect: str,
        wire: Q,
        refused: GatewayError,
        request_id: str,
    ) -> Call[Any] | GatewayError | None:
        """Return *wire* as a server of *dialect* reads it, or an error; None if it is strict."""
        decode = reading.decode_for_server
        found: Call[Any] | GatewayError | None = await self.decoded(
            lambda wire, request_id: decode(wire, dialect, request_id), wire, request_id
        )
        if not isinstance(found, InvalidRequest):
            return found
        # The server would read a message of which only a tensor is invalid.
        is_read = isinstance(found, InvalidTensor) and isinstance(refused, MalformedMessage)
        return found if is_read else refused

    async def decoded(
        self, decode: Callable[[Q, str], C], wire: Q, request_id: str
    ) -> C | GatewayError:
        """Return *wire* as a call, or the error of a message that *decode* rejects."""
        try:
            read = self.read(decode, wire, request_id)
            call: C = await read if type(read) is CoroutineType else read
        except Exception as error:  # noqa: BLE001
            return unread_error(error)
        return call

    def read(self, decode: Callable[[Q, str], Any], wire: Q, request_id: str) -> Any:
        """Return *wire* as a call, or a coroutine that decodes it on another thread."""
        elements = getattr(wire, "elements", None)
        if elements is not None:
            decode = partial(inflated, elements, decode)
        call = None
        started = monotonic()
        # `run_bounded_on_loop` does the same, but its call frame costs 0.7 us.
        BOUND.allowance = ON_LOOP
        try:
            call = decode(wire, request_id)
        except LongWork:
            return self._read_long(decode, wire, request_id)
        finally:
            BOUND.allowance = None
            if monotonic() - started > BLOCKED_S:
                self.report_blocked(started, call)
        return call

    async def _read_long(self, decode: Callable[[Q, str], Any], wire: Q, request_id: str) -> Any:
        """Return *wire* as a call, decoded on another thread if its model has its inputs."""
        try:
            accepts = self._known_inputs.accepts
            return await off_loop(with_expected_inputs, accepts, decode, wire, request_id)
        except UncheckedInputs as found:
            if self._check_inference is not None:
                self._check_inference(client_of(wire), found.model)
            context = self._question_context(wire, request_id)
            await self._known_inputs.check(found, context)
        return await off_loop(decode, wire, request_id)

    def _question_context(self, wire: Q, request_id: str) -> Context:
        """Return the context of a question that takes the route of *wire*."""
        return Context(self._codec.name, metadata_of(wire), request_id, client=GATEWAY_CLIENT)

    def report_blocked(self, started: float, call: Any) -> None:
        """Log and report a step that has blocked the event loop since *started*."""
        seconds = monotonic() - started
        model = getattr(call, "model", None)
        name = "" if model is None else model.name
        log.warning(
            "event loop blocked",
            protocol=self._codec.name,
            model=name,
            ms=round(seconds * 1e3),
            request_id="" if call is None else call.context.request_id,
        )
        self._on_blocked(self._codec.name, name, seconds)


def unread_error(error: Exception) -> GatewayError:
    """Return the error of a message that decoding rejected, without its traceback.

    The frames of a traceback hold the message, and a caller's frame holds the error: this cycle
    would keep the message until the garbage collector runs.  Anything but a `GatewayError` is a bug
    here, whose text must not reach the client.
    """
    if not isinstance(error, GatewayError):
        return internal_error(error)
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error
