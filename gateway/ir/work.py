"""How much work a message is, counted while it is read or written, and how much is allowed.

The unit is one *item*: a BYTES element or a text that is handled by itself, about 0.5 us. Codecs
and conversions `charge` what they are about to do, before they do it. Where nothing is set, all of
it is done; the event loop sets what it may be held for (gateway/concurrency/offload.py), and a
message that was compressed has only so many elements (`inflated`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar

from gateway.ir.errors import TooLarge

T = TypeVar("T")

ITEM_S: Final = 0.5e-6
"""Seconds that one item is expected to take."""
LIST: Final = 0.6
"""Items that one nested list of JSON is."""
FIELD: Final = 1
"""Items that one field of a protobuf message is."""
JSON_BYTE: Final = 1 / 64
"""Items that one byte of JSON is, where its numbers become an array."""
JSON_ELEMENT: Final = 1 / 128
"""Elements that one byte of JSON is, for the limit of compressed messages."""
OBJECT_BYTE: Final = 1 / 16
"""Items that one byte of JSON is, where all of it becomes Python objects."""
JSON_NUMBER: Final = 1 / 8
"""Items that one number is, where it is written as JSON."""
BYTE: Final = 1 / 500
"""Items that one byte is, where it is looked at and no more."""


class LongWork(Exception):
    """The work is too long for the event loop; nothing is wrong with it, and it may begin anew."""


class Allowance(Protocol):
    """What may be done here and now."""

    def charge(self, items: float) -> None:
        """Take *items* of what is left; raises LongWork where that is too little."""
        ...


class Bound:
    """What bounds the work that is being done.

    A variable of the context would do the same and cost 0.45 us for each step of a request.

    Attributes:
        allowance: None for no bound.
    """

    __slots__ = ("allowance",)

    def __init__(self) -> None:
        self.allowance: Allowance | None = None


BOUND: Final = Bound()

_INFLATED: Final[ContextVar[_Elements | None]] = ContextVar("inflated", default=None)


def charge(items: float, elements: float | None = None) -> None:
    """Count *items* that are about to be handled.

    Args:
        items: Of work.
        elements: How many elements of the message they are; as many, if not given.

    Raises:
        LongWork: They are too many for the event loop.
        TooLarge: They are too many for a compressed message of this size.
    """
    left = _INFLATED.get()
    if left is not None:
        left.take(items if elements is None else elements)
    allowance = BOUND.allowance
    if allowance is not None:
        allowance.charge(items)


class _Elements:
    """How many elements a message may still have."""

    __slots__ = ("_left",)

    def __init__(self, most: float) -> None:
        self._left = most

    def take(self, count: float) -> None:
        self._left -= count
        if self._left < 0:
            raise TooLarge(
                "the compressed message has too many elements: more than its compressed size "
                "allows (decompressed_elements)",
                limit="decompressed_elements",
            )


def inflated(elements: float, function: Callable[..., T], /, *args: Any) -> T:
    """Return what *function* returns for a message that was compressed.

    Args:
        elements: The most that it may have.
        function: Reads it.
        args: Of the function.

    Raises:
        TooLarge: It has more.
    """
    token = _INFLATED.set(_Elements(elements))
    try:
        return function(*args)
    finally:
        _INFLATED.reset(token)
