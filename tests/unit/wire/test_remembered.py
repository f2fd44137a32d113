from __future__ import annotations

from gateway.wire.remembered import Remembered


def shown(memory: Remembered[int], *keys: bytes) -> None:
    """Show keys to *memory* twice each, and keep what it wants."""
    for key in keys:
        memory.wants(key)
        if memory.wants(key):
            memory.keep(key, len(key))


def test_a_key_is_wanted_when_it_comes_again() -> None:
    """What comes once and never again takes no place."""
    memory: Remembered[int] = Remembered(4, 8)
    assert (False, True) == (memory.wants(b"a"), memory.wants(b"a"))
    memory.keep(b"a", 1)
    assert 1 == memory.get(b"a")
    assert memory.get(b"b") is None
    assert not memory.wants(b"a")


def test_only_so_many_are_kept() -> None:
    """The oldest goes, the others stay."""
    memory: Remembered[int] = Remembered(2, 8)
    shown(memory, b"a", b"bb", b"ccc")
    assert 2 == len(memory)
    assert [None, 2, 3] == [memory.get(key) for key in (b"a", b"bb", b"ccc")]


def test_a_long_key_is_not_kept() -> None:
    """Bytes are bounded, not only entries."""
    memory: Remembered[int] = Remembered(2, 8)
    assert not any(memory.wants(bytes(9)) for _ in range(3))


def test_keys_that_came_once_are_bounded_too() -> None:
    """Of many keys that come once, the first is forgotten, and may come once more."""
    memory: Remembered[int] = Remembered(2, 8)
    for key in (b"a", b"b", b"c"):
        memory.wants(key)
    assert not memory.wants(b"a")
    assert memory.wants(b"c")
