"""Guards of an excess: errors at the new server above those at the old one, mismatches above noise.

They hold by all calls and trip by the latest ones; `compare/excess.py` has the tests.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from gateway.ir.errors import ErrorCode
from gateway.migration.compare.excess import WINDOW, ExcessDetector, excess_bounds
from gateway.migration.compare.statistics import sequential_calls_needed
from gateway.migration.evidence.verdicts import (
    Evidence,
    GuardVerdict,
    Standing,
    integers,
    is_different,
)

_OLD: Final = 1
_NEW: Final = 2
_BOTH: Final = _OLD | _NEW
_BAD: Final = 1
_NOISE: Final = 2
_LARGEST_CODE: Final = 3


def _failures(evidence: Evidence) -> int | None:
    """Return which servers failed, as a sum of `_OLD` and `_NEW`; None if a client left."""
    old, new = evidence.old.error, evidence.new.error
    if ErrorCode.CANCELLED in {old, new}:
        return None
    return _OLD * (old is not None) + _NEW * (new is not None)


class ErrorExcessGuard:
    """Compares the errors of both servers for the same calls; errors of both cancel each other."""

    def __init__(self, name: str, limit: float) -> None:
        self.key = name
        self._limit = limit
        self._total = 0
        # How many calls of all have each sum of `_OLD` and `_NEW`.
        self._counts = [0, 0, 0, 0]
        self._last: deque[int] = deque(maxlen=WINDOW)
        self._detector = ExcessDetector(limit)
        self._tripped_after: int | None = None

    def add(self, evidence: Evidence) -> None:
        """Add one call."""
        failures = _failures(evidence)
        if failures is None:
            return
        self._total += 1
        self._counts[failures] += 1
        self._last.append(failures)
        self._watch((failures,))

    def _watch(self, calls: Iterable[int]) -> None:
        for failures in calls:
            self._detector.add_second(failures == _OLD)
            self._detector.add(failures == _NEW)
        self._tripped_after = self._tripped_after or self._detector.tripped_after

    def counts(self) -> list[float]:
        """Return what `resume` continues with."""
        found: list[float] = [self._total, self._tripped_after or 0, *self._last]
        # With fewer calls, the last ones are all calls.
        return [*found, *self._counts[1:]] if self._total > WINDOW else found

    def resume(self, counts: Sequence[float]) -> None:
        """Add what `counts` returned; raises `ValueError` if it cannot have done so."""
        if not counts:
            return
        total, tripped_after, *codes = integers(counts, WINDOW + 5)
        earlier = [0, 0, 0, 0]
        if len(codes) == WINDOW + 3:
            earlier[1:], codes = codes[WINDOW:], codes[:WINDOW]
            earlier[0] = total - sum(earlier)
        if len(codes) > WINDOW or any(code > _LARGEST_CODE for code in codes) or earlier[0] < 0:
            raise ValueError(f"{len(counts)} counts are not those of a guard")
        if not any(earlier):  # an earlier version of the gateway kept the last calls only
            for code in codes:
                earlier[code] += 1
        self._total += sum(earlier)
        self._counts = [a + b for a, b in zip(earlier, self._counts, strict=True)]
        here, self._tripped_after = self._tripped_after, tripped_after or None
        if here is not None and self._tripped_after is None:
            self._tripped_after = total + here
        calls = [*codes, *self._last]
        self._last.extend(calls[-WINDOW:])
        self._detector = ExcessDetector(self._limit, calls=self._total - len(calls))
        self._watch(calls)

    def verdict(self) -> GuardVerdict:
        """Return what the calls so far show."""
        _, old, new, both = self._counts
        low, high = excess_bounds(new, self._total, old, self._total)
        limit = f"limit {self._limit:.3%}"
        text = (
            f"{new + both} at new and {old + both} at old in {self._total} calls, "
            f"{low:.3%} to {high:.3%} more, {limit}"
        )
        if self._tripped_after is not None:
            found = self._detector.found
            if found is not None:
                text = (
                    f"{found.bad} of the last {found.total} calls failed at new alone, and "
                    f"{found.bad_2} of {found.total_2} at old alone, {limit}"
                )
            # All calls are not those by which it tripped, which a restart may have forgotten.
            text = f"{limit if found is None else text}; tripped after call {self._tripped_after}"
            return GuardVerdict(self.key, Standing.TRIPS, text)
        if high < self._limit:
            return GuardVerdict(self.key, Standing.HOLDS, text)
        needed = sequential_calls_needed(self._limit)
        if self._total < needed and not new:
            text += f"; {needed} calls without one are needed"
        return GuardVerdict(self.key, Standing.UNDECIDED, text)


class NoiseGuard:
    """Compares the mismatches with those of the old server with itself."""

    def __init__(self, name: str, limit: float) -> None:
        self.key = f"{name} above noise"
        self._name = name
        self._limit = limit
        # Calls, and bad ones, of both servers and of the old one with itself.
        self._found, self._noise = [0, 0], [0, 0]
        self._last: deque[int] = deque(maxlen=2 * WINDOW)
        self._detector = ExcessDetector(limit, assumes_good=False)
        self._tripped_after: int | None = None

    def add(self, evidence: Evidence) -> None:
        """Add one call."""
        is_bad = is_different(evidence)
        if is_bad is not None:
            self._add(_BAD * is_bad)

    def add_noise(self, is_bad: bool) -> None:
        """Add one call that the old server got twice: whether its own replies differ."""
        self._add(_NOISE + _BAD * is_bad)

    def _add(self, code: int) -> None:
        counts = self._noise if code & _NOISE else self._found
        counts[0] += 1
        counts[1] += code & _BAD
        self._last.append(code)
        self._watch((code,))

    def _watch(self, calls: Iterable[int]) -> None:
        for code in calls:
            add = self._detector.add_second if code & _NOISE else self._detector.add
            add(bool(code & _BAD))
        self._tripped_after = self._tripped_after or self._detector.tripped_after

    def counts(self) -> list[float]:
        """Return what `resume` continues with."""
        return [self._tripped_after or 0, *self._found, *self._noise, *self._last]

    def resume(self, counts: Sequence[float]) -> None:
        """Add what `counts` returned; raises `ValueError` if it cannot have done so."""
        if not counts:
            return
        tripped_after, *totals = integers(counts, 2 * WINDOW + 5)
        (found, found_bad, noise, noise_bad), codes = totals[:4], totals[4:]
        if any(code > _LARGEST_CODE for code in codes) or found_bad > found or noise_bad > noise:
            raise ValueError(f"{len(counts)} counts are not those of a guard")
        here, self._tripped_after = self._tripped_after, tripped_after or None
        if here is not None and self._tripped_after is None:
            self._tripped_after = found + here
        self._found = [self._found[0] + found, self._found[1] + found_bad]
        self._noise = [self._noise[0] + noise, self._noise[1] + noise_bad]
        calls = [*codes, *self._last]
        self._last.extend(calls[-2 * WINDOW :])
        last = sum(not code & _NOISE for code in calls)
        self._detector = ExcessDetector(
            self._limit, calls=self._found[0] - last, assumes_good=False
        )
        self._watch(calls)

    def verdict(self) -> GuardVerdict:
        """Return what the calls so far show."""
        (total, bad), (noise, noise_bad) = self._found, self._noise
        low, high = excess_bounds(bad, total, noise_bad, noise)
        limit = f"limit {self._limit:.3%}"
        text = (
            f"{bad} of {total} differ, and {noise_bad} of {noise} of the old server with itself, "
            f"{low:.3%} to {high:.3%} more, {limit}"
        )
        if self._tripped_after is not None:
            found = self._detector.found
            if found is not None:
                text = (
                    f"{found.bad} of the last {found.total} differ, and {found.bad_2} of "
                    f"{found.total_2} of the old server with itself, {limit}"
                )
            # All calls are not those by which it tripped, which a restart may have forgotten.
            text = f"{limit if found is None else text}; tripped after call {self._tripped_after}"
            return GuardVerdict(self._name, Standing.TRIPS, text)
        standing = Standing.HOLDS if high < self._limit else Standing.UNDECIDED
        return GuardVerdict(self._name, standing, text)
