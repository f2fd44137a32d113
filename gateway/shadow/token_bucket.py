"""TokenBucket: how many calls a second are chosen."""

from collections.abc import Callable
from time import monotonic


class TokenBucket:
    """Grants a number of tokens a second, and at once at most those of one second.

    Args:
        per_second: Tokens a second.
        clock: Monotonic seconds.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = monotonic) -> None:
        self._per_second = per_second
        self._clock = clock
        self._tokens = max(1.0, per_second)
        self._refilled_s = clock()

    def take(self) -> bool:
        """Return whether there is a token, and use it up."""
        now = self._clock()
        refilled = self._tokens + (now - self._refilled_s) * self._per_second
        self._tokens, self._refilled_s = min(max(1.0, self._per_second), refilled), now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
