from __future__ import annotations

import numpy as np
import pytest

from gateway.ir.errors import GatewayError, InvalidRequest, InvalidTensor, TooLarge
from gateway.ir.limits import (
    MessageLimits,
    check_bytes_elements,
    check_classes,
    check_count,
    check_name,
    check_shape,
)
from gateway.ir.tensors.datatypes import Datatype

LIMITS = MessageLimits(rank=3, dim=1000, elements=5000, bytes_elements=10, message_bytes=8000)


def test_a_name_at_the_limit_passes() -> None:
    """The limit counts bytes of UTF-8, and holds exactly."""
    check_name("name", "é" * 5, 10, "name_bytes")
    with pytest.raises(TooLarge, match="11 bytes, at most 10") as caught:
        check_name("name", "é" * 5 + "x", 10, "name_bytes")
    assert "name_bytes" == caught.value.limit


@pytest.mark.parametrize("bad", ["a\nb", "a\x00", "\x7f", "\x85", "\ud800"])
def test_control_characters_are_rejected(bad: str) -> None:
    """The error names the character, which may break a URL, a header or a log line."""
    with pytest.raises(InvalidRequest, match=r"U\+[0-9A-F]{4} at position"):
        check_name("name", bad, 100, "name_bytes")


def test_odd_but_harmless_names_pass() -> None:
    """Spaces, slashes and any printable script are fine."""
    check_name("name", "модель 1/ü", 100, "name_bytes")


@pytest.mark.parametrize(
    ("datatype", "shape", "count"),
    [
        (Datatype.UINT8, (), 1),
        (Datatype.UINT8, (0, 1000), 0),
        (Datatype.UINT8, (5, 1000), 5000),
        (Datatype.FP32, (2, 1000), 2000),
        (Datatype.BYTES, (10,), 10),
        (None, (5, 1000), 5000),
    ],
)
def test_a_shape_at_the_limit_passes(
    datatype: Datatype | None, shape: tuple[int, ...], count: int
) -> None:
    """A valid shape returns its number of elements."""
    assert count == check_shape("x", datatype, shape, LIMITS)


@pytest.mark.parametrize(
    ("datatype", "shape", "error", "limit"),
    [
        (Datatype.UINT8, (1, 1, 1, 1), TooLarge, "rank"),
        (Datatype.UINT8, (1001,), TooLarge, "dim"),
        (Datatype.UINT8, (0, 1 << 41), TooLarge, "dim"),
        (Datatype.UINT8, (501, 10), TooLarge, "elements"),
        (Datatype.BYTES, (11,), TooLarge, "bytes_elements"),
        (Datatype.FP64, (2, 501), TooLarge, "message_bytes"),
        (Datatype.UINT8, (-1,), InvalidTensor, None),
    ],
)
def test_a_shape_over_a_limit_is_rejected(
    datatype: Datatype, shape: tuple[int, ...], error: type[GatewayError], limit: str | None
) -> None:
    """A shape one over a limit is rejected, and the error names the limit."""
    with pytest.raises(error, match="tensor 'x'") as caught:
        check_shape("x", datatype, shape, LIMITS)
    assert limit == caught.value.limit


def test_shape_that_numpy_cannot_represent_is_rejected() -> None:
    """A shape without elements may have dimensions that are too large for numpy."""
    limits = MessageLimits()
    assert 0 == check_shape("x", Datatype.FP64, (0, 1 << 40, (1 << 20) - 1), limits)
    assert (0, 1 << 40, (1 << 20) - 1) == np.empty((0, 1 << 40, (1 << 20) - 1)).shape
    with pytest.raises(TooLarge, match="the product of its non-zero dimensions exceeds") as caught:
        check_shape("x", Datatype.UINT8, (0, 1 << 40, 1 << 20), limits)
    assert "dim" == caught.value.limit


def test_count_over_the_limit_is_rejected() -> None:
    """A count at the limit passes, one more does not."""
    check_count("inputs", 3, 3, "tensors")
    with pytest.raises(TooLarge, match="4 inputs, at most 3"):
        check_count("inputs", 4, 3, "tensors")


@pytest.mark.parametrize("kind", ["model name", "model version", "region name", "model"])
@pytest.mark.parametrize("name", [".", ".."])
def test_dot_segment_is_rejected_in_names_used_in_paths(kind: str, name: str) -> None:
    """Names in URL paths must not be dot segments; a tensor name may be."""
    with pytest.raises(InvalidRequest, match="is a dot segment of a path"):
        check_name(kind, name, 100, "name_bytes")
    check_name("tensor name", name, 100, "name_bytes")


def test_classes_are_limited() -> None:
    """A number of classes at the limit passes, one more does not."""
    check_classes("o", 3, MessageLimits(classes=3))
    with pytest.raises(TooLarge, match="requested with 4 classes; at most 3") as caught:
        check_classes("o", 4, MessageLimits(classes=3))
    assert "classes" == caught.value.limit


def test_bytes_elements_are_limited() -> None:
    """The limit holds for all tensors of a message together."""
    check_bytes_elements(3, MessageLimits(bytes_elements=3))
    with pytest.raises(TooLarge, match="4 in all tensors together; at most 3") as caught:
        check_bytes_elements(4, MessageLimits(bytes_elements=3))
    assert "bytes_elements" == caught.value.limit
