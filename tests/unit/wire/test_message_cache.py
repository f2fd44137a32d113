from __future__ import annotations

import pytest

from gateway.wire.message_cache import MaskedMessageCache, ParseCache

pytestmark = pytest.mark.usefixtures("build")


def show(memory: ParseCache[int], *keys: bytes) -> None:
    """Show keys to *memory* twice each, and keep what it wants."""
    for key in keys:
        memory.should_admit(key)
        if memory.should_admit(key):
            memory.put(key, len(key))


def test_a_key_is_wanted_when_it_comes_again() -> None:
    """What comes once and never again takes no place."""
    memory: ParseCache[int] = ParseCache(4, 8)
    assert (False, True) == (memory.should_admit(b"a"), memory.should_admit(b"a"))
    memory.put(b"a", 1)
    assert 1 == memory.get(b"a")
    assert memory.get(b"b") is None
    assert not memory.should_admit(b"a")


def test_only_so_many_are_kept() -> None:
    """The oldest goes, the others stay."""
    memory: ParseCache[int] = ParseCache(2, 8)
    show(memory, b"a", b"bb", b"ccc")
    assert 2 == len(memory)
    assert [None, 2, 3] == [memory.get(key) for key in (b"a", b"bb", b"ccc")]


def test_a_long_key_is_not_kept() -> None:
    """Bytes are bounded, not only entries."""
    memory: ParseCache[int] = ParseCache(2, 8)
    assert not any(memory.should_admit(bytes(9)) for _ in range(3))


def test_keys_that_came_once_are_bounded_too() -> None:
    """Of many keys that come once, the first is forgotten, and may come once more."""
    memory: ParseCache[int] = ParseCache(2, 8)
    for key in (b"a", b"b", b"c"):
        memory.should_admit(key)
    assert not memory.should_admit(b"a")
    assert memory.should_admit(b"c")


def outlined(
    *messages: bytes, holes: tuple[slice, ...], entries: int = 8
) -> MaskedMessageCache[bytes]:
    """Return a memory that keeps each message, as saying itself."""
    memory: MaskedMessageCache[bytes] = MaskedMessageCache(entries, 8)
    for message in messages:
        memory.put(memoryview(message), holes, message)
    return memory


def test_a_message_is_found_by_what_stands_around_its_holes() -> None:
    """Its holes are views of it, and may hold anything."""
    memory = outlined(b"ab12cd3e", holes=(slice(2, 4), slice(6, 7)))
    message = b"abXYcdZe"
    found = memory.get(memoryview(message))
    assert found is not None
    assert (b"ab12cd3e", [b"XY", b"Z"]) == (found[0], [bytes(hole) for hole in found[1]])
    assert all(hole.obj is message for hole in found[1])


@pytest.mark.parametrize("other", [b"Ab12cd3e", b"ab12Cd3e", b"ab12cd3E", b"ab12cd3", b"ab12cd3ee"])
def test_another_byte_or_length_is_another_message(other: bytes) -> None:
    """Every byte outside of the holes counts."""
    memory = outlined(b"ab12cd3e", holes=(slice(2, 4), slice(6, 7)))
    assert memory.get(memoryview(other)) is None


def test_messages_of_one_length_may_have_their_holes_elsewhere() -> None:
    """Up to four outlines of one length are tried; a fifth takes the place of the first."""
    memory: MaskedMessageCache[int] = MaskedMessageCache(8, 8)
    messages = [bytes(range(at, at + 6)) for at in range(0, 50, 10)]
    for at, message in enumerate(messages):
        memory.put(memoryview(message), (slice(at, at + 1),), at)
    found = [memory.get(memoryview(message)) for message in messages]
    assert [None, 1, 2, 3, 4] == [each and each[0] for each in found]
    assert 4 == len(memory)


def test_outlines_are_bounded() -> None:
    """When one too many would be kept all go; a long text is never kept."""
    hole = (slice(0, 1),)
    assert 1 == len(outlined(b"1a", b"1b", b"1c", holes=hole, entries=2))
    assert 0 == len(outlined(bytes(10), holes=hole))


def test_messages_that_come_once_are_not_wanted_and_are_bounded_too() -> None:
    """The second of a mark is; of many marks that come once few are known."""
    memory: MaskedMessageCache[bytes] = MaskedMessageCache(2, 8)
    assert [False, True, True] == [memory.should_admit(1) for _ in range(3)]
    assert not any(memory.should_admit(number) for number in range(2, 11))
    assert 2 >= len(memory._once)
