"""What was once made of bytes, found again by them: a memory that strangers cannot fill.

Clients and servers send the same heads again and again. Here is the memory alone, without a word
of what is in it: a codec remembers what depends on nothing but the bytes it is found by, and never
views of a received message, which would hold the whole of it.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Remembered(Generic[T]):
    """A dictionary of so many entries at most, with keys of so many bytes at most.

    What is new stands for `entries` others, then goes. A key must come twice before something is
    kept for it: messages that are all different (a number in each) cost a look and displace none.

    Args:
        entries: Kept at most.
        key_bytes: A longer key is not kept; what is kept for one is not much larger than it.
    """

    def __init__(self, entries: int, key_bytes: int) -> None:
        self._entries = entries
        self._key_bytes = key_bytes
        self._kept: dict[bytes, T] = {}
        # Hashes of keys that came once. Two keys of one hash: the second is kept one time too soon.
        self._once: dict[int, None] = {}
        self.get = self._kept.get

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: bytes) -> bool:
        return key in self._kept

    def wants(self, key: bytes) -> bool:
        """Tell whether something shall be kept for *key*: it is short, new and came before."""
        if len(key) > self._key_bytes or key in self._kept:
            return False
        once = hash(key)
        if once in self._once:
            del self._once[once]
            return True
        if len(self._once) >= self._entries:
            del self._once[next(iter(self._once))]
        self._once[once] = None
        return False

    def keep(self, key: bytes, value: T) -> None:
        """Keep *value* for *key*, which `wants` said yes to; the oldest goes where it is full."""
        if len(self._kept) >= self._entries:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = value
