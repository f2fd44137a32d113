"""The elements of a String tensor, read where they lie."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from gateway.ir.errors import MalformedMessage, TooLarge
from gateway.ir.items import ItemViews, Positions
from gateway.ir.work import charge
from gateway.protocols.graphpipe.flatbuffer_reader import FlatbufferMessage

# Fewer are faster one by one.
_FEW_STRINGS: Final = 32
# Items that one string is, where numpy finds it.
_EACH: Final = 1 / 8


def read_strings(
    message: FlatbufferMessage, start: int, count: int, what: str
) -> Sequence[memoryview]:
    """Return the strings of a vector whose *count* elements begin at *start*.

    Raises:
        MalformedMessage: One exceeds the end of the message.
        TooLarge: They overlap, and exceed the size of the message by far.
    """
    if count <= _FEW_STRINGS:
        most = message.limits.bytes_element_size
        found = [message.data(place, what) for place in range(start, start + 4 * count, 4)]
        for item in found:
            if len(item) > most:
                raise _too_long(what, len(item), most)
        return found
    charge(count * _EACH, count)
    view, size = message.view, message.size
    places = np.arange(start, start + 4 * count, 4, dtype=np.int64)
    distances = np.frombuffer(view, "<u4", count, start).astype(np.int64)
    counts = places + distances
    _check(what, (distances == 0) | (counts > size - 4), counts, size)
    octets = np.frombuffer(view, np.uint8)
    lengths = np.zeros(count, np.int64)
    for byte in range(4):
        lengths |= octets[counts + byte].astype(np.int64) << (8 * byte)
    starts = counts + 4
    ends = starts + lengths
    _check(what, ends > size, ends, size)
    longest = int(lengths.max())
    if longest > message.limits.bytes_element_size:
        raise _too_long(what, longest, message.limits.bytes_element_size)
    message.hand_out(int(lengths.sum()))
    return ItemViews(view, starts, ends)


def _check(what: str, wrong: npt.NDArray[np.bool_], places: Positions, size: int) -> None:
    if wrong.any():
        index = int(wrong.argmax())
        raise MalformedMessage(
            f"{what} (number {index}) would reach {int(places[index])}, the GraphPipe message "
            f"has {size} bytes"
        )


def _too_long(what: str, found: int, most: int) -> TooLarge:
    return TooLarge(
        f"{what} has {found} bytes, at most {most} are allowed",
        limit="bytes_element_size",
    )
