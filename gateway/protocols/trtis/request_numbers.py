"""Numbers of requests, for protocols whose servers number them in every response."""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Final

from gateway.api.protocol import Options

REQUEST_IDS: Final = "request_ids"
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


def process_options(
    number: int, count: int, clock: Callable[[], int] = time.monotonic_ns
) -> Options:
    """Return the counters of a process as an option; the numbers of all workers differ.

    A worker starts at the microseconds of the machine's clock, so that its numbers also differ from
    those of its earlier processes.

    Args:
        number: The number of the worker, from 1.
        count: How many workers there are.
        clock: Nanoseconds of the machine.
    """
    if count == 1:
        return {REQUEST_IDS: RequestIds()}
    return {REQUEST_IDS: RequestIds(clock() // 1000 * count + number, count)}
