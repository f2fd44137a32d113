"""Request parameters: the reserved ones, and their place in the IR.

Source: Triton extensions "parameters", "sequence", "schedule policy";
docs/protocols/open-inference.md, "9. Parameters and headers".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gateway.ir.calls import InferRequest
from gateway.ir.context import CallSequence, Parameter
from gateway.ir.errors import InvalidRequest
from gateway.ir.limits import MessageLimits, check_name

INT64_MIN, INT64_MAX, UINT64_MAX = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1

BINARY_DATA_OUTPUT = "binary_data_output"
_EMPTY_FINAL = "triton_enable_empty_final_response"
_FLAGS = frozenset({"sequence_start", "sequence_end", BINARY_DATA_OUTPUT, _EMPTY_FINAL})
_UNSIGNED = frozenset({"priority", "timeout"})


@dataclass(frozen=True, slots=True)
class RequestParameters:
    """Parameters of an inference request, with the reserved ones separated.

    Attributes:
        binary_data_output: Outputs are binary unless listed otherwise (HTTP only).
        empty_final: The client wants a mark at the end of a stream (gRPC only).
        custom: For the model.
    """

    sequence: CallSequence | None = None
    priority: int = 0
    timeout_us: int | None = None
    binary_data_output: bool = False
    empty_final: bool = False
    custom: Mapping[str, Parameter] = field(default_factory=dict)


NO_REQUEST_PARAMETERS = RequestParameters()


def split_parameters(
    parameters: Mapping[str, Parameter], limits: MessageLimits, *, reserved: bool = True
) -> RequestParameters:
    """Separate the reserved request parameters from *parameters*.

    Args:
        parameters: The parameters that a request has.
        limits: On the id of a sequence.
        reserved: Refuse reserved ones of another type or value; else they are for the model.

    Raises:
        InvalidRequest: A reserved one has the wrong type or value, or belongs to Triton.
        TooLarge: The id of a sequence, which is stored, is too long.
    """
    if not parameters:
        return NO_REQUEST_PARAMETERS
    if not reserved:
        own = {key: value for key, value in parameters.items() if _is_own(key, value)}
        found = split_parameters(
            {key: value for key, value in parameters.items() if key not in own}, limits
        )
        return replace(found, custom={**found.custom, **own})
    custom = dict(parameters)
    sequence_id = custom.pop("sequence_id", 0)
    if isinstance(sequence_id, bool | float) or (
        isinstance(sequence_id, int) and not 0 <= sequence_id <= UINT64_MAX
    ):
        raise InvalidRequest(
            f"parameter 'sequence_id' is {sequence_id!r}: expected an unsigned integer or a string"
        )
    if isinstance(sequence_id, str):
        check_name("parameter 'sequence_id'", sequence_id, limits.name_bytes, "name_bytes")
    start = _flag(custom, "sequence_start")
    end = _flag(custom, "sequence_end")
    priority = _unsigned(custom, "priority")
    timeout_us = _unsigned(custom, "timeout")
    binary = _flag(custom, BINARY_DATA_OUTPUT)
    empty_final = _flag(custom, _EMPTY_FINAL)
    for key in custom:
        if key.startswith("triton_"):
            raise InvalidRequest(f"parameter {key!r}: names that begin with 'triton_' are reserved")
    return RequestParameters(
        sequence=CallSequence(sequence_id, start, end) if sequence_id else None,
        priority=priority,
        timeout_us=timeout_us or None,
        binary_data_output=binary,
        empty_final=empty_final,
        custom=custom,
    )


def join_parameters(request: InferRequest) -> dict[str, Parameter]:
    """Return a request's parameters, including the reserved ones."""
    parameters = dict(request.parameters)
    sequence = request.sequence
    if sequence is not None:
        parameters["sequence_id"] = sequence.id
        parameters["sequence_start"] = sequence.start
        parameters["sequence_end"] = sequence.end
    if request.priority:
        parameters["priority"] = request.priority
    if request.timeout_us is not None:
        parameters["timeout"] = request.timeout_us
    return parameters


def check_integer(key: str, value: int) -> int:
    """Return *value*, which must fit a signed or an unsigned 64-bit integer.

    Raises:
        InvalidRequest: It does not.
    """
    if not INT64_MIN <= value <= UINT64_MAX:
        raise InvalidRequest(f"parameter {key!r} is {value}: expected an integer of 64 bits")
    return value


def _is_own(key: str, value: Parameter) -> bool:
    """Return whether a parameter has a reserved name, and a value that the name does not have."""
    if key == "sequence_id":
        return type(value) is not str and not _is_unsigned(value)
    if key in _UNSIGNED:
        return not _is_unsigned(value)
    if key in _FLAGS:
        return type(value) is not bool
    return key.startswith("triton_")


def _is_unsigned(value: Parameter) -> bool:
    return type(value) is int and 0 <= value <= UINT64_MAX


def _flag(parameters: dict[str, Parameter], key: str) -> bool:
    value = parameters.pop(key, False)
    if not isinstance(value, bool):
        raise InvalidRequest(f"parameter {key!r} is {value!r}: expected true or false")
    return value


def _unsigned(parameters: dict[str, Parameter], key: str) -> int:
    value = parameters.pop(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= UINT64_MAX:
        raise InvalidRequest(f"parameter {key!r} is {value!r}: expected an unsigned integer")
    return value
