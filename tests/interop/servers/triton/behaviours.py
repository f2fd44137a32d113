"""What the test models compute, run by Triton's python backend; one file for all of them.

It is copied to the `model.py` of every model and version and picks its behaviour by the model's
name.  It runs in Triton's stub, with numpy 1: it imports nothing of this project.
"""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton_python_backend_utils as pb  # type: ignore[import-not-found]  # only inside Triton

ERROR_CODES = (
    "UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED",
    "ALREADY_EXISTS", "CANCELLED",
)  # fmt: skip

MAX_DELAY_MS = 20

Array = np.ndarray[Any, np.dtype[Any]]
Answer = Any
"""A `pb.InferenceResponse`."""


class TritonPythonModel:
    """The class that Triton's python backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        """Choose the behaviour by the model's name; *args* are Triton's."""
        name = args["model_name"]
        self._version = int(args["model_version"])
        self._sums: dict[object, int] = {}
        self._one: Callable[[Any], Answer] = self._behaviours().get(name, _identity)
        self._many = _STREAMS.get(name)

    def execute(self, requests: list[Any]) -> list[Answer] | None:
        """Answer *requests*; a decoupled model sends its responses instead of returning them."""
        if self._many is None:
            return [self._one(request) for request in requests]
        for request in requests:
            sender = request.get_response_sender()
            for answer in self._many(request):
                sender.send(answer)
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None

    def _behaviours(self) -> dict[str, Callable[[Any], Answer]]:
        return {
            "add_sub": _add_sub,
            "simple": _add_sub,
            "simple_int8": _add_sub,
            "add_sub_string": _add_sub_string,
            "simple_string": _add_sub_string,
            "identity_bf16": _identity_without_numpy,
            "classify": _classify,
            "fail_always": _fail,
            "large_outputs": _large_outputs,
            "params_echo": _params_echo,
            "reciprocal": _reciprocal,
            "sequence_sum": self._sequence_sum,
            "simple_sequence": _simple_sequence,
            "sequence_number": _simple_sequence,
            "sequence_text": _simple_sequence,
            "slow": _slow,
            "sum_and_empty": _sum_and_empty,
            "versions": self._versions,
        }

    def _versions(self, request: Any) -> Answer:
        """Answer with the version that runs."""
        return _response(VERSION=np.array([self._version], np.int32))

    def _sequence_sum(self, request: Any) -> Answer:
        """Answer with the running sum of the sequence, which START resets and END forgets."""
        value = _input(request, "INPUT")
        sequence = request.correlation_id()  # an int or a str
        before = 0 if _flag(request, "START") else self._sums.get(sequence, 0)
        total = before + int(value.ravel()[0])
        self._sums[sequence] = total
        if _flag(request, "END"):
            self._sums.pop(sequence, None)
        return _response(OUTPUT=np.full_like(value, total))


def _input(request: Any, name: str) -> Array:
    array: Array = pb.get_input_tensor_by_name(request, name).as_numpy()
    return array


def _flag(request: Any, name: str) -> bool:
    return bool(_input(request, name).ravel()[0])


def _response(**outputs: Array) -> Answer:
    return pb.InferenceResponse([pb.Tensor(name, array) for name, array in outputs.items()])


def _requested(request: Any, **outputs: Array) -> Answer:
    output_names = request.requested_output_names()
    return _response(**{name: array for name, array in outputs.items() if name in output_names})


def _failure(text: str, code: str = "INTERNAL") -> Answer:
    error = pb.TritonError(text, getattr(pb.TritonError, code))
    return pb.InferenceResponse(output_tensors=[], error=error)


def _identity(request: Any) -> Answer:
    """Answer the one input unchanged."""
    return _response(OUTPUT0=_input(request, "INPUT0"))


def _large_outputs(request: Any) -> Answer:
    """Answer with outputs of 160 kB, 16 bytes and any size, or twice as many for negative values."""
    value = _input(request, "INPUT0")
    count = 40_000 if value.min() >= 0 else 80_000
    row = np.arange(count, dtype=np.float32) * np.float32(0.1)
    outputs = {
        "LARGE": value.astype(np.float32) + row,
        "SMALL": np.repeat(value, 4, axis=1),
        "VARIABLE": np.ones((len(value), 20_000), np.float32) * value,
    }
    return _requested(request, **outputs)


def _reciprocal(request: Any) -> Answer:
    """Answer 1/x of each value, and the three values that are not finite behind them."""
    value = _input(request, "INPUT0")
    with np.errstate(all="ignore"):
        inverse = 1 / value
    special = np.array([np.inf, -np.inf, np.nan])
    return _response(OUTPUT0=np.concatenate([inverse, special]))


def _identity_without_numpy(request: Any) -> Answer:
    """Answer the one input unchanged, by DLPack: numpy has no BF16."""
    dlpack = pb.get_input_tensor_by_name(request, "INPUT0").to_dlpack()
    return pb.InferenceResponse([pb.Tensor.from_dlpack("OUTPUT0", dlpack)])


def _add_sub(request: Any) -> Answer:
    """Answer the sum and the difference of two inputs."""
    left, right = _input(request, "INPUT0"), _input(request, "INPUT1")
    return _requested(request, OUTPUT0=left + right, OUTPUT1=left - right)


def _add_sub_string(request: Any) -> Answer:
    """Answer the sum and the difference of numbers that travel as decimal text."""
    parse = np.vectorize(lambda text: int(bytes(text)), otypes=[np.int64])
    spell = np.vectorize(lambda number: str(number).encode(), otypes=[object])
    left, right = parse(_input(request, "INPUT0")), parse(_input(request, "INPUT1"))
    return _requested(request, OUTPUT0=spell(left + right), OUTPUT1=spell(left - right))


def _classify(request: Any) -> Answer:
    """Answer the scores it was given; Triton has the labels."""
    return _response(SCORES=_input(request, "SCORES_IN"))


def _fail(request: Any) -> Answer:
    """Fail with the error code that INPUT0[0] numbers, or with an exception beyond the table."""
    number = int(_input(request, "INPUT0")[0])
    if not 0 <= number < len(ERROR_CODES):
        raise ValueError("model raised on purpose")
    code = ERROR_CODES[number]
    return _failure(f"failed on purpose: {code}", code)


def _params_echo(request: Any) -> Answer:
    """Answer the request's parameters as sorted JSON, and as response parameters where it can."""
    parameters = json.loads(request.parameters() or "{}")
    tensor = pb.Tensor(
        "PARAMS", np.array([json.dumps(parameters, sort_keys=True).encode()], object)
    )
    scalars = {f"echo_{key}": value for key, value in parameters.items() if _is_scalar(value)}
    try:
        return pb.InferenceResponse([tensor], parameters=scalars)
    except TypeError:  # this backend knows no response parameters
        return pb.InferenceResponse([tensor])


def _is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float | bool)


def _simple_sequence(request: Any) -> Answer:
    """Answer the input, plus one for the first request of a sequence."""
    return _response(OUTPUT=_input(request, "INPUT") + np.int32(_flag(request, "START")))


def _slow(request: Any) -> Answer:
    """Sleep MS milliseconds, then answer MS."""
    duration = _input(request, "MS")
    time.sleep(int(duration[0]) / 1000)
    return _response(MS_OUT=duration)


def _sum_and_empty(request: Any) -> Answer:
    """Answer the sum of X, and an output of no elements."""
    total = np.array([_input(request, "X").sum()], np.float64)
    return _response(SUM=total, EMPTY=np.zeros((0,), np.float32))


def _repeat_stream(request: Any) -> Iterator[Answer]:
    """Yield a response for each element of IN; a negative one is an error, and it goes on."""
    for index, value in enumerate(_input(request, "IN")):
        if value < 0:
            yield _failure(f"negative element at {index}")
        else:
            yield _element(request, value, index)


def _repeat_int32(request: Any) -> Iterator[Answer]:
    """Yield a response for each element of IN, DELAY[i] milliseconds (at most 20) apart."""
    pairs = zip(_input(request, "IN"), _input(request, "DELAY"), strict=True)
    for index, (value, delay_ms) in enumerate(pairs):
        time.sleep(min(int(delay_ms), MAX_DELAY_MS) / 1000)
        yield _element(request, value, index)


def _element(request: Any, value: int, index: int) -> Answer:
    out, position = np.array([value], np.int32), np.array([index], np.uint32)
    return _requested(request, OUT=out, IDX=position)


def _generate_text(request: Any) -> Iterator[Answer]:
    """Yield the words of text_input, one a response if `stream` is set, otherwise all in one."""
    words = bytes(_input(request, "text_input")[0]).decode().split()
    limit = pb.get_input_tensor_by_name(request, "max_tokens")
    if limit is not None:
        words = words[: int(limit.as_numpy()[0])]
    stream = pb.get_input_tensor_by_name(request, "stream")
    texts = words if stream is not None and bool(stream.as_numpy()[0]) else [" ".join(words)]
    for text in texts:
        yield _response(text_output=np.array([text.encode()], object))


def _generate_bytes(request: Any) -> Iterator[Answer]:
    """Yield the bytes of text_input one by one, so that characters are cut."""
    data = bytes(_input(request, "text_input")[0])
    for at in range(len(data)):
        yield _response(text_output=np.array([data[at : at + 1]], object))


_STREAMS: dict[str, Callable[[Any], Iterator[Answer]]] = {
    "repeat_stream": _repeat_stream,
    "repeat_int32": _repeat_int32,
    "generate_text": _generate_text,
    "generate_bytes": _generate_bytes,
    "reciprocal_stream": lambda request: iter((_reciprocal(request),)),
    "slow_stream": lambda request: iter((_slow(request),)),
}
