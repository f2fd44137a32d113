from __future__ import annotations

import numpy as np
import pytest

from gateway.ir.datatypes import Datatype
from gateway.ir.errors import GatewayError, InvalidRequest, InvalidTensor, TooLarge
from gateway.ir.limits import (
    MessageLimits,
    check_bytes_elements,
    check_classes,
    check_count,
    check_name,
    check_shape,
)

LIMITS = MessageLimits(rank=3, dim=1000, elements=5000, bytes_elements=10, message_bytes=8000)


def test_a_name_at_the_limit_passes() -> None:
    """The limit counts bytes of UTF-8, and holds exactly."""
    check_name("name", "é" * 5, 10, "name_bytes")
    with pytest.raises(TooLarge, match="11 bytes, at most 10") as caught:
        check_name("name", "é" * 5 + "x", 10, "name_bytes")
    assert "name_bytes" == caught.value.limit


@pytest.mark.parametrize("bad", ["a\nb", "a\x00", "\x7f", "\x85", "\ud800"])
def test_control_characters_are_refused(bad: str) -> None:
    """What may break a URL, a header or a log line is refused, and named."""
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
    """A legal shape gives its number of elements."""
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
def test_a_shape_over_a_limit_is_refused(
    datatype: Datatype, shape: tuple[int, ...], error: type[GatewayError], limit: str | None
) -> None:
    """Each limit refuses one more than it allows, by its own name."""
    with pytest.raises(error, match="tensor 'x'") as caught:
        check_shape("x", datatype, shape, LIMITS)
    assert limit == caught.value.limit


def test_no_shape_passes_that_no_array_has() -> None:
    """Zero times two large dimensions is no element, and more than numpy lays out."""
    limits = MessageLimits()
    assert 0 == check_shape("x", Datatype.FP64, (0, 1 << 40, (1 << 20) - 1), limits)
    assert (0, 1 << 40, (1 << 20) - 1) == np.empty((0, 1 << 40, (1 << 20) - 1)).shape
    with pytest.raises(TooLarge, match="the product of its non-zero dimensions exceeds") as caught:
        check_shape("x", Datatype.UINT8, (0, 1 << 40, 1 << 20), limits)
    assert "dim" == caught.value.limit


def test_counts() -> None:
    """As many as allowed pass, one more does not."""
    check_count("inputs", 3, 3, "tensors")
    with pytest.raises(TooLarge, match="4 inputs, at most 3"):
        check_count("inputs", 4, 3, "tensors")


@pytest.mark.parametrize("kind", ["model name", "model version", "region name", "model"])
@pytest.mark.parametrize("name", [".", ".."])
def test_a_step_of_a_path_names_nothing_in_it(kind: str, name: str) -> None:
    """What stands in paths of URLs is not called as a step in them; a tensor may be."""
    with pytest.raises(InvalidRequest, match="is a dot segment of a path"):
        check_name(kind, name, 100, "name_bytes")
    check_name("tensor name", name, 100, "name_bytes")


def test_classes_are_limited() -> None:
    """As many classes as allowed are a request, one more is none."""
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
