"""Example Python models for tests and first steps; `config/testing.yaml` serves them.

Each declares its tensors with `declares`. Use one by its dotted name, such as
"gateway.backends.examples:simple". They match models in the tests of Triton and other servers.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gateway.backends.base import Job
from gateway.backends.python import declares
from gateway.ir.errors import InvalidRequest
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.datatypes import Datatype

Arrays = dict[str, npt.NDArray[Any]]

_PAIR = (-1, 16)
_MAX_SEQUENCES = 1000


def _pair(prefix: str, datatype: Datatype) -> tuple[TensorMetadata, TensorMetadata]:
    return TensorMetadata(f"{prefix}0", datatype, _PAIR), TensorMetadata(
        f"{prefix}1", datatype, _PAIR
    )


@declares(inputs=_pair("INPUT", Datatype.INT32), outputs=_pair("OUTPUT", Datatype.INT32))
def simple(inputs: Arrays) -> Arrays:
    """Return the sum and the difference of two INT32 tensors."""
    first, second = inputs["INPUT0"], inputs["INPUT1"]
    return {"OUTPUT0": first + second, "OUTPUT1": first - second}


@declares(inputs=_pair("INPUT", Datatype.BYTES), outputs=_pair("OUTPUT", Datatype.BYTES))
def simple_string(inputs: Arrays) -> Arrays:
    """Return the sum and the difference of decimal numbers in BYTES tensors."""
    first, second = _numbers("INPUT0", inputs), _numbers("INPUT1", inputs)
    return {"OUTPUT0": _texts(first + second), "OUTPUT1": _texts(first - second)}


def _numbers(name: str, inputs: Arrays) -> npt.NDArray[Any]:
    numbers = np.empty(inputs[name].shape, dtype=object)  # Python integers do not overflow
    for index, text in np.ndenumerate(inputs[name]):
        try:
            numbers[index] = int(text)
        except ValueError as error:
            raise InvalidRequest(
                f"input {name!r} has element {text[:32]!r} at {list(index)}; "
                "expected a decimal number"
            ) from error
    return numbers


def _texts(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    texts = np.empty(numbers.shape, dtype=object)
    for index, number in np.ndenumerate(numbers):
        texts[index] = str(number).encode()
    return texts


def _identity(datatype: Datatype) -> Any:
    @declares(
        inputs=(TensorMetadata("INPUT0", datatype, None),),
        outputs=(TensorMetadata("OUTPUT0", datatype, None),),
    )
    def identity(inputs: Arrays) -> Arrays:
        return {"OUTPUT0": inputs["INPUT0"]}

    return identity


# They accept every shape, including scalars, empty tensors and high ranks.
identity_bool = _identity(Datatype.BOOL)
identity_uint8 = _identity(Datatype.UINT8)
identity_uint16 = _identity(Datatype.UINT16)
identity_uint32 = _identity(Datatype.UINT32)
identity_uint64 = _identity(Datatype.UINT64)
identity_int8 = _identity(Datatype.INT8)
identity_int16 = _identity(Datatype.INT16)
identity_int32 = _identity(Datatype.INT32)
identity_int64 = _identity(Datatype.INT64)
identity_fp16 = _identity(Datatype.FP16)
identity_fp32 = _identity(Datatype.FP32)
identity_fp64 = _identity(Datatype.FP64)
identity_bf16 = _identity(Datatype.BF16)
identity_bytes = _identity(Datatype.BYTES)


@declares(
    inputs=(TensorMetadata("INPUT0", Datatype.INT32, (1,)),),
    outputs=(TensorMetadata("OUTPUT0", Datatype.INT32, (1,)),),
)
def slow(inputs: Arrays, job: Job) -> Arrays:
    """Wait for INPUT0 milliseconds, or until the caller leaves, and return the number."""
    job.cancelled.wait(max(0, int(inputs["INPUT0"][0])) / 1000)
    return {"OUTPUT0": inputs["INPUT0"]}


@declares(
    inputs=(TensorMetadata("INPUT0", Datatype.INT32, None),),
    outputs=(TensorMetadata("OUTPUT0", Datatype.INT32, None),),
)
def fail(_inputs: Arrays) -> Arrays:
    """Fail every request."""
    raise ValueError("this model fails on purpose")


@declares(
    inputs=(TensorMetadata("INPUT", Datatype.INT32, (-1, 1)),),
    outputs=(
        TensorMetadata("OUTPUT", Datatype.INT32, (-1, 1)),
        TensorMetadata("ID", Datatype.UINT64, (-1, 1)),
        TensorMetadata("END", Datatype.BOOL, (-1, 1)),
    ),
)
def simple_sequence(inputs: Arrays, job: Job) -> Arrays:
    """Return INPUT, plus 1 on the first request of a sequence, with the sequence's id and end."""
    sequence = job.sequence
    if sequence is None or isinstance(sequence.id, str):
        raise InvalidRequest("the request has no numeric sequence_id; this model needs one")
    values = inputs["INPUT"]
    return {
        "OUTPUT": values + np.int32(sequence.start),
        "ID": np.full(values.shape, sequence.id, np.uint64),
        "END": np.full(values.shape, sequence.end),
    }


@declares(
    inputs=(TensorMetadata("INPUT", Datatype.INT32, (-1, 1)),),
    outputs=(TensorMetadata("OUTPUT", Datatype.INT32, (-1, 1)),),
)
class SequenceSum:
    """Returns the sum of all inputs of a sequence so far."""

    def __init__(self) -> None:
        self._sums: dict[int | str, int] = {}

    def __call__(self, inputs: Arrays, job: Job) -> Arrays:
        """Add to the sum; like Triton, reject a sequence that did not start."""
        sequence = job.sequence
        if sequence is None:
            raise InvalidRequest("the request has no sequence_id; this model needs one")
        if sequence.start:
            if len(self._sums) >= _MAX_SEQUENCES:  # delete the oldest
                del self._sums[next(iter(self._sums))]
            self._sums[sequence.id] = 0
        elif sequence.id not in self._sums:
            raise InvalidRequest(
                f"sequence {sequence.id!r} does not exist; its first request needs sequence_start"
            )
        self._sums[sequence.id] += int(inputs["INPUT"].sum())
        total = self._sums.pop(sequence.id) if sequence.end else self._sums[sequence.id]
        return {"OUTPUT": np.array([[total]], np.int32)}


@declares(
    inputs=(TensorMetadata("IN", Datatype.INT32, (-1,)),),
    outputs=(
        TensorMetadata("OUT", Datatype.INT32, (1,)),
        TensorMetadata("IDX", Datatype.UINT32, (1,)),
    ),
)
def repeat_stream(inputs: Arrays) -> Iterator[Arrays]:
    """Reply once for each element of IN, with the element and its index."""
    for index, value in enumerate(inputs["IN"]):
        yield {"OUT": np.array([value], np.int32), "IDX": np.array([index], np.uint32)}


@declares(
    inputs=(TensorMetadata("text", Datatype.BYTES, (1,)),),
    outputs=(TensorMetadata("token", Datatype.BYTES, (1,)),),
)
async def speak(inputs: Arrays, job: Job) -> AsyncIterator[Arrays]:
    """Repeat the text like a language model: one reply per word, or one reply without a stream.

    Parameters: `max_tokens`, the maximum number of words; `pause_ms` after each, 20 by default.
    """
    try:
        text = inputs["text"][0].decode()
        max_tokens = int(job.parameters.get("max_tokens", 1 << 20))
        pause_s = max(0, int(job.parameters.get("pause_ms", 20))) / 1000
    except ValueError as error:
        raise InvalidRequest(
            f"the text is not UTF-8, or a parameter is not a number: {error}"
        ) from error
    words = re.findall(r"\s*\S+", text)[: max(0, max_tokens)]
    for word in words if job.streamed else ["".join(words)]:
        yield {"token": np.array([word.encode()], dtype=object)}
        await asyncio.sleep(pause_s if job.streamed else 0)


@declares(
    inputs=(TensorMetadata("INPUT0", Datatype.INT32, (-1,)),),
    outputs=(TensorMetadata("PARAMS", Datatype.BYTES, (1,)),),
)
def params_echo(_inputs: Arrays, job: Job) -> Arrays:
    """Return the request's parameters as sorted JSON, and as parameters of the reply."""
    text = json.dumps(dict(job.parameters), sort_keys=True)
    job.reply_parameters.update({f"echo_{key}": value for key, value in job.parameters.items()})
    return {"PARAMS": np.array([text.encode()], dtype=object)}
