"""Numbers of requests in one process, and in several workers."""

from __future__ import annotations

from functools import partial

from gateway.protocols.trtis.request_numbers import REQUEST_IDS, process_options


def test_request_ids_are_unique_across_workers() -> None:
    """Restarted workers repeat none; a single process counts from 1 per server id."""
    single = process_options(1, 1)[REQUEST_IDS]
    assert single.counter("a") is single.counter("a")
    assert [1, 2, 1] == [next(single.counter(name)) for name in "aab"]
    starts = [(1, 1_000_000), (2, 1_000_000), (3, 1_000_500), (2, 2_000_000)]
    counters = []
    for number, started_ns in starts:
        ids = process_options(number, 3, partial(int, started_ns))[REQUEST_IDS]
        counters.append(ids.counter("a"))
    numbers = [next(counter) for counter in counters for _ in range(300)]
    assert len(numbers) == len(set(numbers))
