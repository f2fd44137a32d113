"""When to restart a worker that exited, and when to stop restarting it."""

from dataclasses import dataclass
from typing import Final

_MAX_EXPONENT: Final = 32


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The backoff between restarts of a worker.

    Attributes:
        first_wait_s: Backoff after the first failure.
        factor: Each further backoff is longer by this factor.
        max_wait_s: The longest backoff.
        stable_s: A worker that served for this time resets its failures.
        max_failures: Consecutive failures after which the worker is not restarted; with the
            default backoff they take about half a minute. None for no limit.
    """

    first_wait_s: float = 0.2
    factor: float = 2.0
    max_wait_s: float = 10.0
    stable_s: float = 30.0
    max_failures: int | None = 7


class RestartBackoff:
    """Counts the consecutive failures of one worker."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._failures = 0

    def next_wait(self, *, served_s: float, is_clean: bool) -> float | None:
        """Return the backoff after an exit of the worker; None if it is not to be restarted.

        Args:
            served_s: How long the worker was ready; 0 if it never was.
            is_clean: It exited with status 0, because an operator sent it SIGTERM.
        """
        policy = self._policy
        if served_s >= policy.stable_s:
            self._failures = 0
        # A clean exit before the worker could serve counts as a failure, or it would loop.
        if is_clean and served_s >= policy.first_wait_s:
            return 0.0
        self._failures += 1
        if policy.max_failures is not None and self._failures >= policy.max_failures:
            return None
        exponent = min(self._failures - 1, _MAX_EXPONENT)
        wait_s: float = policy.first_wait_s * policy.factor**exponent
        return min(wait_s, policy.max_wait_s)
