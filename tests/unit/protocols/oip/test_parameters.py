"""Reserved request parameters, taken apart."""

from __future__ import annotations

import pytest

from gateway.ir.context import Sequence
from gateway.ir.errors import InvalidRequest, TooLarge
from gateway.ir.limits import MessageLimits
from gateway.protocols.oip.parameters import split_parameters

LIMITS = MessageLimits(name_bytes=8)


def test_id_of_a_sequence_fills_the_memory_of_sequences() -> None:
    """Ids of sequences are remembered by the thousand: they are as long as names may be."""
    assert Sequence("x" * 8) == split_parameters({"sequence_id": "x" * 8}, LIMITS).sequence
    with pytest.raises(TooLarge, match="'sequence_id' has 9 bytes, at most 8 are allowed"):
        split_parameters({"sequence_id": "x" * 9}, LIMITS)


def test_id_of_a_sequence_has_control_characters() -> None:
    """It stands in errors and goes on to servers, so it is plain text."""
    with pytest.raises(InvalidRequest, match=r"U\+000A"):
        split_parameters({"sequence_id": "a\nb"}, LIMITS)
