"""ModelCalls: the running inferences of one upstream, by endpoint and model."""

import asyncio
from collections import Counter

from gateway.concurrency.timeouts import is_set_within

_Key = tuple[str, str]


class ModelCalls:
    """The running inferences of an upstream, by endpoint and model.

    Args:
        is_published: Whether metrics have the counts.
    """

    def __init__(self, *, is_published: bool = False) -> None:
        self.is_published = is_published
        self._running: Counter[_Key] = Counter()
        self._ended: dict[_Key, asyncio.Event] = {}

    def begin(self, endpoint: str, model: str) -> None:
        """Count a call."""
        self._running[endpoint, model] += 1

    def end(self, endpoint: str, model: str) -> None:
        """Count it no longer."""
        key = endpoint, model
        self._running[key] -= 1
        if not self._running[key]:
            del self._running[key]
            ended = self._ended.pop(key, None)
            if ended is not None:
                ended.set()

    def by_model(self) -> Counter[str]:
        """Return the running calls of each model, at all endpoints."""
        found = Counter[str]()
        for (_, model), count in self._running.items():
            found[model] += count
        return found

    async def wait_until_ended(self, endpoint: str, model: str, timeout_s: float) -> bool:
        """Wait for the running calls of a model at an endpoint; return whether they have ended."""
        key = endpoint, model
        if not self._running[key]:
            del self._running[key]
            return True
        ended = self._ended.setdefault(key, asyncio.Event())
        return await is_set_within(ended, timeout_s)
