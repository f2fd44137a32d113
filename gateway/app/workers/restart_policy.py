"""When a worker that died is started again, and when that is given up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How patient a supervisor is.

    Attributes:
        first_s: Wait after a first death: less than a client's patience, more than no pause at all.
        factor: By which each further wait is longer.
        longest_s: A wait is never longer, so that a worker is back soon after the cause has gone.
        well_s: A worker that served so long has recovered: its deaths before are forgotten.
        most: Deaths in a row after which it is given up: with these numbers, after half a minute.
            By then it is no accident, and whoever watches the gateway should see it.
    """

    first_s: float = 0.2
    factor: float = 2.0
    longest_s: float = 10.0
    well_s: float = 30.0
    most: int = 7


class Restarts:
    """The deaths of one worker.

    Args:
        pace: How patient to be.
    """

    def __init__(self, pace: RestartPolicy) -> None:
        self._pace = pace
        self._deaths = 0

    def ended(self, *, served_s: float, in_order: bool) -> float | None:
        """Return how long to wait before the worker is started again; None to give up.

        Args:
            served_s: How long it was ready; 0 for one that never was.
            in_order: It was told to leave, by an operator, and left with nothing in flight.
        """
        pace = self._pace
        if served_s >= pace.well_s:
            self._deaths = 0
        # One that leaves before it has served at all is told so again and again, or wrong.
        if in_order and served_s >= pace.first_s:
            return 0.0
        self._deaths += 1
        if self._deaths >= pace.most:
            return None
        wait_s: float = pace.first_s * pace.factor ** (self._deaths - 1)
        return min(wait_s, pace.longest_s)
