"""LocalErrors: the errors guard of one serving process, on the calls that it makes itself.

It needs no other process: it sees an error of a client when it happens.
"""

from collections import deque
from typing import Final

from gateway.ir.errors import ErrorCode
from gateway.migration.compare.replies import SERVER_ERRORS
from gateway.migration.compare.statistics import ChangeDetector, newcombe_interval
from gateway.migration.evidence.guards import GuardVerdict, Standing
from gateway.migration.settings import ErrorsGuardConfig

_LAST_CALLS: Final = 1_000


class _LastCalls:
    """How many of the last calls of a target failed, with any error."""

    def __init__(self) -> None:
        self._calls: deque[bool] = deque(maxlen=_LAST_CALLS)
        self.failed = 0

    @property
    def total(self) -> int:
        return len(self._calls)

    def add(self, failed: bool) -> None:
        if len(self._calls) == _LAST_CALLS:
            self.failed -= self._calls[0]
        self._calls.append(failed)
        self.failed += failed


class LocalErrors:
    """Counts the calls to both targets, and tells when those to the new one fail too often.

    Args:
        config: The limits; None for no limit.

    Attributes:
        calls: Calls to the new target.
        failures: Those that failed there with an error of a server.
        unanswered: Those that failed there with any error.
        tripped: The guard that tripped since `begin`; None for none.
    """

    def __init__(self, config: ErrorsGuardConfig | None) -> None:
        self._below = None if config is None else config.below
        self._above_old = None if config is None else config.above_old
        self.calls = 0
        self.failures = 0
        self.unanswered = 0
        self.tripped: GuardVerdict | None = None
        self.begin()

    @property
    def watches_old(self) -> bool:
        """Whether the calls to the old target matter."""
        return self._above_old is not None

    def begin(self) -> None:
        """Forget what happened so far, except for the counts: another attempt begins."""
        self._detector = None if self._below is None else ChangeDetector(self._below)
        self._old, self._new = _LastCalls(), _LastCalls()
        self._first = self.calls, self.failures
        self.tripped = None

    def add_old(self, code: ErrorCode | None) -> None:
        """Add the end of a call to the old target."""
        if code is not ErrorCode.CANCELLED:
            self._old.add(code is not None)

    def add_new(self, code: ErrorCode | None) -> bool:
        """Add the end of a call to the new target; return whether a guard trips now."""
        if code is ErrorCode.CANCELLED:
            return False
        failed = code in SERVER_ERRORS
        self.calls += 1
        self.failures += failed
        self.unanswered += code is not None
        if self._detector is not None:
            self._detector.add(failed)
        if self._above_old is not None:
            self._new.add(code is not None)
        if code is None or self.tripped is not None:
            return False
        self.tripped = self._verdict()
        return self.tripped is not None

    def _verdict(self) -> GuardVerdict | None:
        if self._detector is not None and self._detector.is_tripped:
            calls, failures = self.calls - self._first[0], self.failures - self._first[1]
            text = f"{failures} of {calls} calls, limit {self._below:.3%}"
            return GuardVerdict("errors.below", Standing.TRIPS, text)
        if self._above_old is None:
            return None
        low, high = newcombe_interval(
            self._new.failed, self._new.total, self._old.failed, self._old.total
        )
        if low <= self._above_old:
            return None
        text = (
            f"{self._new.failed} of the last {self._new.total} calls at new and {self._old.failed} "
            f"of {self._old.total} at old, {low:.3%} to {high:.3%} more, limit "
            f"{self._above_old:.3%}"
        )
        return GuardVerdict("errors.above_old", Standing.TRIPS, text)
