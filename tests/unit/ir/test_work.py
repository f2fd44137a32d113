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


def test_work_without_a_limit_is_allowed() -> None:
    """Outside of an event loop, reading a message has no limit."""
    charge(1e12)


def test_work_is_charged_to_the_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allowance decides when the work is too long."""
    recording = Recording()
    monkeypatch.setattr(BOUND, "allowance", recording)
    with pytest.raises(LongWork):
        charge(7)
    assert [7] == recording.charged


def test_elements_of_a_compressed_message_are_counted() -> None:
    """Elements up to the limit are read in any number of steps; one more is rejected."""

    def read(*counts: int) -> str:
        for count in counts:
            charge(1000, count)
        return "read"

    assert "read" == inflated(5, read, 2, 3)
    with pytest.raises(TooLarge) as caught:
        inflated(5, read, 2, 3, 1)
    assert "decompressed_elements" == caught.value.limit
    charge(6)  # the next message is not bound by it
