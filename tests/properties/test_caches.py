"""Caches of parsed messages: what clients repeat stays, whatever else they send."""

from __future__ import annotations

from bisect import bisect
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from itertools import accumulate
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.message_cache import ParseCache

_ENTRIES = 64
_REQUESTS = 20_000


def zipf(random: Random, forms: int, exponent: float) -> list[bytes]:
    """Return requests whose forms have a Zipf distribution."""
    shares = [*accumulate(1 / rank**exponent for rank in range(1, forms + 1))]
    return [b"%d" % bisect(shares, random.random() * shares[-1]) for _ in range(_REQUESTS)]


def hits(cache: ParseCache[int], requests: Sequence[bytes]) -> int:
    """Return how many requests are found, where the others are parsed and offered."""
    found = 0
    for key in requests:
        if cache.get(key) is not None:
            found += 1
        elif cache.should_admit(key):
            cache.put(key, 1)
    return found


def lru_hits(requests: Sequence[bytes]) -> int:
    """Return the same for a cache that evicts the entry that was used least recently."""
    found, entries = 0, OrderedDict[bytes, None]()
    for key in requests:
        if key in entries:
            found += 1
            entries.move_to_end(key)
            continue
        entries[key] = None
        if len(entries) > _ENTRIES:
            entries.popitem(last=False)
    return found


def optimal_hits(requests: Sequence[bytes]) -> int:
    """Return the same for a cache that evicts the entry that is needed last, as nobody can know."""
    places = defaultdict[bytes, list[int]](list)
    for place in range(len(requests) - 1, -1, -1):
        places[requests[place]].append(place)
    found, due = 0, dict[bytes, int]()
    for key in requests:
        found += key in due
        places[key].pop()
        due[key] = places[key][-1] if places[key] else len(requests)
        if len(due) > _ENTRIES:
            del due[max(due, key=due.__getitem__)]
    return found


@settings(max_examples=12)
@given(
    seed=st.integers(0, 1 << 32),
    forms=st.sampled_from([100, 1000, 10_000]),
    exponent=st.sampled_from([0.8, 1.0, 1.3]),
)
def test_frequent_forms_are_found_as_often_as_in_an_lru_cache(
    seed: int, forms: int, exponent: float
) -> None:
    """Of a Zipf distribution as many hits as LRU has, and 65 % of those of the offline optimum."""
    requests = zipf(Random(seed), forms, exponent)  # noqa: S311  # inputs of a test
    found = hits(ParseCache(_ENTRIES, 16), requests)
    assert found >= 0.95 * lru_hits(requests)
    assert found >= 0.65 * optimal_hits(requests)


@settings(max_examples=12)
@given(seed=st.integers(0, 1 << 32))
def test_rare_forms_do_not_push_out_a_frequent_one(seed: int) -> None:
    """A form of each tenth request is parsed twice; the others occur once in 10,000 requests."""
    random, misses = Random(seed), 0  # noqa: S311  # inputs of a test
    cache: ParseCache[int] = ParseCache(_ENTRIES, 16)
    for _ in range(_REQUESTS):
        if random.random() < 0.1:
            misses += cache.get(b"frequent") is None
            hits(cache, [b"frequent"])
        else:
            hits(cache, [b"%d" % random.randrange(9000)])
    assert misses <= 2


@pytest.mark.parametrize("size", [1, 16, 100])
def test_entries_and_bytes_are_bounded(size: int) -> None:
    """However many keys are admitted."""
    cache: ParseCache[int] = ParseCache(_ENTRIES, 100)
    for number in range(1000):
        key = b"%d" % number + bytes(size - 1)
        for _ in range(2):
            hits(cache, [key[:100]])
        assert len(cache) <= _ENTRIES
        assert sum(map(len, [*cache._young, *cache._young.old])) <= _ENTRIES * 100 // 2
