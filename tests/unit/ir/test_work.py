from __future__ import annotations

import pytest

from gateway.ir.errors import TooLarge
from gateway.ir.work import BOUND, LongWork, charge, inflated


class Recording:
    def __init__(self) -> None:
        self.charged: list[float] = []

    def charge(self, items: float) -> None:
        self.charged.append(items)
        raise LongWork


def test_without_a_bound_everything_may_be_done() -> None:
    """Who reads a message outside of an event loop reads all of it."""
    charge(1e12)


def test_work_is_charged_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What bounds the work decides when it is too much."""
    recording = Recording()
    monkeypatch.setattr(BOUND, "allowance", recording)
    with pytest.raises(LongWork):
        charge(7)
    assert [7] == recording.charged


def test_elements_of_a_compressed_message_are_counted() -> None:
    """As many as allowed are read, in any number of steps; one more is refused by the limit."""

    def read(*counts: int) -> str:
        for count in counts:
            charge(1000, count)
        return "read"

    assert "read" == inflated(5, read, 2, 3)
    with pytest.raises(TooLarge) as caught:
        inflated(5, read, 2, 3, 1)
    assert "decompressed_elements" == caught.value.limit
    charge(6)  # the next message is not bound by it
