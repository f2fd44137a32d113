"""Numbers of requests, for protocols whose servers number them in every response."""

import itertools
from collections.abc import Iterator
from typing import Final

OPTION: Final = "request_ids"
"""The option by which a listener's codecs get the counters of the process; YAML has none."""


class RequestIds:
    """One counter for each server id, which all codecs of a process share.

    Args:
        start: The first number.
        step: Between two numbers: of several processes each has numbers of its own.
    """

    def __init__(self, start: int = 1, step: int = 1) -> None:
        self._start = start
        self._step = step
        self._counters: dict[str, Iterator[int]] = {}

    def counter(self, server_id: str) -> Iterator[int]:
        """Return the counter of the server of this id."""
        if server_id not in self._counters:
            self._counters[server_id] = itertools.count(self._start, self._step)
        return self._counters[server_id]
