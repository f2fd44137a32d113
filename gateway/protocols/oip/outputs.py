"""Properties of a requested output: classes instead of values, and its place in shared memory.

Source: Triton extensions "classification" and "shared memory"; docs/protocols/open-inference.md,
"12. Classification" and "13. Shared memory".
"""

import re

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import Parameter, Parameters
from gateway.ir.errors import InvalidRequest
from gateway.ir.limits import MessageLimits, check_classes
from gateway.ir.tensors.data import ItemsData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, as_items
from gateway.ir.work import charge
from gateway.protocols.oip.shared_memory import join_shared, split_shared
from gateway.wire.errors import clip

CLASSIFICATION = "classification"
# Some client libraries write this name instead.
_CLASSIFICATION_COUNT = "classification_count"

_MOST = (1 << 31) - 1
# A value with a fraction or an exponent, or a non-finite one; integers are written unchanged.
_VALUE = re.compile(rb"\A([+-]?(?:\d+[.e][0-9.e+-]*|nan|inf)):")
_SHOWN = 64


def requested_output(
    name: str, parameters: Parameters, limits: MessageLimits, *, least_classes: int
) -> RequestedOutput:
    """Return a requested output.

    Args:
        name: The name of the output.
        parameters: As received, without those about the form of a message.
        limits: On names.
        least_classes: 0 where that number requests no classes; 1 where it is an error.

    Raises:
        InvalidRequest: A reserved parameter has a wrong value, or two exclude each other.
        TooLarge: A region's name is too long, or too many classes are requested.
    """
    shared, remaining = split_shared(f"output {name!r}", parameters, limits)
    classes = remaining.pop(CLASSIFICATION, None)
    count = remaining.pop(_CLASSIFICATION_COUNT, None)
    if classes is not None and count is not None:
        raise InvalidRequest(
            f"output {name!r} has the parameters {CLASSIFICATION!r} and "
            f"{_CLASSIFICATION_COUNT!r}: expected one of the two"
        )
    classes = count if classes is None else classes
    if classes is None:
        return RequestedOutput(name, 0, remaining, shared)
    if type(classes) is not int or not least_classes <= classes <= _MOST:
        raise InvalidRequest(
            f"parameter {CLASSIFICATION!r} of output {name!r} is {clip(repr(classes), _SHOWN)}: "
            "expected a number of classes"
        )
    check_classes(name, classes, limits)
    if classes and shared is not None:
        raise InvalidRequest(
            f"output {name!r} is requested as classes and in shared memory: expected one of both"
        )
    return RequestedOutput(name, classes, remaining, shared)


def output_parameters(output: RequestedOutput) -> dict[str, Parameter]:
    """Return the parameters of the requested *output*."""
    parameters = dict(output.parameters)
    if output.classes:
        parameters[CLASSIFICATION] = output.classes
    if output.shared is not None:
        parameters |= join_shared(output.shared)
    return parameters


def with_c_values(call: InferRequest, reply: InferResponse) -> InferResponse:
    """Return *reply* with the values of classes as C's `%f` prints them, as Triton does."""
    classified = call.outputs and {output.name for output in call.outputs if output.classes}
    if not classified:
        return reply
    outputs = tuple(
        [
            _printed(tensor)
            if tensor.name in classified and tensor.datatype is Datatype.BYTES
            else tensor
            for tensor in reply.outputs
        ]
    )
    return reply.changed(outputs=outputs)


def _printed(tensor: Tensor) -> Tensor:
    found = as_items(tensor)
    charge(4 * len(found))
    items = [_VALUE.sub(_escape_as_octal, bytes(item), count=1) for item in found]
    data = ItemsData(items)
    return Tensor(tensor.name, tensor.datatype, tensor.shape, data, tensor.parameters)


def _escape_as_octal(found: re.Match[bytes]) -> bytes:
    try:
        return b"%f:" % float(found[1])
    except ValueError:
        return found[0]
