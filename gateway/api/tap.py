"""Taps: what receives calls with their replies, to record or compare them."""

from collections.abc import AsyncIterator
from time import monotonic
from typing import Any, Protocol

from msgspec import Struct, field

from gateway.ir.bodies.streams import close_stream
from gateway.ir.bodies.teed_body import TeedBody
from gateway.ir.calls import Call, InferRequest, InferResponse, OpaqueCall
from gateway.ir.errors import ErrorCode, GatewayError
from gateway.ir.unread import is_refusal
from gateway.service import Service
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.log.error_texts import error_text


class CountCall(Protocol):
    """Receives each call of a client that is an inference, or whose message nobody here has read.

    The latter is an `OpaqueCall` that a server got as it came, or that the gateway refused.
    """

    def __call__(
        self,
        call: InferRequest | OpaqueCall,
        seconds: float,
        is_failed: bool,
        is_refused: bool = False,
        /,
    ) -> None:
        """Count a call with its duration; a failed one may be refused by the gateway itself."""
        ...


class TappedCall(Struct):
    """One inference, or one call that is forwarded unread, while it is served.

    Attributes:
        call: It is handled in place of the original one, so it may have a teed body.
        started: On the clock of `time.monotonic`.
        path: Route and target of the call.
        items: The replies, each with its time since the start, seconds.
        responses: The messages to the client; below the frontends those that nobody reads.
        error: Code and text of the error that ended the call; None for none.
        is_refused: Whether the gateway itself refused the call with this error.
        teed: Keeps the body of a call that began before it was received; None for others.
        is_complete: Whether a stream of replies was read to its end.
        service: What the frontend called, for questions about the model; None before that.
        shown_error: The text of the error as the log shows it, with the part of a server marked.
    """

    call: Call[Any]
    started: float
    path: CallPath = field(default_factory=CallPath)
    took_s: float = 0.0
    items: list[tuple[float, InferResponse]] = field(default_factory=list)
    responses: list[Any] = field(default_factory=list)
    error: tuple[ErrorCode, str] | None = None
    is_refused: bool = False
    teed: TeedBody | None = None
    is_complete: bool = False
    service: Service | None = None
    shown_error: str = ""

    def add(self, item: InferResponse) -> None:
        """Note a reply."""
        self.items.append((monotonic() - self.started, item))

    def fail(self, error: BaseException) -> None:
        """Note the error that ended the call; without the object, which refers to frames."""
        if isinstance(error, GatewayError):
            self.error, self.is_refused = (error.code, error.message), is_refusal(error)
            self.shown_error = error_text(error)
        elif isinstance(error, Exception):
            self.error = ErrorCode.INTERNAL, "internal error of the gateway"
        else:
            self.error = ErrorCode.CANCELLED, "the client disconnected"

    def finish_as(self, other: "TappedCall") -> None:
        """Note what became of the same call, which another tap has noted."""
        self.path, self.service, self.took_s = other.path, other.service, other.took_s
        self.items, self.responses = list(other.items), other.responses
        self.error, self.shown_error = other.error, other.shown_error
        self.is_refused, self.is_complete = other.is_refused, other.is_complete


class RecordedStream:
    """A stream of replies that notes each of them in an exchange."""

    def __init__(self, items: AsyncIterator[InferResponse], exchange: TappedCall) -> None:
        self._items = items
        self._exchange = exchange

    def __aiter__(self) -> AsyncIterator[InferResponse]:
        return self

    async def __anext__(self) -> InferResponse:
        """Return the next reply."""
        try:
            item = await anext(self._items)
        except StopAsyncIteration:
            self._exchange.is_complete = True
            raise
        except BaseException as error:
            self._exchange.fail(error)
            raise
        self._exchange.add(item)
        return item

    async def aclose(self) -> None:
        """Close the underlying stream; may be called twice."""
        await close_stream(self._items)


class Tap(Protocol):
    """Receives the calls of a frontend with their replies; its methods neither wait nor raise."""

    def begin(self, call: Call[Any], /) -> TappedCall | None:
        """Return the exchange of a call; None for a call that is not chosen."""
        ...

    def end(self, exchange: TappedCall, /) -> None:
        """Receive a finished exchange, and release its teed body."""
        ...

    def rejected(self, codec: str, wire: Any, error: GatewayError, response: Any, /) -> None:
        """Receive a message that could not be decoded."""
        ...


class SampledCall(TappedCall):
    """A call of a route that was chosen.

    Attributes:
        upstream_s: Time at the target: from the request to the reply. 0 where it is not known, as
            for a kept reply or a repeated call.
        noise: Whether the call goes to the old target again, to measure its noise.
    """

    upstream_s: float = 0.0
    noise: bool = False


class RouteTap(Protocol):
    """Receives chosen calls of a route; its methods do not wait."""

    def begin(self, call: Call[Any], /) -> SampledCall | None:
        """Return the exchange of a call, read or not; None for one that is not chosen."""
        ...

    def end(self, exchange: SampledCall, /) -> None:
        """Receive a finished exchange."""
        ...
