"""BoundedDict: a dictionary that drops its oldest entries."""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(dict[K, V]):
    """A dictionary with at most *limit* entries.

    An assignment makes its entry the newest.  When the dictionary is full, a new key takes the
    place of the oldest entry.  Only assignments by index are bounded, not `update`.

    Args:
        limit: Largest number of entries.
    """

    __slots__ = ("_limit",)

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        """Store *value* as the newest entry."""
        if self.pop(key, None) is None and len(self) >= self._limit:
            del self[next(iter(self))]
        super().__setitem__(key, value)
