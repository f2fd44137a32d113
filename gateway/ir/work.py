"""Accounting of the work to decode and encode a message, and its limits.

The unit is one *item*: a BYTES element or a text that is handled individually, about 0.5 us. Codecs
and conversions `charge` their work before they do it. The event loop limits it
(gateway/concurrency/offload.py), and `inflated` limits the elements of a compressed message. By
default there is no limit.

Memory is counted likewise: what builds many times the bytes of a message calls `reserve` before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar

from gateway.ir.errors import TooLarge

T = TypeVar("T")

ITEM_S: Final = 0.5e-6
"""Expected seconds for one item."""
LIST: Final = 0.6
"""Items for one nested list of JSON."""
FIELD: Final = 1
"""Items for one field of a protobuf message."""
JSON_BYTE: Final = 1 / 64
"""Items for one byte of JSON whose numbers become an array."""
PARSED_BYTE: Final = 1 / 400
"""Items that one byte of JSON is to a parser, without its numbers."""
PARSED_NUMBER: Final = 1 / 40
"""Items that one number of JSON is, where it becomes an element of an array."""
JSON_ELEMENT: Final = 1 / 128
"""Elements for one byte of JSON, for the limit of compressed messages."""
OBJECT_BYTE: Final = 1 / 16
"""Items for one byte of JSON that becomes Python objects."""
JSON_NUMBER: Final = 1 / 8
"""Items for one number that is written as JSON."""
BYTE: Final = 1 / 500
"""Items for one byte that is only inspected."""
BUILT_TIMES: Final = 8
"""What is read of a message may take so many times its size without a limit or a reservation."""
POSITIONS: Final = 40
"""Bytes for the positions of one element in a buffer of many, and for those of its parts."""
# It may take so many bytes more without a reservation.
_UNRESERVED: Final = 4 << 20


class LongWork(Exception):
    """The work is too long for the event loop; it may restart on a thread."""


class MemoryNeeded(LongWork):
    """Memory must be reserved before the work goes on; it may restart then.

    Attributes:
        size_bytes: All that it is known to need so far.
    """

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes


class Allowance(Protocol):
    """The remaining work that the event loop allows."""

    def charge(self, items: float) -> None:
        """Subtract *items* from the allowance; raise LongWork if it is exhausted."""
        ...


class Bound:
    """The limit of the current work.

    A context variable would do the same, but costs 0.45 us for each step of a request.

    Attributes:
        allowance: None for no bound.
    """

    __slots__ = ("allowance",)

    def __init__(self) -> None:
        self.allowance: Allowance | None = None


BOUND: Final = Bound()

_INFLATED: Final[ContextVar[_Elements | None]] = ContextVar("inflated", default=None)


def charge(items: float, elements: float | None = None) -> None:
    """Charge work before it is done.

    Args:
        items: Amount of work.
        elements: Number of elements of the message; *items* by default.

    Raises:
        LongWork: The work is too long for the event loop.
        TooLarge: A compressed message of this size has too many elements.
    """
    remaining = _INFLATED.get()
    if remaining is not None:
        remaining.charge(items if elements is None else elements)
    allowance = BOUND.allowance
    if allowance is not None:
        allowance.charge(items)


def is_unreserved(size: int, built: int) -> bool:
    """Return whether so much memory may be built from a message of so many bytes at any time."""
    return built <= BUILT_TIMES * size + _UNRESERVED


def reserve(size: int, built: int) -> None:
    """Count memory that is built from a message, before it is.

    Args:
        size: Bytes of the message.
        built: Bytes of memory.

    Raises:
        LongWork: It is too much for the event loop.
        MemoryNeeded: It is more than is reserved.
    """
    reserved = _RESERVED.get()
    if reserved is not None:
        reserved.count(size, built)
    elif BOUND.allowance is not None and not is_unreserved(size, built):
        BOUND.allowance.charge(math.inf)


class _Reserved:
    """The memory that one piece of work may build."""

    __slots__ = ("_built", "_reserved", "_size")

    def __init__(self, reserved: int) -> None:
        self._reserved = reserved
        self._size = self._built = 0

    def count(self, size: int, built: int) -> None:
        self._size = max(self._size, size)
        self._built += built
        needed = self._built - BUILT_TIMES * self._size - _UNRESERVED
        if needed > self._reserved:
            raise MemoryNeeded(needed)


_RESERVED: Final[ContextVar[_Reserved | None]] = ContextVar("reserved", default=None)


def with_memory(reserved: int, function: Callable[..., T], /, *args: Any) -> T:
    """Call *function*, which may build so many bytes beyond what each message may.

    Raises:
        MemoryNeeded: It needs more.
    """
    token = _RESERVED.set(_Reserved(reserved))
    try:
        return function(*args)
    finally:
        _RESERVED.reset(token)


class _Elements:
    """The number of elements that a message may still have."""

    __slots__ = ("_remaining",)

    def __init__(self, limit: float) -> None:
        self._remaining = limit

    def charge(self, count: float) -> None:
        self._remaining -= count
        if self._remaining < 0:
            raise TooLarge(
                "the compressed message has too many elements: more than its compressed size "
                "allows (decompressed_elements)",
                limit="decompressed_elements",
            )


def inflated(elements: float, function: Callable[..., T], /, *args: Any) -> T:
    """Call *function* for a compressed message, with a limit on its elements.

    Args:
        elements: Maximum number of elements.
        function: Decodes the message.
        args: Arguments of the function.

    Raises:
        TooLarge: The message has more elements.
    """
    token = _INFLATED.set(_Elements(elements))
    try:
        return function(*args)
    finally:
        _INFLATED.reset(token)
