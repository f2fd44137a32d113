"""Classify and regress: lists of `tf.Example`, which the model itself parses.

Each example becomes one element of the model's only input of BYTES. The context stands before each
of them: TensorFlow reads the two as one message.

Source: docs/protocols/tensorflow-serving.md, "8. Classify and regress".
"""

import math
from collections.abc import Sequence
from typing import Final

from gateway.ir.errors import InvalidOutput, InvalidRequest, MalformedMessage
from gateway.ir.limits import MessageLimits, check_shape
from gateway.ir.tensors.data import ItemsData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, as_items, as_numpy
from gateway.ir.work import FIELD, charge
from gateway.protocols.tfs.declarations import CLASSIFY, DeclaredSignature
from gateway.wire.protobuf.wire_format import LEN, WireError, fields, tag

_EXAMPLES: Final = tag(1, LEN)
_CONTEXT: Final = tag(2, LEN)
_LIST, _LIST_WITH_CONTEXT = tag(1, LEN), tag(2, LEN)

Scores = Sequence[Sequence[tuple[str, float]]]
"""For each example, its labels with their scores."""


def examples_tensor(
    signature: DeclaredSignature, examples: Sequence[bytes | memoryview], limits: MessageLimits
) -> Tensor:
    """Return the input of a model that parses examples.

    Raises:
        InvalidRequest: There is none.
        TooLarge: There are too many.
    """
    if not examples:
        raise InvalidRequest("Input is empty: expected at least one example")
    shape = (len(examples),)
    check_shape(signature.input, Datatype.BYTES, shape, limits)
    return Tensor(signature.input, Datatype.BYTES, shape, ItemsData(examples))


def read_input(view: memoryview, limits: MessageLimits) -> Sequence[bytes | memoryview]:
    """Return the examples of an Input, each with the context.

    Raises:
        MalformedMessage: It is no such message.
        TooLarge: There are too many examples.
    """
    charge(min(len(view) // 2, limits.bytes_elements) * FIELD / 16)
    try:
        kinds = [pair for pair in fields(view, 64) if pair[0] in (_LIST, _LIST_WITH_CONTEXT)]
        if not kinds:
            return ()
        kind, value = kinds[-1]
        found = fields(value, limits.bytes_elements)
    except WireError as error:
        raise MalformedMessage(f"input is no list of examples: {error}") from error
    examples = [each for key, each in found if key == _EXAMPLES]
    contexts = [bytes(each) for key, each in found if key == _CONTEXT]
    if kind == _LIST or not contexts:
        return examples
    context = b"".join(contexts)
    return [context + bytes(each) for each in examples]


def requested_outputs(signature: DeclaredSignature) -> tuple[RequestedOutput, ...]:
    """Return the outputs that the reply of a classify or regress is made of."""
    is_classify = signature.method == CLASSIFY
    names = (signature.classes, signature.scores) if is_classify else (signature.output,)
    return tuple([RequestedOutput(name) for name in names if name])


def scores_of(signature: DeclaredSignature, outputs: Sequence[Tensor], examples: int) -> Scores:
    """Return labels and scores of each example; a missing output has empty labels, or zeros.

    Raises:
        InvalidOutput: The outputs have other datatypes or shapes.
    """
    by_name = {each.name: each for each in outputs}
    classes = by_name.get(signature.classes)
    scores = by_name.get(signature.scores)
    width = _width(classes or scores, examples)
    labels = _labels(classes, examples, width) if classes else [""] * examples * width
    values = _floats(scores, examples * width) if scores else [0.0] * examples * width
    pairs = list(zip(labels, values, strict=True))
    return [pairs[at * width : (at + 1) * width] for at in range(examples)]


def values_of(
    signature: DeclaredSignature, outputs: Sequence[Tensor], examples: int
) -> Sequence[float]:
    """Return the value of each example.

    Raises:
        InvalidOutput: There is no such output, or it has another datatype or shape.
    """
    found = next((each for each in outputs if each.name == signature.output), None)
    if found is None or _width(found, examples) != 1:
        raise InvalidOutput(
            f"output {signature.output!r} has not one value for each of {examples} examples"
        )
    return _floats(found, examples)


def _width(tensor: Tensor | None, examples: int) -> int:
    """Return how many values each example has."""
    shape = None if tensor is None else tensor.shape
    if tensor is None or not shape or shape[0] != examples or len(shape) > 2:  # noqa: PLR2004  # [n, k]
        name = "" if tensor is None else tensor.name
        raise InvalidOutput(
            f"output {name!r} has shape {shape and list(shape)}: expected [{examples}] or "
            f"[{examples}, k], for {examples} examples"
        )
    return math.prod(shape[1:])


def _labels(tensor: Tensor, examples: int, width: int) -> list[str]:
    if tensor.datatype is not Datatype.BYTES:
        raise InvalidOutput(f"output {tensor.name!r} has labels: expected BYTES")
    items = as_items(tensor)
    if len(items) != examples * width:
        raise InvalidOutput(f"output {tensor.name!r} has {len(items)} labels")
    charge(len(items))
    try:
        return [str(item, "utf-8") for item in items]
    except UnicodeDecodeError as error:
        raise InvalidOutput(f"output {tensor.name!r} has a label that is not UTF-8") from error


def _floats(tensor: Tensor, count: int) -> list[float]:
    if tensor.datatype not in (Datatype.FP32, Datatype.FP64):
        raise InvalidOutput(f"output {tensor.name!r} has scores: expected FP32 or FP64")
    array = as_numpy(tensor).reshape(-1)
    if array.size != count:
        raise InvalidOutput(f"output {tensor.name!r} has {array.size} scores: expected {count}")
    charge(count)
    found: list[float] = array.tolist()
    return found
