from __future__ import annotations

import pytest

from gateway.wire.message_cache import MaskedMessageCache, ParseCache

pytestmark = pytest.mark.usefixtures("build")


def admit(cache: ParseCache[int], *keys: bytes) -> None:
    """Offer each key to *cache* twice, and put it when it is admitted."""
    for key in keys:
        cache.should_admit(key)
        if cache.should_admit(key):
            cache.put(key, len(key))


def test_key_is_admitted_the_second_time() -> None:
    """A key that occurs once uses no entry."""
    cache: ParseCache[int] = ParseCache(4, 8)
    assert (False, True) == (cache.should_admit(b"a"), cache.should_admit(b"a"))
    cache.put(b"a", 1)
    assert 1 == cache.get(b"a")
    assert cache.get(b"b") is None
    assert not cache.should_admit(b"a")


def test_an_entry_without_a_lookup_is_evicted_when_full() -> None:
    """The latest of them; entries that were found since stay."""
    cache: ParseCache[int] = ParseCache(3, 8)
    admit(cache, b"a", b"bb", b"ccc", b"dddd")
    assert 3 == len(cache)
    assert [1, 2, None, 4] == [cache.get(key) for key in (b"a", b"bb", b"ccc", b"dddd")]


def test_a_cached_value_may_be_none() -> None:
    """It stays when it is found again in the old generation, and is not offered a second time."""
    cache: ParseCache[int | None] = ParseCache(2, 8)
    for key in (b"a", b"b", b"c"):
        cache.put(key, None)
    assert cache.get(b"a") is None
    assert not any(cache.should_admit(b"a") for _ in range(3))


def test_long_key_is_not_admitted() -> None:
    """The size of keys is limited, too."""
    cache: ParseCache[int] = ParseCache(2, 8)
    assert not any(cache.should_admit(bytes(9)) for _ in range(3))


def test_keys_that_occur_once_are_bounded() -> None:
    """The first of many keys that occur once is forgotten."""
    cache: ParseCache[int] = ParseCache(2, 8)
    for key in (b"a", b"b", b"c"):
        cache.should_admit(key)
    assert not cache.should_admit(b"a")
    assert cache.should_admit(b"c")


def cache_of(
    *messages: bytes, holes: tuple[slice, ...], entries: int = 8
) -> MaskedMessageCache[bytes]:
    """Return a cache that maps each message to itself."""
    cache: MaskedMessageCache[bytes] = MaskedMessageCache(entries, 8)
    for message in messages:
        cache.put(memoryview(message), holes, message)
    return cache


def test_message_is_found_by_the_bytes_around_its_holes() -> None:
    """The holes are views of the message, and may hold any bytes."""
    cache = cache_of(b"ab12cd3e", holes=(slice(2, 4), slice(6, 7)))
    message = b"abXYcdZe"
    found = cache.get(memoryview(message))
    assert found is not None
    assert (b"ab12cd3e", [b"XY", b"Z"]) == (found[0], [bytes(hole) for hole in found[1]])
    assert all(hole.obj is message for hole in found[1])


@pytest.mark.parametrize("other", [b"Ab12cd3e", b"ab12Cd3e", b"ab12cd3E", b"ab12cd3", b"ab12cd3ee"])
def test_another_byte_or_length_is_a_miss(other: bytes) -> None:
    """Every byte outside of the holes counts."""
    cache = cache_of(b"ab12cd3e", holes=(slice(2, 4), slice(6, 7)))
    assert cache.get(memoryview(other)) is None


def test_messages_of_one_length_may_have_different_holes() -> None:
    """Up to four layouts of one length are cached; a fifth replaces the first."""
    cache: MaskedMessageCache[int] = MaskedMessageCache(8, 8)
    messages = [bytes(range(at, at + 6)) for at in range(0, 50, 10)]
    for at, message in enumerate(messages):
        cache.put(memoryview(message), (slice(at, at + 1),), at)
    found = [cache.get(memoryview(message)) for message in messages]
    assert [None, 1, 2, 3, 4] == [each and each[0] for each in found]
    assert 4 == len(cache)


def test_cached_messages_are_bounded() -> None:
    """One entry too many clears the cache; a long text is never cached."""
    hole = (slice(0, 1),)
    assert 1 == len(cache_of(b"1a", b"1b", b"1c", holes=hole, entries=2))
    assert 0 == len(cache_of(bytes(10), holes=hole))


def test_messages_of_other_lengths_stay_when_the_cache_is_full() -> None:
    """The length that was cached first makes room."""
    hole = (slice(0, 1),)
    cache = cache_of(b"1a", b"1bb", b"1ccc", holes=hole, entries=2)
    found = [cache.get(memoryview(message)) for message in (b"1a", b"2bb", b"2ccc")]
    assert [False, True, True] == [each is not None for each in found]
    assert 2 == len(cache)


def test_hashes_of_messages_that_occur_once_are_bounded() -> None:
    """A hash is admitted the second time; few of many single hashes are stored."""
    cache: MaskedMessageCache[bytes] = MaskedMessageCache(2, 8)
    assert [False, True, True] == [cache.should_admit(1) for _ in range(3)]
    assert not any(cache.should_admit(number) for number in range(2, 11))
    assert 2 >= len(cache._once)
