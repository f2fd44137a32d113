"""What was once made of bytes, found again by them: a memory that strangers cannot fill.

Clients and servers send the same heads again and again. Here is the memory alone, without a word
of what is in it: a codec remembers what depends on nothing but the bytes it is found by, and never
views of a received message, which would hold the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from struct import Struct as Layout
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

T = TypeVar("T")

_OUTLINES: Final = 4  # of one length: more would cost more than they give


class ParseCache(Generic[T]):
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

    def should_admit(self, key: bytes) -> bool:
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

    def put(self, key: bytes, value: T) -> None:
        """Keep *value* for *key*, which `wants` said yes to; the oldest goes where it is full."""
        if len(self._kept) >= self._entries:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = value

    def clear(self) -> None:
        """Forget everything: keys mean something else now."""
        self._kept.clear()
        self._once.clear()


_Take = Callable[[memoryview], tuple[memoryview, ...]]
_Texts = Callable[[memoryview], tuple[Any, ...]]


class _Layout(Struct, Generic[T]):
    """Where the text of a message lies, and what texts that lie so say.

    Attributes:
        texts: Takes the text out of a message, in pieces of bytes.
        views: Takes the holes.
    """

    holes: Sequence[slice]
    texts: _Texts
    views: _Take
    said: dict[bytes, T]


class MaskedMessageCache(Generic[T]):
    """What binary messages say that repeat but for some of their bytes, the *holes*.

    A message is found again by its length and by all of its bytes outside of the holes, which tell
    where holes are and how long: what they say must follow from these bytes alone. As of
    `Remembered`, so many are kept at most, each the second time it comes, and none of a long text.

    To find the holes costs more than reading some messages, so whether one came before is asked
    with less than its text.

    Args:
        entries: Kept at most; when one comes that would be one too many, all go.
        text_bytes: Of one message, outside of its holes.
    """

    def __init__(self, entries: int, text_bytes: int) -> None:
        self._entries = entries
        self._text_bytes = text_bytes
        self._outlines: dict[int, list[_Layout[T]]] = {}
        self._count = 0
        self._once: set[int] = set()

    def __len__(self) -> int:
        return self._count

    def get(self, view: memoryview) -> tuple[T, tuple[memoryview, ...]] | None:
        """Return what is remembered of a message, and its holes; None when nothing is."""
        for outline in self._outlines.get(len(view), ()):
            said = outline.said.get(b"".join(outline.texts(view)))
            if said is not None:
                return said, outline.views(view)
        return None

    def should_admit(self, mark: int) -> bool:
        """Tell whether a message shall be kept, for one of this mark came before.

        Args:
            mark: A hash of what tells messages apart, but for their holes. Where two are of one
                mark, the second is kept one time too soon.
        """
        if mark in self._once:
            return True
        if len(self._once) >= self._entries:
            self._once.clear()
        self._once.add(mark)
        return False

    def put(self, view: memoryview, holes: Sequence[slice], said: T) -> None:
        """Remember what a message says; *holes* in their order, none within another."""
        texts = _around(holes, len(view))
        key = b"".join(texts(view))
        if len(key) > self._text_bytes:
            return
        if self._count >= self._entries:
            self._outlines.clear()
            self._count = 0
        known = self._outlines.setdefault(len(view), [])
        outline = next((each for each in known if each.holes == holes), None)
        if outline is None:
            if len(known) == _OUTLINES:
                self._count -= len(known.pop(0).said)
            outline = _Layout(holes, texts, _taking(holes), {})
            known.append(outline)
        self._count += key not in outline.said
        outline.said[key] = said


def _around(holes: Sequence[slice], size: int) -> _Texts:
    """Return what copies the text around *holes*: one call, where slices are an object each."""
    at = 0
    layout = []
    for hole in holes:
        layout.append(f"{hole.start - at}s{hole.stop - hole.start}x")
        at = hole.stop
    return Layout("".join([*layout, f"{size - at}s"])).unpack


def _taking(parts: Sequence[slice]) -> _Take:
    """Return what takes *parts* out of a view: `itemgetter` does so at half the cost of a loop."""
    if len(parts) == 1:
        only = parts[0]
        return lambda view: (view[only],)  # for one part alone `itemgetter` makes no tuple
    return itemgetter(*parts)
