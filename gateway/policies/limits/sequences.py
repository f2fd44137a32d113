"""LimitSequences: limits the open sequences of each client and model.

A stateful model has a slot for each sequence. A client that starts sequences and never ends them
takes the slots from all others.
"""

import time
from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from pydantic import Field

from gateway.api.layer import Entries, Layer, LayerContext
from gateway.concurrency.limiter import CLIENT_MEMORY
from gateway.ir.bodies.streams import on_stream_end
from gateway.ir.calls import Call, sequence_of
from gateway.ir.context import CallSequence
from gateway.ir.errors import ErrorCode, GatewayError, NotSent, Overloaded
from gateway.service import ReplyCoroutine, Service
from gateway.settings.fields import Duration, Name
from gateway.settings.setting import Setting

R = TypeVar("R")

SEQUENCE_IDLE: Final = Setting[float](
    key="sequence_idle",
    type=Duration,
    default=600.0,
    help=(
        "Time without a request after which a sequence loses its target and its server. Default: "
        "`10m`."
    ),
    places=("policies",),
)
SEQUENCES_PER_CLIENT: Final = Setting[int | None](
    key="sequences_per_client",
    type=Annotated[int, Field(ge=1)] | None,
    default=None,
    help=(
        "Most open sequences of a client and model, in each worker. One is open until its "
        "last request has a response, or until `sequence_idle`. Default: no limit."
    ),
    places=("policies",),
)
ROUTE_SEQUENCES_PER_CLIENT: Final = Setting[int | None](
    key="sequences_per_client",
    type=Annotated[int, Field(ge=1)] | None,
    default=None,
    help=(
        "Most open sequences that a client may have of one model. Default: "
        "`policies.sequences_per_client`."
    ),
    places=("route",),
)
# A retired key, see `gateway.config.retired`.
_CLIENT_HEADER: Final = Setting[str | None](
    key="sequence_client_header", type=Name | None, default=None, help="", places=("policies",)
)

_MAX_SEQUENCES: Final = 65_536
# Errors after which the server has certainly not opened the sequence.
_NOT_OPENED: Final = frozenset(
    {
        ErrorCode.INVALID_ARGUMENT,
        ErrorCode.NOT_FOUND,
        ErrorCode.UNSUPPORTED,
        ErrorCode.TOO_LARGE,
        ErrorCode.QUOTA_EXCEEDED,
        ErrorCode.OVERLOADED,
    }
)


class _Owner(NamedTuple):
    """Whose sequences count together."""

    model: str
    client: Hashable


class LimitSequences:
    """Rejects a new sequence of a client that has too many open ones of the model.

    A sequence is open from its first request until its last one has a reply, or until it is idle
    for long. A request of an unknown sequence opens it, because it may hold a slot of the server.

    Args:
        inner: The service to call.
        limit: Largest number of open sequences of one client and model.
        client: Returns the address of the current call's client, or what stands for it.
        header: Name of a header that identifies a client, in lower case; "" for none. A client
            without the header counts by address.
        idle_s: Time without a request after which a sequence counts no longer.
        clock: Monotonic seconds.
    """

    def __init__(  # all by name but the first two
        self,
        inner: Service,
        limit: int,
        *,
        client: Callable[[], Hashable],
        header: str = "",
        idle_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._limit = limit
        self._client = client
        self._header = header
        self._idle_s = idle_s
        self._clock = clock
        self._counts: Counter[_Owner] = Counter()
        # Time of the last request of each sequence, the longest idle first.
        self._open: dict[tuple[_Owner, int | str], float] = {}

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner*.

        Raises:
            Overloaded: The client has too many open sequences.
        """
        sequence = sequence_of(call)
        return self._inner(call) if sequence is None else self._count(call, sequence)

    async def _count(self, call: Call[R], sequence: CallSequence) -> R:
        now = self._clock()
        self._forget_idle(now)
        model = "" if call.model is None else call.model.name
        owner = _Owner(model, self._identity(call))
        key = (owner, sequence.id)
        is_new = self._open.pop(key, None) is None
        if is_new:
            if self._counts[owner] >= self._limit:
                raise Overloaded(
                    f"the client has {self._limit} open sequences of model {model!r}, more are not "
                    "allowed: end one first (sequences_per_client)",
                    model=call.model,
                    limit="sequences_per_client",
                )
            self._counts[owner] += 1
        self._open[key] = now
        if len(self._open) > _MAX_SEQUENCES:
            self._remove(next(iter(self._open)))
        ended = partial(self._ended, key, is_new=is_new, is_last=sequence.end)
        try:
            reply = await self._inner(call)
        except BaseException as error:
            ended(error)
            raise
        return on_stream_end(call, reply, ended)

    def _identity(self, call: Call[Any]) -> Hashable:
        if self._header:
            for name, value in call.context.metadata:
                if name.lower() == self._header:
                    return value
        return self._client()

    def _ended(
        self,
        key: tuple[_Owner, int | str],
        error: BaseException | None,
        *,
        is_new: bool,
        is_last: bool,
    ) -> None:
        """Remove a sequence after its last reply, or if it was not opened."""
        if error is None:
            closed = is_last
        else:
            closed = is_new and (
                isinstance(error, NotSent)
                or (isinstance(error, GatewayError) and error.code in _NOT_OPENED)
            )
        if closed and key in self._open:
            self._remove(key)

    def _forget_idle(self, now: float) -> None:
        while self._open:
            key, last_used = next(iter(self._open.items()))
            if now - last_used < self._idle_s:
                return
            self._remove(key)

    def _remove(self, key: tuple[_Owner, int | str]) -> None:
        del self._open[key]
        owner = key[0]
        self._counts[owner] -= 1
        if not self._counts[owner]:
            del self._counts[owner]


def _build(inner: Entries, at: LayerContext) -> Service | None:
    limit = at.setting(ROUTE_SEQUENCES_PER_CLIENT) or at.setting(SEQUENCES_PER_CLIENT)
    if limit is None:
        return None
    return LimitSequences(
        inner.questions,
        limit,
        client=CLIENT_MEMORY.get,
        header=(at.setting(_CLIENT_HEADER) or "").lower(),
        idle_s=at.setting(SEQUENCE_IDLE),
    )


LAYER: Final = Layer(
    "LimitSequences",
    "limits the open sequences of each client, if configured",
    "route",
    _build,
    settings=(
        SEQUENCE_IDLE,
        SEQUENCES_PER_CLIENT,
        ROUTE_SEQUENCES_PER_CLIENT,
        _CLIENT_HEADER,
    ),
)
