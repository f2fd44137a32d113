"""Balance: distributes a route's calls over its targets by weight, and decides its readiness."""

import asyncio
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeVar, cast

import structlog

from gateway.api.extension import TrafficShift
from gateway.ir.attempts import ATTEMPT
from gateway.ir.call_keys import Key
from gateway.ir.calls import Call, ModelReadyRequest, sequence_of
from gateway.ir.errors import GatewayError
from gateway.routing.broadcast import BROADCAST_CALLS, broadcast
from gateway.routing.sequence_affinity import SequenceAffinity, rendezvous
from gateway.service import ReplyCoroutine, Service
from gateway.settings.fields import CallKey
from gateway.settings.setting import Setting
from gateway.telemetry.call_path import record_target

log = structlog.get_logger(__name__)

R = TypeVar("R")

_NO_WEIGHT: Final = 1e-9

READINESS: Final = Setting[Literal["any", "all"]](
    key="readiness",
    type=Literal["any", "all"],
    default="any",
    help="Whether one target or all must be ready for the route to be. Default: `any`.",
    places=("route",),
)
STICKY_BY: Final = Setting[str | None](
    key="sticky_by",
    type=CallKey | None,
    default=None,
    help=(
        "Key whose calls always go to the same target: `client` for the client's name, `address` "
        "for its IP address, `model`, or `header:NAME`. Weights decide about keys, and about calls "
        "without the header. "
        "Default: each call goes by weight."
    ),
    places=("route",),
)


class Readiness(enum.Enum):
    """Whether all parts or any part must be ready."""

    ANY = "any"
    ALL = "all"

    def of(self, parts: Sequence[bool]) -> bool:
        """Apply the rule to the readiness of the parts."""
        return any(parts) if self is Readiness.ANY else all(parts)


def always_ready() -> bool:
    """Return True; the readiness of a target without a health probe."""
    return True


@dataclass(frozen=True, slots=True)
class Target:
    """A destination of a route's calls.

    Attributes:
        weight: Share of the calls, relative to the other weights; 0 excludes it.
        priority: It gets calls only while no target with a lower number is ready.
        ready: Returns whether it accepts calls, without I/O.
    """

    name: str
    service: Service
    weight: int = 1
    ready: Callable[[], bool] = always_ready
    priority: int = 0


class Chooser(Protocol):
    """Chooses one of several targets by weight."""

    def __call__(self, targets: Sequence[Target], /) -> Target:
        """Return one of *targets*, all of which have a weight above zero."""
        ...


class SmoothRoundRobin:
    """Weighted round robin without bursts: weights 5, 1, 1 give a a b a c a a.

    Source: nginx, "upstream: smooth weighted round-robin balancing".
    """

    def __init__(self) -> None:
        self._credit: dict[str, int] = {}

    def __call__(self, targets: Sequence[Target], /) -> Target:
        """Return the target with the highest credit, and subtract the total weight from it."""
        credit = self._credit
        total = 0
        best = targets[0]
        for target in targets:
            total += target.weight
            credit[target.name] = credit.get(target.name, 0) + target.weight
            if credit[target.name] > credit[best.name]:
                best = target
        credit[best.name] -= total
        return best


class Random:
    """Independent random choices by weight; *draw* returns numbers in [0, 1)."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw

    def __call__(self, targets: Sequence[Target], /) -> Target:
        """Return a random target by weight."""
        point = self._draw() * sum(target.weight for target in targets)
        for target in targets:
            point -= target.weight
            if point < 0:
                return target
        return targets[-1]


class Balance:
    """A Service over the targets of one route.

    Args:
        name: Route name for errors.
        targets: At least one with a weight above zero; names are unique.
        readiness: Whether all targets or any target must be ready.
        choose: Chooses by weight; `SmoothRoundRobin` by default.
        key: Calls with the same key go to the same target; None for no such rule.
        affinity: The targets of sequences; none yet by default.
        shift: The share of one of *targets*, which has weight 0, while a cut-over moves calls to
            it; the others share the rest. None for fixed weights.

    Attributes:
        only: The target of all calls, which then need not pass this service; None for a choice.
    """

    def __init__(
        self,
        name: str,
        targets: Sequence[Target],
        *,
        readiness: Readiness = Readiness.ANY,
        choose: Chooser | None = None,
        key: Key | None = None,
        affinity: SequenceAffinity | None = None,
        shift: TrafficShift | None = None,
    ) -> None:
        self._weighted = tuple(target for target in targets if target.weight > 0)
        if not self._weighted:
            raise ValueError(f"route {name!r} has no target with a weight above 0")
        if len({target.name for target in targets}) < len(targets):
            raise ValueError(f"route {name!r} has two targets with the same name")
        self._shift = shift
        self._new = next(
            (target for target in targets if shift is not None and target.name == shift.target),
            None,
        )
        is_fixed = self._new is None and len(self._weighted) == 1
        self.only = self._weighted[0] if is_fixed else None
        self.name = name
        self.targets = tuple(targets)
        self._readiness = readiness
        self._choose = SmoothRoundRobin() if choose is None else choose
        self._key = key
        self._priority = min(target.priority for target in self._weighted)
        self._has_priorities = len({target.priority for target in self._weighted}) > 1
        self._affinity = SequenceAffinity("target") if affinity is None else affinity

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call one target; send model readiness and broadcast calls to all targets."""
        if isinstance(call, ModelReadyRequest):
            # The R of a ModelReadyRequest is bool.
            return cast("ReplyCoroutine[R]", self._model_ready(call))
        if type(call) in BROADCAST_CALLS:
            return broadcast(call, [target.service for target in self._in_use()])
        return self._call_one(call)

    async def _call_one(self, call: Call[R]) -> R:
        target = self._pick(call)
        record_target(target.name)
        try:
            return await target.service(call)
        except GatewayError as error:
            error.attempted = error.attempted or target.name
            if len(self._in_use()) > 1 and not error.has_alternative:
                # A retry may go to another target, which does not want that pause.
                error.has_alternative = error.retry_after_s = None
            raise

    def ready(self) -> bool:
        """Return whether the route is ready by its rule, without I/O."""
        return self._readiness.of([target.ready() for target in self._in_use()])

    def _in_use(self) -> Sequence[Target]:
        """Return the targets that get calls."""
        if self._new is None or self._shift is None or not self._shift.share:
            return self._weighted
        if self._shift.share >= 1 and self._new.ready():
            return (self._new,)
        return (*self._weighted, self._new)  # the others get its calls while it is not ready

    def _pick(self, call: Call[Any]) -> Target:
        if self._new is not None and self._is_for(self._new, call):
            return self._new
        # If no target is ready, every target is a candidate, and its error explains the failure.
        targets = [target for target in self._weighted if target.ready()] or list(self._weighted)
        sequence = sequence_of(call)
        if sequence is None:
            attempt = ATTEMPT.get()
            if attempt is None:
                return self._choose_first(self._first(targets), call)
            target = self._choose_first(self._first(attempt.preferred(targets)), call)
            attempt.tried = target.name
            return target
        by_name = {target.name: target for target in targets}
        # Sequences that a target of another priority holds stay there; new ones do not go there.
        first = self._first(targets)
        weights = {
            target.name: target.weight if target in first else _NO_WEIGHT for target in targets
        }
        return by_name[self._affinity.assign(call.model, sequence, weights)]

    def _is_for(self, new: Target, call: Call[Any]) -> bool:
        """Return whether a call goes to the target that a cut-over moves calls to.

        It keeps its sequences at any share.
        """
        assert self._shift is not None  # noqa: S101  # it names the target
        sequence = sequence_of(call)
        if sequence is None:
            attempt = ATTEMPT.get()
            if not self._shift.moves(call) or not new.ready():
                return False
            if attempt is not None:
                if new.name in attempt.avoid:
                    return False
                attempt.tried = new.name
            return True
        held = None if sequence.start else self._affinity.name_of(call.model, sequence)
        moves = new.ready() and (held == new.name if held else self._shift.moves(call))
        return moves and self._affinity.assign(call.model, sequence, {new.name: 1.0}) == new.name

    def _first(self, targets: Sequence[Target]) -> Sequence[Target]:
        """Return the targets of the first priority among *targets*."""
        if not self._has_priorities:
            return targets
        priority = min(target.priority for target in targets)
        if priority != self._priority and ATTEMPT.get() is None:
            self._priority = priority
            log.warning("target priority changed", route=self.name, priority=priority)
        return [target for target in targets if target.priority == priority]

    def _choose_first(self, targets: Sequence[Target], call: Call[Any]) -> Target:
        key = None if self._key is None else self._key(call)
        if key is None:
            return self._choose(targets)
        name = rendezvous(key, {target.name: target.weight for target in targets})
        return next(target for target in targets if target.name == name)

    async def _model_ready(self, call: ModelReadyRequest) -> bool:
        """Call every target; a target that fails is not ready. If all fail, raise the first."""
        targets = self._in_use()
        replies = await asyncio.gather(*(_is_ready(target, call) for target in targets))
        failures = [reply for reply in replies if isinstance(reply, GatewayError)]
        if len(failures) == len(replies):
            raise failures[0]
        return self._readiness.of([reply is True for reply in replies])


async def _is_ready(target: Target, call: ModelReadyRequest) -> bool | GatewayError:
    try:
        return await target.service(call)
    except GatewayError as error:
        return error
