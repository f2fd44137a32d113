"""The attempts of one call: which endpoints were tried, so that the next one goes elsewhere.

A policy that repeats calls sets `ATTEMPT` around an attempt. Layers that choose an endpoint or a
target read it. Without such a policy it is None.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Protocol, TypeVar


class Destination(Protocol):
    """A destination with a name."""

    @property
    def name(self) -> str:
        """Name of the destination."""
        ...


N = TypeVar("N", bound=Destination)


class CallAttempt:
    """One attempt at a call.

    Args:
        avoid: Names of endpoints and targets that other attempts have tried; the last one is last.

    Attributes:
        avoid: Names of endpoints and targets that were tried, the last one last.
        tried: The endpoint of this attempt, or its target if it has one endpoint; "" before the
            choice.
    """

    __slots__ = ("avoid", "tried")

    def __init__(self, avoid: tuple[str, ...] = ()) -> None:
        self.avoid = avoid
        self.tried = ""

    def preferred(self, candidates: Sequence[N]) -> Sequence[N]:
        """Return the candidates that were not tried; else all but the one tried last; else all."""
        if not self.avoid:
            return candidates
        untried = [each for each in candidates if each.name not in self.avoid]
        others = untried or [each for each in candidates if each.name != self.avoid[-1]]
        return others or candidates


ATTEMPT: ContextVar[CallAttempt | None] = ContextVar("gateway_attempt", default=None)
"""The attempt that this task makes."""
