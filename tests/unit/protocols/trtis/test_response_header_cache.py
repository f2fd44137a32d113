"""Tests of the response header cache: each response has its own header."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.errors import Unsupported, UpstreamProtocolError
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, array_tensor, items_tensor
from gateway.protocols.trtis.infer_response import write_reply
from gateway.protocols.trtis.response_header_cache import ResponseHeaderCache
from gateway.schema import tensorrt_v1_pb2 as pb

M, TWO = ModelRef("m"), ModelRef("m", "2")
Y = array_tensor("y", np.arange(4, dtype="<i4").reshape(2, 2))
WIDE = array_tensor("y", np.arange(6, dtype="<i4"))
FLOATS = array_tensor("y", np.zeros((2, 2), "<f4"))
TEXT = items_tensor("y", (2,), [b"a", b"bc"])
BYTES = items_tensor("y", (1,), [b"1:0"])
SHARED = Tensor("y", Datatype.INT32, (4,), SharedMemoryData("r", 0, 16))
CALL = InferRequest(model=M, outputs=(RequestedOutput("y"),), batch_size=1)


def reply(*outputs: Tensor, **fields: Any) -> InferResponse:
    return InferResponse(**{"model": M, "outputs": outputs, "batch_size": 1, **fields})


REPLIES = [
    (CALL, reply(Y)),
    (CALL, reply(WIDE)),
    (CALL, reply(FLOATS)),
    (CALL, reply(Y, model=TWO)),
    (CALL.changed(model=ModelRef("n")), reply(Y)),
    (CALL.changed(batch_size=2), reply(Y, batch_size=2)),
    (CALL.changed(outputs=()), reply(Y)),
    (CALL, reply(TEXT)),
    (CALL.changed(outputs=(RequestedOutput("y", 1),)), reply(BYTES)),
    (CALL, reply(SHARED)),
]


def test_header_from_the_cache_equals_an_uncached_one() -> None:
    """Header and bytes of a reply do not depend on the replies before it."""
    for (first, before), (call, current) in product(REPLIES, repeat=2):
        writer = ResponseHeaderCache()
        writer.write(first, before)
        for _ in range(2):
            head, views = writer.write(call, current)
            header, alone = write_reply(call, current)
            assert [bytes(view) for view in alone] == [bytes(view) for view in views]
            assert header == pb.InferResponseHeader.FromString(head.message(0))


@pytest.mark.parametrize("number", [0, 1, 127, 128, 2**64 - 1])
def test_id_is_written_in_every_form(number: int) -> None:
    """Each form of a header has the id that was set; 0 is none."""
    writer = ResponseHeaderCache()
    head, _ = writer.write(CALL, reply(Y))
    expected, _ = write_reply(CALL, reply(Y))
    expected.id = number
    assert expected.SerializeToString() == head.message(number)
    assert text_format.MessageToString(expected).encode() == head.text(number)
    assert expected == text_format.Parse(head.line(number), pb.InferResponseHeader())


def test_invalid_reply_is_rejected_after_a_valid_one() -> None:
    """A cached header does not hide that the next reply is invalid."""
    writer = ResponseHeaderCache()
    writer.write(CALL, reply(Y))
    with pytest.raises(UpstreamProtocolError, match="lacks the requested output 'y'"):
        writer.write(CALL, reply())
    with pytest.raises(UpstreamProtocolError, match="batch size 2: the request has 1"):
        writer.write(CALL, reply(Y, batch_size=2))
    with pytest.raises(Unsupported, match="has no shape"):
        writer.write(CALL, reply(Tensor("y", None, None, Y.data)))


def test_cache_is_bounded() -> None:
    """Replies with ever new shapes do not fill the cache; long headers are not cached."""
    writer = ResponseHeaderCache()
    for size in range(600):
        writer.write(CALL, reply(array_tensor("y", np.zeros(size, np.uint8))))
    assert len(writer._known) == 512
    many = tuple(RequestedOutput(f"output{number}") for number in range(400))
    outputs = [Y.renamed(output.name) for output in many]
    writer.write(CALL.changed(outputs=many), reply(*outputs))
    assert max(len(head.message(0)) for head in writer._known.values()) < 100
