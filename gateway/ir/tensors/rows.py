"""Rows of a request that do not depend on one another: caches and batches treat each alone."""

from typing import Final

from msgspec import Struct

_FEW_ELEMENTS: Final = 128
"""Elements whose padding costs less than another call."""


def most_padded(elements: int) -> int:
    """Return how many elements with padding are worth one call for so many without it."""
    return max(elements + elements // 4, _FEW_ELEMENTS)


class IndependentRows(Struct, frozen=True, kw_only=True):
    """What is known of the rows on the first axis of all inputs.

    Attributes:
        lengths: Elements of each row without its padding; empty where no row has any.
        fills: What the padding of an input is, by name; the padding is on the second axis.
        pads_left: The padding stands before the elements.
        most_elements: Most elements of an input with its padding; 0 for no limit.
    """

    lengths: tuple[int, ...] = ()
    fills: tuple[tuple[str, int], ...] = ()
    pads_left: bool = False
    most_elements: int = 0

    def of(self, lengths: tuple[int, ...]) -> "IndependentRows":
        """Return the same for other rows."""
        return IndependentRows(
            lengths=lengths,
            fills=self.fills,
            pads_left=self.pads_left,
            most_elements=self.most_elements,
        )
