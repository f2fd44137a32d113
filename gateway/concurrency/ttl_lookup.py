"""TtlLookup: facts that somebody is asked for, kept for a while; one question for each key."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from types import MethodType
from typing import Any, Final, Generic, TypeVar
from weakref import WeakMethod

from gateway.ir.bounded_dict import BoundedDict

K = TypeVar("K")
V = TypeVar("V")

MIN_AGE_S: Final = 1.0
"""`forget_if_stale` keeps values that are younger."""


class TtlLookup(Generic[K, V]):
    """Looks values up by key, and keeps them.

    Callers who want the same value at the same time share one call of *fetch*, which continues if
    they leave. Its errors reach all of them, and are not kept.

    Args:
        fetch: Returns the value of a key, or None where there is none. It gets the key and the
            further arguments of `get`. A method is that of the owner of this object, and held
            weakly: a cycle would keep the parts of a configuration that was replaced.
        ttl_s: Time for which a value is kept.
        unknown_s: Time for which it is kept that there is no value.
        limit: Largest number of keys; a new one takes the place of the oldest.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        fetch: Callable[..., Coroutine[Any, Any, V | None]],
        ttl_s: float,
        unknown_s: float,
        limit: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = WeakMethod(fetch) if isinstance(fetch, MethodType) else lambda: fetch
        self._ttl_s = ttl_s
        self._unknown_s = unknown_s
        self._clock = clock
        # When each value expires, when it was stored, and the value.
        self._entries: BoundedDict[K, tuple[float, float, V | None]] = BoundedDict(limit)
        self._flights: dict[K, asyncio.Task[V | None]] = {}

    def peek(self, key: K) -> V | None:
        """Return the value that is kept; None for none. It may be called on any thread."""
        entry = self._entries.get(key)
        return entry[2] if entry is not None and self._clock() < entry[0] else None

    def has(self, key: K) -> bool:
        """Return whether a value is kept, or that there is none."""
        entry = self._entries.get(key)
        return entry is not None and self._clock() < entry[0]

    async def get(self, key: K, *arguments: Any) -> V | None:
        """Return the value that is kept, or ask for it; None where there is none.

        Args:
            key: The key.
            arguments: Passed to *fetch*, if this call is the first to ask.
        """
        entry = self._entries.get(key)
        if entry is not None and self._clock() < entry[0]:
            return entry[2]
        return await asyncio.shield(self.ask(key, *arguments))

    def ask(self, key: K, *arguments: Any) -> asyncio.Task[V | None]:
        """Return the question for a value that is being asked, or ask it."""
        flight = self._flights.get(key)
        if flight is None:
            flight = asyncio.get_running_loop().create_task(
                self._find(self._method(), key, arguments)
            )
            self._flights[key] = flight
            flight.add_done_callback(partial(self._ended, key))
        return flight

    def is_asked(self, key: K) -> bool:
        """Return whether a value is being asked for."""
        return key in self._flights

    def put(self, key: K, value: V | None) -> None:
        """Keep a value, or that there is none."""
        now = self._clock()
        ttl_s = self._unknown_s if value is None else self._ttl_s
        self._entries[key] = now + ttl_s, now, value

    def forget(self, key: K) -> None:
        """Discard the value of a key, and that of a question which is being asked."""
        self._entries.pop(key, None)
        self._flights.pop(key, None)

    def forget_if(self, condition: Callable[[K], bool]) -> None:
        """Discard the values of all keys that *condition* holds for."""
        for key in [key for key in (*self._entries, *self._flights) if condition(key)]:
            self.forget(key)

    def forget_all(self) -> None:
        """Discard all values."""
        self._entries.clear()
        self._flights.clear()

    def forget_if_stale(self, key: K) -> bool:
        """Discard a value after an error, unless it is young; return whether there was one.

        Young values stay, so that invalid requests do not double the number of questions.
        """
        entry = self._entries.get(key)
        if entry is None or self._clock() < entry[1] + MIN_AGE_S:
            return False
        self.forget(key)
        return True

    def _method(self) -> Callable[..., Coroutine[Any, Any, V | None]]:
        fetch = self._fetch()
        assert fetch is not None  # noqa: S101  # its owner asks
        return fetch

    async def _find(
        self,
        fetch: Callable[..., Coroutine[Any, Any, V | None]],
        key: K,
        arguments: tuple[Any, ...],
    ) -> V | None:
        found = await fetch(key, *arguments)
        if self._flights.get(key) is asyncio.current_task():  # it was not to be forgotten meanwhile
            self.put(key, found)
        return found

    def _ended(self, key: K, flight: asyncio.Task[V | None]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        if not flight.cancelled():
            flight.exception()  # all callers may have left, so that nobody else looks at it
