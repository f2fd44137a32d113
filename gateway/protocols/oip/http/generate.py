"""The generate extension: an inference and its reply as flat JSON objects.

Only the model knows which members are inputs and which are parameters, so they stay members
(`InferRequest.flat_members`).  `sse.py` has events.

Source: Triton generate extension; docs/protocols/open-inference.md, "11. Generate"; the recorded
exchanges 096 to 099.
"""

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import orjson

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import Context, ModelRef, Parameter
from gateway.ir.errors import MalformedMessage, Unsupported
from gateway.ir.limits import MessageLimits, check_count, check_name, is_usable_name
from gateway.ir.tensors.data import SharedMemoryData
from gateway.ir.tensors.tensor import Tensor
from gateway.ir.values.nearest import DecimalMembers, loads_to_odd
from gateway.protocols.oip.dialects import NonfiniteWords
from gateway.protocols.oip.json.parse import read_flat, with_python_words
from gateway.protocols.oip.json.tensors import is_plain, text_member
from gateway.protocols.oip.json.write import (
    JsonTarget,
    JsonTargets,
    Nonfinite,
    elements_text,
)
from gateway.protocols.oip.parameters import join_parameters, split_parameters
from gateway.wire.http import HttpRequest

Members = dict[str, Parameter | tuple[Parameter, ...]]

_WHAT: Final = "the request"
_OWN: Final = frozenset({"id", "parameters"})
_RESERVED: Final = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout"}
)
_SCALARS: Final = frozenset({bool, int, float, str})
_WAY_OUT: Final = "connect to the server over gRPC (oip+grpc://)"
_HINT: Final = "use `infer`, and request binary outputs"


def is_inference(document: Mapping[str, Any]) -> bool:
    """Return whether a body is a complete inference request, as of MLServer on these paths."""
    inputs = document.get("inputs")
    return type(inputs) is list and all(type(each) is dict for each in inputs)


def decode_generate(
    model: ModelRef,
    wire: HttpRequest,
    limits: MessageLimits,
    context: Callable[[], Context],
    words: NonfiniteWords | None = None,
) -> InferRequest | None:
    """Read a request of the generate extension; None for a complete inference request.

    Members of an object `parameters` are members like the others, as in Triton. With *words*, NaN
    and infinities may be words.

    Raises:
        MalformedMessage: The body is not a flat object, or a member occurs twice.
        InvalidRequest: A name is not allowed, or a reserved parameter has the wrong type.
        TooLarge: A limit is exceeded.
    """
    document = read_flat(wire.view, _WHAT, limits, words)
    if is_inference(document):
        return None
    found: dict[str, Any] = {key: value for key, value in document.items() if key not in _OWN}
    inner = document.get("parameters")
    if inner is not None:
        if type(inner) is not dict:
            raise MalformedMessage("'parameters' of the request is not an object")
        twice = found.keys() & inner.keys()
        if twice:
            raise MalformedMessage(f"{min(twice)!r} is in the request and in its 'parameters'")
        found |= inner
    most = limits.tensors + limits.parameters
    check_count("members of the request", len(found), most, "parameters")
    members: Members = {}
    reserved: dict[str, Parameter] = {}
    for name, value in found.items():
        check_name("a member of the request", name, limits.name_bytes, "name_bytes")
        if name in _RESERVED or name.startswith("triton_"):
            reserved[name] = _scalar(name, value)
        elif type(value) is list:
            members[name] = tuple([_scalar(name, each) for each in value])
        else:
            members[name] = _scalar(name, value)
    parameters = split_parameters(reserved, limits)
    return InferRequest(
        model=model,
        context=context(),
        id=text_member(document, "id", limits),
        sequence=parameters.sequence,
        priority=parameters.priority,
        timeout_us=parameters.timeout_us,
        flat_members=DecimalMembers(members, partial(_members_to_odd, wire.view)),
    )


def _members_to_odd(view: memoryview) -> dict[str, Any]:
    """Return the members of a request that has been read, see `DecimalMembers`."""
    document: dict[str, Any] = loads_to_odd(with_python_words(str(view, "utf-8-sig")))
    return document | (document.get("parameters") or {})


def _scalar(name: str, value: Any) -> Parameter:
    kind = type(value)
    if kind not in _SCALARS:
        kind_name = "null" if value is None else "an object" if kind is dict else "a list of lists"
        raise MalformedMessage(
            f"{name!r} of the request is or contains {kind_name}: expected a string, a number, "
            "true or false, or a flat list of these"
        )
    found: Parameter = value
    return found


def generated(request: InferRequest, reply: InferResponse, targets: JsonTargets) -> dict[str, Any]:
    """Return a reply in the form of the extension: outputs by name, one element without a list.

    Raises:
        Unsupported: JSON cannot represent an output.
    """
    document: dict[str, Any] = dict(reply.parameters)
    if request.id:
        document["id"] = request.id
    document["model_name"] = reply.model.name
    document["model_version"] = reply.model.version
    for tensor in reply.outputs:
        document[tensor.name] = _elements(tensor, targets.of(reply))
    return document


def _elements(tensor: Tensor, target: JsonTarget) -> orjson.Fragment:
    if tensor.datatype is None or tensor.shape is None:
        raise Unsupported(f"output {tensor.name!r} has no datatype or shape: {_HINT}")
    text = elements_text(
        "output", tensor, _HINT, half=target.can_write_half, nonfinite=target.nonfinite
    )
    return orjson.Fragment(text[1:-1] if math.prod(tensor.shape) == 1 else text)


def encode_generate(call: InferRequest) -> dict[str, Any]:
    """Return *call* as the extension has it: inputs and parameters as members of one object.

    Raises:
        Unsupported: An output is requested as classes or in shared memory; a name is one of the
            extension's own; or an input has a shape or values that it cannot carry.
    """
    document: dict[str, Any] = {
        key: orjson.Fragment(json.dumps(value)) if type(value) is float else value
        for key, value in join_parameters(call).items()
    }
    if call.id:
        document["id"] = call.id
    for output in call.outputs:
        if output.classes or output.shared is not None:
            raise _uncarried(f"output {output.name!r} as classes or in shared memory")
    for tensor in call.inputs:
        name = tensor.name
        if name in _OWN or name in _RESERVED or name.startswith("triton_") or name in document:
            raise _uncarried(f"an input of the name {name!r}")
        document[name] = _values(tensor)
    return document


def read_members(members: Mapping[str, Any], limits: MessageLimits) -> Members:
    """Return the members of a response, each a value or a flat list of values.

    Strings may have lone surrogates, for bytes that are not UTF-8.  A member without a usable name
    is no output, and is left out.

    Raises:
        MalformedMessage: One is something else.
    """
    found: Members = {}
    for name, value in members.items():
        if not is_plain(name, limits) and not is_usable_name("", name, limits.name_bytes):
            continue
        values = value if type(value) is list else [value]
        if not all(type(each) in _SCALARS for each in values):
            raise MalformedMessage(f"{name!r} of the response is neither a value nor a flat list")
        found[name] = tuple(values) if type(value) is list else value
    return found


def _values(tensor: Tensor) -> Any:
    """Return the elements of an input, which Triton gives a shape of one row."""
    shape = tensor.shape
    if tensor.datatype is None or shape is None or type(tensor.data) is SharedMemoryData:
        raise _uncarried(f"input {tensor.name!r}, which is in shared memory or has no datatype")
    if math.prod(shape[:-1]) != 1 or 0 in shape:
        raise _uncarried(f"input {tensor.name!r} of shape {list(shape)}, only one row of elements")
    # Triton, whose extension this is, reads the words that it writes.
    text = elements_text("input", tensor, _WAY_OUT, nonfinite=Nonfinite.LITERAL)
    return orjson.Fragment(text[1:-1] if math.prod(shape) == 1 else text)


def _uncarried(what: str) -> Unsupported:
    return Unsupported(f"`generate_stream` does not carry {what}: {_WAY_OUT}")
