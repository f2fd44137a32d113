"""CallLimits: concurrency limit, deadline and retry for each call of a route.

The three policies are one layer, because each of them acts before and after a call, and three
layers would add two coroutine frames to every call.
"""

import math
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace  # noqa: TID251  # what changes is no part of the wire form

from gateway.accelerator import accelerated
from gateway.api.layer import Entries, Layer, LayerContext
from gateway.concurrency.limiter import WAITED_S, waited_s
from gateway.concurrency.timeouts import Timeout, TimerWheel, WheelTimeout
from gateway.ir.bodies.streamed_inputs import streaming_body_of
from gateway.ir.bodies.streaming_body import StreamingBody
from gateway.ir.bodies.streams import map_stream, on_stream_end
from gateway.ir.calls import (
    MODEL_CONTROL_CALLS,
    Call,
    InferRequest,
    StreamInferRequest,
    call_with_deadline,
    inference_of,
)
from gateway.ir.errors import DeadlineExceeded, GatewayError
from gateway.policies.limits.concurrency import (
    IN_FLIGHT,
    QUEUE_TARGET,
    QUEUE_WAIT,
    QUEUED,
    ROUTE_IN_FLIGHT,
    ConcurrencyLimit,
)
from gateway.policies.limits.deadline import (
    ROUTE_TIMEOUT,
    STREAM_IDLE,
    TIMEOUT,
    RouteTimeout,
    StreamTimeouts,
    StreamWithTimeouts,
    deadline_error,
    timeout_at,
)
from gateway.policies.limits.retry import (
    AttemptTimeout,
    RetryBudget,
    RetryRules,
    RetryStream,
)
from gateway.policies.limits.retry_keys import RETRY, ROUTE_RETRY, retries_at
from gateway.service import Service
from gateway.telemetry.call_path import current_path
from gateway.telemetry.metrics import Metrics

R = TypeVar("R")
C = TypeVar("C", bound=Call[Any])

_CLOCK_SLACK_S: Final = 0.05


class SingleTarget(NamedTuple):
    """The target of a route that has no other one, so that no layer chooses it; "" for several."""

    name: str = ""


class CallLimits:
    """Limits the concurrency, the time and the attempts of calls.

    An inference has a slot first (`ConcurrencyLimit`), and a stream keeps its slot until it ends.
    Calls about health and metadata need none: they are cheap, and a busy route must answer them
    correctly.

    The deadline is the earlier of the caller's deadline and the route's timeout, which counts the
    time in queues. Upstreams receive it, and the call is cancelled when it expires. The queue
    timeout of a request only bounds its wait for a slot: upstreams receive it as a parameter, for
    queues of their own. For a stream, the route's timeout ends with the first reply, and an idle
    timeout applies to each further reply, because their number is unknown. The caller's deadline
    applies to the complete stream. While the body of a call is being received, the route's timeout
    restarts with each received byte, because the target does not control the speed of the client.

    Before the deadline, a failed call is retried if the rules of the route allow it
    (`RetryBudget`).

    Args:
        inner: The service to call; it may choose another endpoint for the retry.
        timeout_s: The route's timeout; None for none.
        timeout_key: Its key in YAML, for errors.
        stream_idle_s: Idle timeout of a stream; None for none.
        places: The concurrency limit of inferences; None for no limit.
        retries: The retry budget; None for no retries.
        target: The only target, which this layer records; "" if another one chooses.
        clock: Monotonic seconds; that of `Context.deadline`.
    """

    def __init__(  # noqa: PLR0913  # all by name but the first two
        self,
        inner: Service,
        timeout_s: float | None = None,
        *,
        timeout_key: str = "timeout",
        stream_idle_s: float | None = None,
        places: ConcurrencyLimit | None = None,
        retries: RetryBudget | None = None,
        target: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._timeout_s = timeout_s
        self._timeout = RouteTimeout(timeout_s, timeout_key)
        self._stream_idle_s = stream_idle_s
        # An unlimited counter costs no more than a check whether there is a limit.
        self._without = ConcurrencyLimit("", in_flight=sys.maxsize)
        self._places = self._without if places is None else places
        self._retries = RetryBudget(RetryRules(attempts=1)) if retries is None else retries
        self._target = target
        self._clock = clock
        self._wheel = TimerWheel(clock)

    async def __call__(self, call: Call[R], /) -> R:  # noqa: PLR0915  # one frame
        """Call *inner* within the limits.

        Raises:
            Overloaded: The queue is full, or the wait was too long.
            DeadlineExceeded: The deadline expired, possibly before the call was sent.
        """
        kind = type(call)
        without, retries, inner = self._without, self._retries, self._inner
        places = self._places if kind is InferRequest or kind is StreamInferRequest else without
        if places.used < places.limit:
            places.used += 1
        else:
            await places.wait_for_slot(call, inference_of(call), self._timeout, self._clock())
        retries.active += 1
        retries.calls += 1
        timeout: Timeout | None = None
        requested: float | None = None
        deadline: float | None = None
        is_first = True
        try:
            call, timeout, requested, deadline = self._set_deadline(call)
            if self._target and (path := current_path()) is not None:
                path.target = self._target
            try:
                reply = await inner(call)
            except GatewayError as error:
                pause_s = retries.pause_s(call, error)
                if pause_s is None:
                    raise
                is_first = False
                reply = await retries.retry(inner, call, error, pause_s)
        except BaseException as error:
            retries.active -= 1
            places.release()
            if timeout is not None and (
                late := self._late(call, error, timeout, requested, deadline)
            ):
                raise late from None
            raise
        if timeout is not None:
            timeout.finish(None)
        if kind is StreamInferRequest:
            cut = self._timeout.cut(requested, deadline)
            times = StreamTimeouts(requested, deadline, self._stream_idle_s, self._clock, cut)
            return self._limit_stream(call, reply, places, times, is_first=is_first)
        retries.active -= 1
        if places.queued:
            places.release()
        else:
            places.used -= 1
        return reply

    def _late(
        self,
        call: Call[Any],
        error: BaseException,
        timeout: Timeout,
        requested: float | None,
        deadline: float | None,
    ) -> DeadlineExceeded | None:
        """Stop *timeout*, and return the error of a call that was too late; None if it was not."""
        cut = self._timeout.cut(requested, deadline)
        if timeout.finish(error):
            return deadline_error(call, cut=cut)
        if not cut or deadline is None or not isinstance(error, DeadlineExceeded):
            return None
        # An upstream enforces the deadline, too, and by a clock of its own.
        if self._clock() < deadline - _CLOCK_SLACK_S:
            return None
        if error.limit is None:
            return deadline_error(call, cut=cut)
        return DeadlineExceeded(f"{error.message} {cut}", model=call.model, limit=error.limit)

    def _set_deadline(
        self, call: Call[R]
    ) -> tuple[Call[R], Timeout | None, float | None, float | None]:
        """Set the deadline of *call*, and start its timeout.

        Returns:
            The call to send, its timeout, the caller's deadline and the earlier of the two.
        """
        own, now = self._timeout_s, self._clock()
        if own is not None and not waited_s():
            started = start_timeout(call, own, now, self._wheel)  # nearly every call
            if started is not None:
                return started[0], started[1], call.context.deadline, started[2]
        return self._set_any_deadline(call, own, now)

    def _set_any_deadline(
        self, call: Call[R], own: float | None, now: float
    ) -> tuple[Call[R], Timeout | None, float | None, float | None]:
        """As `_set_deadline`, with the timeout of the route and the time now."""
        context = call.context
        deadline = requested = context.deadline
        if own is not None and type(call) not in MODEL_CONTROL_CALLS:
            own += now
            if waited_s():
                # Read and counted once: the steps of a pipeline are calls of their own.
                own -= waited_s()
                WAITED_S.set(0.0)
            if requested is None or own < requested:
                deadline = own
        if deadline is None:
            return call, None, None, None
        if deadline <= now:
            cut = self._timeout.cut(requested, deadline)
            if cut:
                raise deadline_error(call, cut=cut)
            raise DeadlineExceeded("the deadline expired before the call arrived", model=call.model)
        origin = context.origin
        has_bytes = origin is not None and origin.has_bytes
        body = None if has_bytes else streaming_body_of(call)
        # An upstream would apply the route's timeout to all of a stream or of a streaming body.
        is_open_ended = body is not None or type(call) is StreamInferRequest
        upstream_deadline = requested if is_open_ended else deadline
        if upstream_deadline is not requested:
            call = call_with_deadline(call, upstream_deadline)
        if body is None:
            return call, WheelTimeout(self._wheel, deadline), requested, deadline
        remaining = partial(self._remaining, body, now, requested)
        return call, Timeout(deadline - now, remaining).__enter__(), requested, deadline

    def _remaining(self, body: StreamingBody, start: float, requested: float | None) -> float:
        """Return the remaining time of a call whose body is being received."""
        until = math.inf if requested is None else requested
        if self._timeout_s is not None:
            until = min(until, max(start, body.last_progress) + self._timeout_s)
        return until - self._clock()

    def _limit_stream(
        self,
        call: Call[R],
        reply: R,
        places: ConcurrencyLimit,
        times: StreamTimeouts,
        *,
        is_first: bool,
    ) -> R:
        """Return *reply*, a stream, with its limits; *is_first* if the call was not retried."""
        if is_first:
            # Only the first reply shows whether an open stream was sent.
            again = partial(RetryStream, self._retries, self._inner, call)
            reply = map_stream(call, reply, again)
        reply = on_stream_end(call, reply, self._retries.on_stream_end)
        if times.first is not None or times.idle_s is not None:
            reply = map_stream(call, reply, lambda items: StreamWithTimeouts(call, items, times))
        return on_stream_end(call, reply, places.on_stream_end)


@accelerated
def start_timeout(
    call: C, own_s: float, now: float, wheel: TimerWheel
) -> tuple[C, WheelTimeout, float] | None:
    """Set the deadline of an inference that has arrived, and start its timeout.

    Args:
        call: The call.
        own_s: The timeout of the route.
        now: The time, on the clock of deadlines.
        wheel: Where the timeout is scheduled.

    Returns:
        The call to send, its timeout, and the earlier deadline. None, and nothing is done, for a
        call that is late, and for one that may be a stream or have a body that still arrives.
    """
    origin, deadline = call.context.origin, call.context.deadline
    if type(call) is not InferRequest or origin is None or not origin.has_bytes:
        return None
    is_own = deadline is None or now + own_s < deadline
    if deadline is None or is_own:
        deadline = now + own_s
    if deadline <= now:
        return None
    if is_own:  # as `call_with_deadline`
        call = replace(call, context=replace(call.context, deadline=deadline))
    return call, WheelTimeout(wheel, deadline), deadline


def _build(inner: Entries, at: LayerContext) -> Service:
    timeout, retry = timeout_at(at), retries_at(at)
    retries = None
    if retry is not None and retry.budget > 0:
        report = partial(at.part(Metrics).retry, at.name)
        retries = RetryBudget(retry.rules(), route=at.name, report=report)
    return CallLimits(
        inner.questions,
        timeout.seconds,
        timeout_key=timeout.key,
        stream_idle_s=at.setting(STREAM_IDLE) or None,
        places=at.part(ConcurrencyLimit),
        retries=retries,
        target=at.part(SingleTarget).name,
    )


def _build_attempt(inner: Entries, at: LayerContext) -> Service | None:
    retry = retries_at(at)
    if retry is None or retry.per_try_timeout is None:
        return None
    return AttemptTimeout(inner.questions, retry.per_try_timeout)


LAYER: Final = Layer(
    "CallLimits",
    "applies the concurrency limit, the deadline and the retries",
    "route",
    _build,
    settings=(
        TIMEOUT,
        ROUTE_TIMEOUT,
        STREAM_IDLE,
        RETRY,
        ROUTE_RETRY,
        IN_FLIGHT,
        ROUTE_IN_FLIGHT,
        QUEUED,
        QUEUE_WAIT,
        QUEUE_TARGET,
    ),
)
ATTEMPT_LAYER: Final = Layer(
    "AttemptTimeout",
    "limits the time of each attempt, if `per_try_timeout` is set",
    "route",
    _build_attempt,
)
