"""Reserved request parameters, split from the custom ones."""

from __future__ import annotations

import pytest

from gateway.ir.context import CallSequence
from gateway.ir.errors import InvalidRequest, TooLarge
from gateway.ir.limits import MessageLimits
from gateway.protocols.oip.parameters import split_parameters

LIMITS = MessageLimits(name_bytes=8)


def test_long_sequence_id_is_rejected() -> None:
    """Thousands of sequence ids are held in memory, so they have the length limit of names."""
    assert CallSequence("x" * 8) == split_parameters({"sequence_id": "x" * 8}, LIMITS).sequence
    with pytest.raises(TooLarge, match="'sequence_id' has 9 bytes, at most 8 are allowed"):
        split_parameters({"sequence_id": "x" * 9}, LIMITS)


def test_sequence_id_with_control_characters_is_rejected() -> None:
    """A sequence id is part of errors and requests, so it must be plain text."""
    with pytest.raises(InvalidRequest, match=r"U\+000A"):
        split_parameters({"sequence_id": "a\nb"}, LIMITS)
