"""The share of an endpoint whose server refuses calls, or replies to them with errors.

Such a reply is quick: a load balancer that counts calls in flight prefers the endpoint for it. But
the server is alive, and one with a full queue still serves what it has. So the endpoint is not
ejected (`outlier_detection.py`): its share of the calls is lowered, and its replies raise it again.
"""

import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

import structlog

from gateway.ir.bodies.streams import EndCallback, NotifyingStream
from gateway.ir.calls import InferResponse
from gateway.ir.errors import ErrorCode, GatewayError
from gateway.ir.unread import failure_of
from gateway.telemetry.log.error_texts import error_text

log = structlog.get_logger(__name__)

# Errors that lower the share of an endpoint when its server replies with them, and others do not:
# a server may lack a model, or refuse the credential of the gateway. A request explains all others.
_REFUSALS: Final = frozenset(
    {
        ErrorCode.OVERLOADED,
        ErrorCode.UNAVAILABLE,
        ErrorCode.NOT_READY,
        ErrorCode.NOT_FOUND,
        ErrorCode.UNSUPPORTED,
        ErrorCode.UNAUTHENTICATED,
        ErrorCode.FORBIDDEN,
        ErrorCode.DEADLINE_EXCEEDED,
        ErrorCode.UPSTREAM,
        ErrorCode.BAD_UPSTREAM,
        ErrorCode.INTERNAL,
    }
)

# The part of the calls to other endpoints that is refused: below the first one of them is an
# alternative, from the second on none is.
_SMALL_SHARE: Final = 0.25
_MANY: Final = 0.5

_LEAST: Final = 1 / 16
"""The lowest share. An endpoint that has it is set aside, and gets single trial calls."""

_LOWERED: Final = 0.35
"""Lowest factor of the share for each refusal or error: three of them set an endpoint aside."""

_EXPONENT: Final = 0.1
"""Of the part of calls that others refuse, for a factor above that: where the others refuse half of
theirs, 40 in a row set an endpoint aside."""

_RAISED: Final = 0.5
"""What a reply to a call that began after the last refusal adds, as a part of what is missing."""

_DRAINED: Final = 0.2
"""The same for an earlier call: the server has a place more, but it may not want calls."""

_WHOLE: Final = 0.95

_PAUSE_S: Final = 1.0
"""Time before the first trial. It doubles with each one that fails."""

_MAX_PAUSE_S: Final = 5.0

_WINDOW: Final = 64
"""Calls of which the refusals and errors are compared."""


class EndpointShare:
    """The share of one endpoint, relative to that of an endpoint whose server serves all calls.

    Attributes:
        value: Above 0 and at most 1.
        held_until: Until then its server wants no calls (`Retry-After`), on the clock of calls.
    """

    __slots__ = ("_lowered_at", "_next_trial", "_set_aside_at", "_trials", "held_until", "value")

    def __init__(self) -> None:
        self.value = 1.0
        self.held_until = self._next_trial = self._lowered_at = self._set_aside_at = -math.inf
        self._trials = 0

    @property
    def is_set_aside(self) -> bool:
        """Whether it gets single trial calls only."""
        return self.value <= _LEAST

    def admits(self, now: float) -> bool:
        """Return whether the endpoint may get a call, if there are others."""
        return now >= self.held_until and (self.value > _LEAST or now >= self._next_trial)

    def begin(self, now: float) -> None:
        """Record the start of a call. A trial that is not judged in time allows another one."""
        if self.value <= _LEAST and now >= self._next_trial:
            self._next_trial = now + _PAUSE_S

    def lower(
        self,
        started: float,
        now: float,
        *,
        elsewhere: float,
        has_others: bool = True,
        held_s: float = 0.0,
    ) -> bool:
        """Record a refusal or an error of the server; return whether this sets the endpoint aside.

        Args:
            started: When the call began.
            now: When it ended.
            elsewhere: The part of the calls to other endpoints that end like this. Errors that all
                servers reply with show nothing about this one.
            has_others: Whether other endpoints get calls. Otherwise all have the same trouble, and
                their trials must begin soon after its end.
            held_s: For how long the server wants no further call.
        """
        was_set_aside = self.value <= _LEAST
        self.value = max(self.value * max(elsewhere**_EXPONENT, _LOWERED), _LEAST)
        self._lowered_at = now
        self.held_until = max(self.held_until, now + held_s)
        if self.value <= _LEAST and started >= self._set_aside_at:
            self._trials = self._trials + 1 if has_others else 1
            pause_s = min(_PAUSE_S * 2.0 ** (self._trials - 1), _MAX_PAUSE_S)
            self._next_trial, self._set_aside_at = now + pause_s, now
        return self.value <= _LEAST and not was_set_aside

    def raise_(self, started: float) -> bool:
        """Record a reply to a call that began at *started*; return whether the share is 1 again."""
        part = _RAISED if started >= self._lowered_at else _DRAINED
        self.value += part * (1 - self.value)
        if self.value < _WHOLE:
            return False
        self.value = 1.0
        self._trials, self._set_aside_at = 0, -math.inf
        return True


class SharingEndpoint(Protocol):
    """What is needed of an endpoint here.

    Attributes:
        name: Its address.
        share: Its share.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def share(self) -> EndpointShare: ...  # noqa: D102
    def is_available(self, now: float, /) -> bool: ...  # noqa: D102


E = TypeVar("E", bound=SharingEndpoint)


class EndpointShares(Generic[E]):
    """The shares of the endpoints of one upstream.

    Args:
        upstream: Its name.
        draw: Random numbers in [0, 1).
        max_hold_s: The longest time for which a server may ask for no calls.

    Attributes:
        lowered: The endpoints with a share below 1.
    """

    def __init__(self, upstream: str, draw: Callable[[], float], max_hold_s: float) -> None:
        self.lowered: set[E] = set()
        self._upstream = upstream
        self._draw = draw
        self._max_hold_s = max_hold_s
        self._endpoints: Sequence[E] = ()
        # The latest refusals: the number of calls that had begun, and the endpoint.
        self._refusals: deque[tuple[int, E]] = deque(maxlen=_WINDOW)

    def replace(self, endpoints: Sequence[E]) -> None:
        """Compare *endpoints* from now on."""
        self._endpoints = endpoints
        self.lowered = {endpoint for endpoint in endpoints if endpoint.share.value < 1}

    def willing(self, candidates: Sequence[E], now: float) -> Sequence[E]:
        """Return those of *candidates* whose servers do not refuse calls; all if all refuse."""
        if not self.lowered:
            return candidates
        return [each for each in candidates if each.share.admits(now)] or candidates

    def choose(self, candidates: Sequence[E], balance: Callable[[Sequence[E]], E]) -> E:
        """Return one of *candidates*, chosen by *balance* and then by the shares."""
        endpoint = balance(candidates)
        most = max(each.share.value for each in candidates)
        while endpoint.share.value < most and self._draw() * most >= endpoint.share.value:
            candidates = [each for each in candidates if each is not endpoint]
            endpoint = balance(candidates)
        return endpoint

    def served(self, endpoint: E, started: float) -> None:
        """Record a reply to a call that began at *started*."""
        if endpoint in self.lowered and endpoint.share.raise_(started):
            self.lowered.discard(endpoint)
            log.info("endpoint serves again", upstream=self._upstream, endpoint=endpoint.name)

    def refused(
        self, endpoint: E, error: GatewayError, started: float, now: float, turn: int
    ) -> None:
        """Record an error that the server of *endpoint* replied with, if it is a refusal.

        Args:
            endpoint: The endpoint.
            error: The error; it is told whether there is an alternative.
            started: When the call began.
            now: When it ended.
            turn: Number of calls of the upstream that have begun.
        """
        if error.code not in _REFUSALS:
            return
        self._refusals.append((turn, endpoint))
        elsewhere = self._refused_elsewhere(endpoint, turn)
        has_others = any(
            other.is_available(now) and other.share.admits(now)
            for other in self._endpoints
            if other is not endpoint
        )
        if not has_others or elsewhere >= _MANY:
            error.has_alternative = False
        elif elsewhere < _SMALL_SHARE:
            error.has_alternative = True
        pause_s = error.retry_after_s or 0.0
        is_set_aside = endpoint.share.lower(
            started,
            now,
            elsewhere=elsewhere,
            has_others=has_others,
            held_s=0.0 if math.isinf(pause_s) else min(pause_s, self._max_hold_s),
        )
        self.lowered.add(endpoint)
        if is_set_aside:
            log.warning(
                "endpoint refuses calls",
                upstream=self._upstream,
                endpoint=endpoint.name,
                error=error_text(error),
            )

    def _refused_elsewhere(self, endpoint: E, turn: int) -> float:
        """Return the part of the latest calls to endpoints other than *endpoint* that was refused.

        The endpoints are assumed to get the same number of calls.
        """
        refusals, count = self._refusals, len(self._endpoints)
        while refusals[0][0] <= turn - _WINDOW:
            refusals.popleft()
        own = sum(each is endpoint for _, each in refusals)
        calls = (min(turn, _WINDOW) - own) * (count - 1) / count
        return min(1.0, (len(refusals) - own) / max(calls, 1.0))


class FirstReplyStream(NotifyingStream):
    """A stream that reports an error in its first reply, which is then all that it reports.

    Args:
        items: The replies.
        on_end: Called once, with the error that ended the stream or None.
        on_refused: Called with that error.
    """

    def __init__(
        self,
        items: AsyncIterator[InferResponse],
        on_end: EndCallback,
        on_refused: Callable[[GatewayError], None],
    ) -> None:
        super().__init__(items, on_end)
        self._on_refused: Callable[[GatewayError], None] | None = on_refused

    async def __anext__(self) -> InferResponse:
        """Return the next reply."""
        item = await super().__anext__()
        on_refused, self._on_refused = self._on_refused, None
        error = failure_of(item)
        if on_refused is not None and error is not None and self.silence():
            on_refused(error)
        return item
