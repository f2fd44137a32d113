from __future__ import annotations

import numpy as np
import pytest

from gateway.ir.bodies.stream_text import StreamText
from gateway.ir.calls import InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.errors import Unsupported
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, items_tensor, raw_tensor

TEXT = "naïve 日本 🎉 end"


def reply(*outputs: Tensor) -> InferResponse:
    return InferResponse(model=ModelRef("m"), outputs=outputs, is_final=False)


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_each_piece_ends_with_a_whole_character(size: int) -> None:
    """Whatever the cuts, every piece is text, and all together are the text."""
    stream = StreamText()
    found = []
    for piece in pieces(TEXT.encode(), size):
        shown = stream.complete(reply(items_tensor("t", (1,), [piece])))
        found.append(bytes(as_items(shown.outputs[0])[0]).decode())
    stream.finish()
    assert TEXT == "".join(found)


def test_elements_and_outputs_are_separate() -> None:
    """What is held back comes before the same element of the same output."""
    stream = StreamText()
    first = stream.complete(
        reply(items_tensor("a", (2,), [b"x\xc3", b"y"]), items_tensor("b", (1,), [b"\xe2\x82"]))
    )
    second = stream.complete(
        reply(items_tensor("a", (2,), [b"\xa9", b"z"]), items_tensor("b", (1,), [b"\xac"]))
    )
    texts = [
        [bytes(item).decode() for one in item_reply.outputs for item in as_items(one)]
        for item_reply in (first, second)
    ]
    assert [["x", "y", ""], ["é", "z", "€"]] == texts
    stream.finish()


def test_replies_without_a_cut_are_unchanged() -> None:
    """Numbers, text and raw elements are the same objects."""
    stream = StreamText()
    whole = reply(
        array_tensor("n", np.zeros(2, "<f4")),
        items_tensor("t", (2,), [b"a", "é".encode()]),
        raw_tensor("r", Datatype.BYTES, (1,), memoryview(b"\1\0\0\0a")),
    )
    assert stream.complete(whole).outputs[0] is whole.outputs[0]
    assert stream.complete(whole).outputs[2] is whole.outputs[2]
    assert stream.complete(whole) == whole


@pytest.mark.parametrize("data", [b"\xff", b"a\xc3b", b"\xe2\x28"])
def test_bytes_that_are_no_text_stay(data: bytes) -> None:
    """They are refused with their own reply, and nothing is held back."""
    stream = StreamText()
    shown = stream.complete(reply(items_tensor("t", (1,), [data])))
    assert [data] == [bytes(each) for each in as_items(shown.outputs[0])]
    stream.finish()


def test_the_end_within_a_character_is_an_error() -> None:
    """All text was sent before; the error has the bytes that are left."""
    stream = StreamText()
    shown = stream.complete(reply(items_tensor("t", (1,), [b"caf\xe2\x82"])))
    assert [b"caf"] == list(as_items(shown.outputs[0]))
    with pytest.raises(Unsupported, match=r"'t' ends within a character at index 0.* e2 82"):
        stream.finish()
