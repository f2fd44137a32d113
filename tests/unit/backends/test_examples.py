"""The example models compute their documented results."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from gateway.backends.base import Job
from gateway.backends.examples import SequenceSum
from gateway.backends.python import PythonBackend
from gateway.ir.calls import InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.errors import InvalidRequest, UpstreamError
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, as_numpy, items_tensor
from tests.fakes import settle

ROW = np.arange(16, dtype=np.int32).reshape(1, 16)


async def infer(name: str, *inputs: Tensor, **fields: Any) -> InferResponse:
    model = PythonBackend("m", f"gateway.backends.examples:{name}")
    await model.start()
    try:
        return await model(InferRequest(model=ModelRef("m"), inputs=inputs, **fields))
    finally:
        await model.stop()


def values(reply: InferResponse) -> list[Any]:
    return [as_numpy(output).tolist() for output in reply.outputs]


async def test_simple_adds_and_subtracts() -> None:
    """OUTPUT0 is the sum, OUTPUT1 the difference."""
    inputs = array_tensor("INPUT0", ROW), array_tensor("INPUT1", ROW * 2)
    assert [(ROW * 3).tolist(), (-ROW).tolist()] == values(await infer("simple", *inputs))


async def infer_stream(name: str, *inputs: Tensor, **fields: Any) -> list[InferResponse]:
    model = PythonBackend("m", f"gateway.backends.examples:{name}")
    await model.start()
    try:
        request = InferRequest(model=ModelRef("m"), inputs=inputs, **fields)
        return [item async for item in await model(StreamInferRequest(request=request))]
    finally:
        await model.stop()


async def test_speak_streams_a_reply_per_word() -> None:
    """The parameter max_tokens limits the number of replies."""
    text = items_tensor("text", (1,), ["zwölf Boxkämpfer  jagen".encode()])
    replies = await infer_stream("speak", text, parameters={"pause_ms": 0})
    assert [["zwölf"], [" Boxkämpfer"], ["  jagen"]] == [
        [bytes(token).decode() for token in as_items(reply.outputs[0])] for reply in replies
    ]
    assert 2 == len(await infer_stream("speak", text, parameters={"pause_ms": 0, "max_tokens": 2}))


async def test_speak_joins_the_words_without_a_stream() -> None:
    """Text that is not UTF-8 is an invalid request."""
    reply = await infer(
        "speak", items_tensor("text", (1,), [b"a b c"]), parameters={"max_tokens": 2}
    )
    assert [[b"a b"]] == values(reply)
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        await infer("speak", items_tensor("text", (1,), [b"\xff"]))


async def test_simple_string_adds_decimal_text() -> None:
    """Numbers may have any size; an element that is not a number is an invalid request."""
    big = 1 << 70
    first = items_tensor("INPUT0", (1, 16), [str(big).encode()] * 16)
    second = items_tensor("INPUT1", (1, 16), [b"-1"] * 16)
    expected = [[[str(big - 1).encode()] * 16], [[str(big + 1).encode()] * 16]]
    assert expected == values(await infer("simple_string", first, second))
    wrong = items_tensor("INPUT1", (1, 16), [b"1"] * 15 + [b"one"])
    with pytest.raises(InvalidRequest, match=r"input 'INPUT1' has element b'one' at \[0, 15\]"):
        await infer("simple_string", first, wrong)


@pytest.mark.parametrize("datatype", Datatype, ids=lambda datatype: datatype.name)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3), (1, 2, 1, 2, 1)], ids=str)
async def test_identity_returns_every_datatype_and_shape(
    datatype: Datatype, shape: tuple[int, ...]
) -> None:
    """Each datatype has an identity model, which accepts any shape."""
    count = int(np.prod(shape))
    if datatype is Datatype.BYTES:
        tensor = items_tensor("INPUT0", shape, [b"\xff\x00" * n for n in range(count)])
    else:
        array = np.arange(count).astype(datatype.numpy_dtype).reshape(shape)
        tensor = array_tensor("INPUT0", array, datatype)
    reply = await infer(f"identity_{datatype.name.lower()}", tensor)
    assert (tensor.renamed("OUTPUT0"),) == reply.outputs


async def test_slow_returns_its_input() -> None:
    """It waits as many milliseconds; a negative number is no wait."""
    for number in (1, -5):
        tensor = array_tensor("INPUT0", np.array([number], np.int32))
        assert [[number]] == values(await infer("slow", tensor))


async def test_slow_ends_when_its_call_is_cancelled() -> None:
    """The instance is free long before the time has passed."""
    model = PythonBackend("m", "gateway.backends.examples:slow")
    await model.start()
    tensor = array_tensor("INPUT0", np.array([60_000], np.int32))
    task = asyncio.ensure_future(model(InferRequest(model=ModelRef("m"), inputs=(tensor,))))
    await settle()
    task.cancel()
    await model.stop(timeout_s=5)
    assert (True, False) == (task.cancelled(), model.is_loaded)
    assert model._pool.is_idle, "it did not run for a minute"


async def test_fail_raises_its_error() -> None:
    """The call fails with the text of the model."""
    with pytest.raises(UpstreamError, match="failed: ValueError: this model fails on purpose"):
        await infer("fail", array_tensor("INPUT0", np.array([0], np.int32)))


async def test_repeat_stream_replies_once_per_element() -> None:
    """Each reply has the element and its index."""
    model = PythonBackend("m", "gateway.backends.examples:repeat_stream")
    await model.start()
    tensor = array_tensor("IN", np.array([7, 9], np.int32))
    request = InferRequest(model=ModelRef("m"), inputs=(tensor,))
    items = await model(StreamInferRequest(model=ModelRef("m"), request=request))
    assert [[[7], [0]], [[9], [1]]] == [values(item) async for item in items]
    await model.stop()


async def test_params_echo_returns_the_parameters() -> None:
    """They are JSON in an output, and parameters of the reply."""
    tensor = array_tensor("INPUT0", np.zeros(0, np.int32))
    reply = await infer("params_echo", tensor, parameters={"b": True, "a": 1.5, "c": "x", "d": 3})
    assert [[b'{"a": 1.5, "b": true, "c": "x", "d": 3}']] == values(reply)
    assert {"echo_a": 1.5, "echo_b": True, "echo_c": "x", "echo_d": 3} == reply.parameters


async def test_sequence_sum_keeps_each_sequence_until_its_end() -> None:
    """Ids are numbers or text; a sequence that was not started, or has ended, is rejected."""
    model = PythonBackend("m", "gateway.backends.examples:SequenceSum")
    await model.start()

    async def add(value: int, sequence: CallSequence | None) -> Any:
        tensor = array_tensor("INPUT", np.array([[value]], np.int32))
        call = InferRequest(model=ModelRef("m"), inputs=(tensor,), sequence=sequence)
        return values(await model(call))[0][0][0]

    assert 5 == await add(5, CallSequence(1, start=True))
    assert 2 == await add(2, CallSequence("1", start=True))
    assert 8 == await add(3, CallSequence(1))
    assert 1 == await add(1, CallSequence(1, start=True, end=True))
    with pytest.raises(
        InvalidRequest, match="sequence 1 does not exist; its first request needs sequence_start"
    ):
        await add(1, CallSequence(1))
    assert 6 == await add(4, CallSequence("1", end=True))
    with pytest.raises(InvalidRequest, match="has no sequence_id"):
        await add(1, None)
    await model.stop()


async def test_sequence_sum_drops_the_oldest_sequence() -> None:
    """The number of sequences is limited, for clients that never end theirs."""
    total = SequenceSum()
    one = {"INPUT": np.array([[1]], np.int32)}
    for number in range(1, 1002):
        total(one, Job(ModelRef("m"), sequence=CallSequence(number, start=True)))
    with pytest.raises(InvalidRequest):
        total(one, Job(ModelRef("m"), sequence=CallSequence(1)))
    assert [[2]] == total(one, Job(ModelRef("m"), sequence=CallSequence(2)))["OUTPUT"].tolist()
