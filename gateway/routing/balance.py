"""Balance: a route's targets, by weight; and the route's rule about when it counts as ready."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from gateway.ir.calls import Call, ModelReadyRequest, sequence_of
from gateway.ir.errors import GatewayError
from gateway.routing.broadcast import BROADCAST_CALLS, broadcast
from gateway.routing.sequence_affinity import IDLE_S, SequenceAffinity
from gateway.service import ReplyCoroutine, Service
from gateway.telemetry.call_path import record_target

R = TypeVar("R")


class Readiness(enum.Enum):
    """When something that has several parts is ready."""

    ANY = "any"
    ALL = "all"

    def of(self, parts: Sequence[bool]) -> bool:
        """Apply the rule to the readiness of the parts."""
        return any(parts) if self is Readiness.ANY else all(parts)


def always_ready() -> bool:
    """Return True: readiness of a target that nobody watches."""
    return True


@dataclass(frozen=True, slots=True)
class Target:
    """Where a share of a route's calls goes.

    Attributes:
        weight: Its share beside the others' weights; 0 takes no calls.
        ready: Tells, without waiting, whether it can take calls.
    """

    name: str
    service: Service
    weight: int = 1
    ready: Callable[[], bool] = always_ready


class Chooser(Protocol):
    """Chooses one of several targets by weight."""

    def __call__(self, targets: Sequence[Target], /) -> Target:
        """Return one of *targets*, all of which have a weight above zero."""
        ...


class SmoothRoundRobin:
    """Weighted turns without bursts: 5, 1, 1 gives a a b a c a a.

    Source: nginx, "upstream: smooth weighted round-robin balancing".
    """

    def __init__(self) -> None:
        self._credit: dict[str, int] = {}

    def __call__(self, targets: Sequence[Target], /) -> Target:
        """Return the target with most credit, and take the turn's cost from it."""
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
    """Independent draws by weight; *draw* gives numbers from 0 up to, not including, 1."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self._draw = draw

    def __call__(self, targets: Sequence[Target], /) -> Target:
        """Return a target drawn by weight."""
        point = self._draw() * sum(target.weight for target in targets)
        for target in targets:
            point -= target.weight
            if point < 0:
                return target
        return targets[-1]


class Balance:
    """A Service over the targets of one route.

    Args:
        name: Of the route, for errors.
        targets: At least one of weight above zero; names differ.
        readiness: When the route is ready, for a model and for the server.
        choose: Chooses by weight; smooth turns by default.
        sequence_idle_s: How long a sequence stays at its target without a request.
    """

    def __init__(
        self,
        name: str,
        targets: Sequence[Target],
        *,
        readiness: Readiness = Readiness.ANY,
        choose: Chooser | None = None,
        sequence_idle_s: float = IDLE_S,
    ) -> None:
        self._weighted = tuple(target for target in targets if target.weight > 0)
        if not self._weighted:
            raise ValueError(f"route {name!r} has no target of weight above 0")
        if len({target.name for target in targets}) < len(targets):
            raise ValueError(f"route {name!r} names a target twice")
        self._only = self._weighted[0] if len(self._weighted) == 1 else None
        self.name = name
        self.targets = tuple(targets)
        self._readiness = readiness
        self._choose = SmoothRoundRobin() if choose is None else choose
        self._affinity = SequenceAffinity("target", idle_s=sequence_idle_s)

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Ask one target; all of them whether a model is ready, and what each must know itself."""
        if self._only is not None:
            record_target(self._only.name)
            return self._only.service(call)
        if isinstance(call, ModelReadyRequest):
            # The answer to a ModelReadyRequest is a bool, which is its R.
            return cast("ReplyCoroutine[R]", self._model_ready(call))
        if type(call) in BROADCAST_CALLS:
            return broadcast(call, [target.service for target in self._weighted])
        return self._one_of_several(call)

    async def _one_of_several(self, call: Call[R]) -> R:
        target = self._pick(call)
        record_target(target.name)
        return await target.service(call)

    def ready(self) -> bool:
        """Return whether the route is ready by its rule, as far as is known without asking."""
        return self._readiness.of([target.ready() for target in self._weighted])

    def _pick(self, call: Call[Any]) -> Target:
        # With none ready all are tried: the answer then says what is wrong.
        targets = [target for target in self._weighted if target.ready()] or list(self._weighted)
        sequence = sequence_of(call)
        if sequence is None:
            return self._choose(targets)
        by_name = {target.name: target for target in targets}
        weights = {target.name: float(target.weight) for target in targets}
        return by_name[self._affinity.assign(call.model, sequence, weights)]

    async def _model_ready(self, call: ModelReadyRequest) -> bool:
        """Ask every target; one that fails is not ready, and if all fail the first one's reason."""
        answers = await asyncio.gather(*(_ask_ready(target, call) for target in self._weighted))
        failures = [answer for answer in answers if isinstance(answer, GatewayError)]
        if len(failures) == len(answers):
            raise failures[0]
        return self._readiness.of([answer is True for answer in answers])


async def _ask_ready(target: Target, call: ModelReadyRequest) -> bool | GatewayError:
    try:
        return await target.service(call)
    except GatewayError as error:
        return error
