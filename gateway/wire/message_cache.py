"""Caches of parsed messages, bounded so that a peer cannot fill them.

Clients and servers repeat the same headers.  A codec caches only values that depend on nothing but
the bytes of the key, and never views of a received message, which would keep all of it in memory.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from struct import Struct as Layout
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from gateway.accelerator import accelerated

T = TypeVar("T")

_NO_ENTRIES: Final[dict[bytes, Any]] = {}
_ABSENT: Final[Any] = object()
_LAYOUTS: Final = 4  # of one length: to compare more costs more than to parse


class ParseCache(Generic[T]):
    """A dictionary with bounds on its entries and on the bytes of its keys.

    A key is admitted the second time that it occurs: messages that all differ, such as by a number,
    cost one lookup and evict nothing.  There are two generations.  A found entry of the old one
    moves to the young one.  What is left in the old one did not occur for as long: an entry of it
    is evicted for each new one, the latest first.  Once it is empty, the young one becomes the old
    one.  So a lookup of a frequent key changes nothing, and rare keys do not push it out.

    Args:
        entries: The most entries.
        key_bytes: A longer key is not admitted.  A value is not much larger than its key.

    Attributes:
        get: Returns the value of a key; None if there is none.
    """

    __slots__ = ("_entries", "_key_bytes", "_once", "_once_before", "_young", "get")

    def __init__(self, entries: int, key_bytes: int) -> None:
        self._entries = entries
        self._key_bytes = key_bytes
        self._young: _Young[T] = _Young(entries, entries * key_bytes // 2)
        # Hashes of keys that occurred once. Of two keys with one hash the second is admitted early.
        self._once: set[int] = set()
        self._once_before: set[int] = set()
        self.get: Callable[[bytes], T | None] = self._young.__getitem__

    def __len__(self) -> int:
        return len(self._young) + len(self._young.old)

    def should_admit(self, key: bytes) -> bool:
        """Return whether to cache *key*: it is short, is not cached and occurs a second time."""
        if len(key) > self._key_bytes or key in self._young or key in self._young.old:
            return False
        once = hash(key)
        if once in self._once or once in self._once_before:
            self._once.discard(once)
            self._once_before.discard(once)
            return True
        if 2 * len(self._once) >= self._entries:
            self._once_before, self._once = self._once, set()
        self._once.add(once)
        return False

    def put(self, key: bytes, value: T) -> None:
        """Cache *value* for *key*, which `should_admit` admitted."""
        self._young.add(key, value)

    def clear(self) -> None:
        """Remove all entries, because the meaning of keys has changed."""
        self._young.clear()
        self._young.old = _NO_ENTRIES
        self._young.nbytes = 0
        self._once.clear()
        self._once_before.clear()


class _Young(dict[bytes, T]):
    """The young generation of a cache, which looks in the old one for what it lacks.

    Args:
        entries: The most entries of both generations.
        most_bytes: The most bytes of the keys of both.

    Attributes:
        old: The old generation.
        nbytes: The bytes of the keys of both.
    """

    __slots__ = ("_entries", "_most_bytes", "nbytes", "old")

    def __init__(self, entries: int, most_bytes: int) -> None:
        super().__init__()
        self._entries = entries
        self._most_bytes = most_bytes
        self.old: dict[bytes, T] = _NO_ENTRIES
        self.nbytes = 0

    def add(self, key: bytes, value: T) -> None:
        """Add an entry, and evict others where there are too many."""
        self.nbytes += len(key)
        while len(self) + len(self.old) >= self._entries or self.nbytes > self._most_bytes:
            if not self._evict():
                break
        self[key] = value

    def _evict(self) -> bool:
        """Evict the latest entry of the old generation; return whether there was one."""
        if not self.old:
            self.old = dict(self)
            self.clear()
        with suppress(KeyError):  # the thread for long messages may do so at the same time
            key, _ = self.old.popitem()
            self.nbytes -= len(key)
            return True
        return False

    def __missing__(self, key: bytes) -> T | None:
        value = self.old.pop(key, _ABSENT) if self.old else _ABSENT
        if value is _ABSENT:
            return None
        self[key] = value
        return cast("T", value)


_Slice = Callable[[memoryview], tuple[memoryview, ...]]
_Unpack = Callable[[memoryview], tuple[Any, ...]]


class _Layout(NamedTuple, Generic[T]):
    """Where the holes of some messages are, and the cached values of these messages.

    Attributes:
        holes: In their order, none within another.
        text: Returns the bytes of a message around its holes, in parts.
        views: Returns the holes of a message.
        values: By the text.
    """

    holes: tuple[slice, ...]
    text: _Unpack
    views: _Slice
    values: dict[bytes, T]


class MaskedMessageCache(Generic[T]):
    """A cache of parsed binary messages that repeat except for some of their bytes, the *holes*.

    The key of a message is its length and its text: all bytes outside of its holes.  The text must
    determine where the holes are, and the cached value.  As in `ParseCache`, entries and the size
    of their keys are bounded, and a message is admitted the second time that it occurs.

    To find the holes costs more than to parse some messages, so `should_admit` needs only a hash.

    Args:
        entries: The most entries; one more removes those of the length that is cached for longest.
        text_bytes: The most bytes of a message outside of its holes.

    Attributes:
        get: Returns the cached value of a message, and its holes; None when it is not cached.
    """

    def __init__(self, entries: int, text_bytes: int) -> None:
        self._entries = entries
        self._text_bytes = text_bytes
        self._layouts: dict[int, list[_Layout[T]]] = {}
        self.get = layout_finder(self._layouts)
        self._count = 0
        self._once: set[int] = set()

    def __len__(self) -> int:
        return self._count

    def should_admit(self, text_hash: int) -> bool:
        """Return whether to cache a message: its hash occurs a second time.

        Args:
            text_hash: Of what distinguishes messages, except for their holes.  Of two messages
                with one hash the second is admitted early.
        """
        if text_hash in self._once:
            return True
        if len(self._once) >= self._entries:
            self._once.clear()
        self._once.add(text_hash)
        return False

    def put(self, view: memoryview, holes: Sequence[slice], value: T) -> None:
        """Cache the value of a message; *holes* in their order, none within another."""
        text = _unpack_around(holes, len(view))
        key = b"".join(text(view))
        if len(key) > self._text_bytes:
            return
        while self._count >= self._entries:
            oldest = self._layouts.pop(next(iter(self._layouts)))
            self._count -= sum(len(each.values) for each in oldest)
        layouts = self._layouts.setdefault(len(view), [])
        layout = next((each for each in layouts if each.holes == tuple(holes)), None)
        if layout is None:
            if len(layouts) == _LAYOUTS:
                self._count -= len(layouts.pop(0).values)
            layout = _Layout(tuple(holes), text, _slice_out(holes), {})
            layouts.append(layout)
        self._count += key not in layout.values
        layout.values[key] = value


_Find = Callable[[memoryview], tuple[T, tuple[memoryview, ...]] | None]


@accelerated
def layout_finder(layouts: Mapping[int, Sequence[_Layout[T]]]) -> _Find[T]:
    """Return a function that finds the cached value and the holes of a message.

    Args:
        layouts: By the lengths of messages.
    """

    def get(view: memoryview, /) -> tuple[T, tuple[memoryview, ...]] | None:
        for layout in layouts.get(len(view), ()):
            value = layout.values.get(b"".join(layout.text(view)))
            if value is not None:
                return value, layout.views(view)
        return None

    return get


def _unpack_around(holes: Sequence[slice], size: int) -> _Unpack:
    """Return a function that copies the text around *holes*, in one call and without slices."""
    at = 0
    parts = []
    for hole in holes:
        parts.append(f"{hole.start - at}s{hole.stop - hole.start}x")
        at = hole.stop
    return Layout("".join([*parts, f"{size - at}s"])).unpack


def _slice_out(parts: Sequence[slice]) -> _Slice:
    """Return a function that slices *parts* out of a view; `itemgetter` costs half of a loop."""
    if len(parts) == 1:
        only = parts[0]
        return lambda view: (view[only],)  # for one part `itemgetter` returns no tuple
    return itemgetter(*parts)
