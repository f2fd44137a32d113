"""LocalErrors: the errors guard of one serving process, on the calls that it makes itself.

It needs no other process: it sees an error of a client when it happens.
"""

from gateway.ir.errors import SERVER_ERRORS, ErrorCode
from gateway.migration.compare.excess import ExcessDetector
from gateway.migration.compare.statistics import ChangeDetector
from gateway.migration.evidence.verdicts import GuardVerdict, Standing
from gateway.migration.settings import ErrorsGuardConfig


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
        self._excess = None if self._above_old is None else ExcessDetector(self._above_old)
        self.tripped = None

    def add_old(self, code: ErrorCode | None) -> None:
        """Add the end of a call to the old target."""
        if self._excess is not None and code is not ErrorCode.CANCELLED:
            self._excess.add_second(code is not None)

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
        if self._excess is not None:
            self._excess.add(code is not None)
        if code is None or self.tripped is not None:
            return False
        self.tripped = self._verdict()
        return self.tripped is not None

    def _verdict(self) -> GuardVerdict | None:
        detector, excess = self._detector, self._excess
        if detector is not None and detector.tripped_after is not None:
            bad, total = detector.window
            text = f"{bad} of the last {total} calls, limit {self._below:.3%}"
            return GuardVerdict("errors.below", Standing.TRIPS, text)
        if excess is None or excess.found is None:
            return None
        found = excess.found
        text = (
            f"{found.bad} of the last {found.total} calls failed at new, and {found.bad_2} of "
            f"{found.total_2} at old, limit {self._above_old:.3%}"
        )
        return GuardVerdict("errors.above_old", Standing.TRIPS, text)
