"""The example models compute what they say."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from gateway.backends.base import Job
from gateway.backends.examples import SequenceSum
from gateway.backends.python import PythonBackend
from gateway.ir.calls import InferRequest, InferResponse, StreamInferRequest
from gateway.ir.context import ModelRef, Sequence
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import InvalidRequest, UpstreamError
from gateway.ir.tensor import Tensor, array_tensor, as_items, as_numpy, items_tensor
from tests.fakes import settle

ROW = np.arange(16, dtype=np.int32).reshape(1, 16)


async def ask(name: str, *inputs: Tensor, **fields: Any) -> InferResponse:
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
    assert [(ROW * 3).tolist(), (-ROW).tolist()] == values(await ask("simple", *inputs))


async def streamed(name: str, *inputs: Tensor, **fields: Any) -> list[InferResponse]:
    model = PythonBackend("m", f"gateway.backends.examples:{name}")
    await model.start()
    try:
        request = InferRequest(model=ModelRef("m"), inputs=inputs, **fields)
        return [item async for item in await model(StreamInferRequest(request=request))]
    finally:
        await model.stop()


async def test_speak_gives_a_word_at_a_time() -> None:
    """A stream has an answer for each word, and no more than were asked for."""
    text = items_tensor("text", (1,), ["zwölf Boxkämpfer  jagen".encode()])
    replies = await streamed("speak", text, parameters={"pause_ms": 0})
    assert [["zwölf"], [" Boxkämpfer"], ["  jagen"]] == [
        [bytes(token).decode() for token in as_items(reply.outputs[0])] for reply in replies
    ]
    assert 2 == len(await streamed("speak", text, parameters={"pause_ms": 0, "max_tokens": 2}))


async def test_speak_says_all_at_once_without_a_stream() -> None:
    """Who takes one answer gets the words together; what is no text is the caller's mistake."""
    reply = await ask("speak", items_tensor("text", (1,), [b"a b c"]), parameters={"max_tokens": 2})
    assert [[b"a b"]] == values(reply)
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        await ask("speak", items_tensor("text", (1,), [b"\xff"]))


async def test_simple_string_does_so_in_decimal() -> None:
    """Numbers as text may have any size; what is no number is the caller's mistake."""
    big = 1 << 70
    first = items_tensor("INPUT0", (1, 16), [str(big).encode()] * 16)
    second = items_tensor("INPUT1", (1, 16), [b"-1"] * 16)
    expected = [[[str(big - 1).encode()] * 16], [[str(big + 1).encode()] * 16]]
    assert expected == values(await ask("simple_string", first, second))
    wrong = items_tensor("INPUT1", (1, 16), [b"1"] * 15 + [b"one"])
    with pytest.raises(InvalidRequest, match=r"input 'INPUT1' has element b'one' at \[0, 15\]"):
        await ask("simple_string", first, wrong)


@pytest.mark.parametrize("datatype", Datatype, ids=lambda datatype: datatype.name)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3), (1, 2, 1, 2, 1)], ids=str)
async def test_identity_gives_back_every_datatype_and_shape(
    datatype: Datatype, shape: tuple[int, ...]
) -> None:
    """There is an identity for each datatype, and it takes any shape."""
    count = int(np.prod(shape))
    if datatype is Datatype.BYTES:
        tensor = items_tensor("INPUT0", shape, [b"\xff\x00" * n for n in range(count)])
    else:
        array = np.arange(count).astype(datatype.numpy_dtype).reshape(shape)
        tensor = array_tensor("INPUT0", array, datatype)
    reply = await ask(f"identity_{datatype.name.lower()}", tensor)
    assert (tensor.renamed("OUTPUT0"),) == reply.outputs


async def test_slow_gives_the_number_back() -> None:
    """It waits so many milliseconds; a negative number is none."""
    for number in (1, -5):
        tensor = array_tensor("INPUT0", np.array([number], np.int32))
        assert [[number]] == values(await ask("slow", tensor))


async def test_slow_ends_when_its_caller_leaves() -> None:
    """A caller that leaves frees the model long before its time."""
    model = PythonBackend("m", "gateway.backends.examples:slow")
    await model.start()
    tensor = array_tensor("INPUT0", np.array([60_000], np.int32))
    task = asyncio.ensure_future(model(InferRequest(model=ModelRef("m"), inputs=(tensor,))))
    await settle()
    task.cancel()
    await model.stop(timeout_s=5)
    assert (True, False) == (task.cancelled(), model.is_loaded)
    assert model._pool.is_idle, "it did not run for a minute"


async def test_fail_fails() -> None:
    """It fails in its own words."""
    with pytest.raises(UpstreamError, match="failed: ValueError: this model fails on purpose"):
        await ask("fail", array_tensor("INPUT0", np.array([0], np.int32)))


async def test_repeat_stream_answers_once_for_each_element() -> None:
    """Each answer has the element and its index."""
    model = PythonBackend("m", "gateway.backends.examples:repeat_stream")
    await model.start()
    tensor = array_tensor("IN", np.array([7, 9], np.int32))
    request = InferRequest(model=ModelRef("m"), inputs=(tensor,))
    items = await model(StreamInferRequest(model=ModelRef("m"), request=request))
    assert [[[7], [0]], [[9], [1]]] == [values(item) async for item in items]
    await model.stop()


async def test_params_echo_gives_the_parameters_back() -> None:
    """As JSON in an output, and as parameters of the answer."""
    tensor = array_tensor("INPUT0", np.zeros(0, np.int32))
    reply = await ask("params_echo", tensor, parameters={"b": True, "a": 1.5, "c": "x", "d": 3})
    assert [[b'{"a": 1.5, "b": true, "c": "x", "d": 3}']] == values(reply)
    assert {"echo_a": 1.5, "echo_b": True, "echo_c": "x", "echo_d": 3} == reply.parameters


async def test_sequence_sum_remembers_each_sequence_until_its_end() -> None:
    """Numbers and texts are ids; what was not begun, or has ended, is refused."""
    model = PythonBackend("m", "gateway.backends.examples:SequenceSum")
    await model.start()

    async def add(value: int, sequence: Sequence | None) -> Any:
        tensor = array_tensor("INPUT", np.array([[value]], np.int32))
        call = InferRequest(model=ModelRef("m"), inputs=(tensor,), sequence=sequence)
        return values(await model(call))[0][0][0]

    assert 5 == await add(5, Sequence(1, start=True))
    assert 2 == await add(2, Sequence("1", start=True))
    assert 8 == await add(3, Sequence(1))
    assert 1 == await add(1, Sequence(1, start=True, end=True))
    with pytest.raises(
        InvalidRequest, match="sequence 1 does not exist; its first request needs sequence_start"
    ):
        await add(1, Sequence(1))
    assert 6 == await add(4, Sequence("1", end=True))
    with pytest.raises(InvalidRequest, match="has no sequence_id"):
        await add(1, None)
    await model.stop()


async def test_sequence_sum_forgets_the_sequence_begun_first() -> None:
    """What is remembered is bounded, for clients that never end theirs."""
    total = SequenceSum()
    one = {"INPUT": np.array([[1]], np.int32)}
    for number in range(1, 1002):
        total(one, Job(ModelRef("m"), sequence=Sequence(number, start=True)))
    with pytest.raises(InvalidRequest):
        total(one, Job(ModelRef("m"), sequence=Sequence(1)))
    assert [[2]] == total(one, Job(ModelRef("m"), sequence=Sequence(2)))["OUTPUT"].tolist()
