"""Reads what a server sent, strictly, and judges it by an answer that a rule allows."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import DecodeError

from gateway.conformance.graphpipe import message_values
from gateway.conformance.requests import CONTENTS, LENGTH, RequestSubject
from gateway.conformance.rules import AllowedReply
from gateway.conformance.tensors import NAMES, elements_of, name_of, shape_of, tensor_from
from gateway.ir.errors import GatewayError
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, as_raw, raw_tensor
from gateway.ir.texts import visible
from gateway.schema.pool import descriptor_pool, method_classes
from gateway.wire.grpc import GrpcResponse, GrpcStatus
from gateway.wire.http import HttpResponse

CLASSES: Final = 3
"""How many classes the rules of the classification extension ask for."""

_ABSENT: Final = object()
_SHOWN: Final = 160
_MOST_RANK: Final = 64
_SIZE: Final = re.compile("-1|[0-9]+")
_LENGTH: Final = re.compile("[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class ServerReply:
    """One reply.

    Attributes:
        status: Such as `200` or `NOT_FOUND`.
        headers: By name in lower case.
        document: The JSON, or the message in its JSON form; None if there is none.
        outputs: The tensors, with the form of each.
        faults: What is wrong with the form of the reply and of its tensors.
        error: The text of an error.
    """

    status: str
    headers: Mapping[str, str] = field(default_factory=dict)
    document: Any = None
    outputs: tuple[tuple[Tensor, str], ...] = ()
    faults: tuple[str, ...] = ()
    error: str = ""

    @property
    def is_success(self) -> bool:
        """Whether the server did what it was asked."""
        return self.status.startswith("2") or self.status == "OK"

    def text(self) -> str:
        """Return status and error in words."""
        return f"{self.status}: {visible(self.error, _SHOWN)}" if self.error else self.status


def http_reply(wire: HttpResponse, *, has_tensors: bool) -> ServerReply:
    """Return what a response over HTTP says; that to an inference has tensors."""
    headers = dict(reversed(wire.headers.lowered))
    body, faults = bytes(wire.view), []
    size = headers.get(LENGTH, str(len(body)))
    length = int(size) if _LENGTH.fullmatch(size) else -1
    if not 0 <= length <= len(body):
        faults.append(f"{LENGTH} is {visible(size, 40)!r} for a body of {len(body)} bytes")
        length = len(body)
    document: Any = None
    if length:
        try:
            # Bytes that are no text become surrogates: `tensor_from` turns them back.
            document = json.loads(body[:length].decode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError) as fault:
            faults.append(f"the body is no JSON: {visible(str(fault), 80)}")
    outputs: list[tuple[Tensor, str]] = []
    error: Any = ""
    if isinstance(document, dict):
        error = document.get("error", document.get("detail", ""))
        if has_tensors and isinstance(document.get("outputs"), list):
            tail = body[length:]
            for at, entry in enumerate(document["outputs"]):
                try:
                    tensor, form, tail = _http_output(entry, tail)
                    outputs.append((tensor, form))
                except (GatewayError, ValueError, LookupError, TypeError) as fault:
                    faults.append(f"output {at}: {visible(str(fault), _SHOWN)}")
            if tail and not faults:
                faults.append(f"{len(tail)} bytes are left behind the outputs")
    text = error if isinstance(error, str) else json.dumps(error)
    return ServerReply(str(wire.status), headers, document, tuple(outputs), tuple(faults), text)


def _http_output(entry: Any, tail: bytes) -> tuple[Tensor, str, bytes]:
    """Return an output, its form, and the rest of the binary data."""
    if not isinstance(entry, dict):
        raise TypeError("it is no object")
    name, datatype, shape = _described(*(entry.get(key) for key in ("name", "datatype", "shape")))
    parameters = entry.get("parameters") or {}
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    data = entry.get("data")
    if (size is None) == (data is None):
        raise ValueError("it has neither data nor a binary_data_size, or both")
    if size is None:
        return tensor_from(name, datatype, shape, list(_flat(data, 0))), "json", tail
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(tail):
        raise ValueError(f"its binary_data_size is {size!r}, where {len(tail)} bytes follow")
    found = raw_tensor(name, Datatype(datatype), shape, memoryview(tail[:size]))
    return found, "binary", tail[size:]


def _flat(data: Any, depth: int) -> Iterator[Any]:
    if depth > _MOST_RANK:
        raise ValueError("its data are nested too deeply")
    if not isinstance(data, list):
        if not depth:
            raise ValueError("its data are no list")
        yield data
        return
    for each in data:
        yield from _flat(each, depth + 1)


def _described(name: Any, datatype: Any, shape: Any) -> tuple[str, str, tuple[int, ...]]:
    if not isinstance(name, str) or not name:
        raise ValueError("it has no name")
    if datatype not in NAMES:
        raise ValueError(f"its datatype is {datatype!r}")
    sizes = shape if isinstance(shape, list) else None
    if sizes is None or any(type(size) is not int or size < 0 for size in sizes):
        raise ValueError(f"its shape is {shape!r}")
    return name, datatype, tuple(sizes)


def graphpipe_reply(wire: HttpResponse, kind: str) -> ServerReply:
    """Return what a response over HTTP says, whose body is a message with this root."""
    reply = ServerReply(str(wire.status), dict(reversed(wire.headers.lowered)))
    if not reply.is_success:
        return replace(reply, error=bytes(wire.view[:_SHOWN]).decode("utf-8", "replace"))
    try:
        document = message_values(wire.view, kind)
    except GatewayError as fault:
        return replace(reply, faults=(f"the body is no {kind}: {visible(fault.message, 80)}",))
    errors = document.get("errors")
    return replace(reply, document=document, error=errors[0].get("message", "") if errors else "")


def grpc_reply(wire: GrpcResponse, protocol: str, name: str) -> ServerReply:
    """Return what a response over gRPC says; *name* is that of its method, with the service."""
    status = wire.status.name
    if wire.status is not GrpcStatus.OK:
        return ServerReply(status, error=wire.details)
    classes, method = method_classes(protocol, name), name.rpartition("/")[2]
    if classes is None:
        return ServerReply(status, faults=(f"there is no method {name}",))
    try:
        message: Any = classes[1].FromString(bytes(wire.view))
        document = json_format.MessageToDict(
            message,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
            descriptor_pool=descriptor_pool(protocol),
        )
    except (DecodeError, TypeError):  # an Any of another type
        return ServerReply(status, faults=(f"the message is no reply of {method}",))
    error = ""
    if method == "ModelStreamInfer":
        error, message = message.error_message, message.infer_response
    outputs: list[tuple[Tensor, str]] = []
    faults: list[str] = []
    if method in {"ModelInfer", "ModelStreamInfer"}:
        raws = message.raw_output_contents
        if raws and len(raws) != len(message.outputs):
            faults.append(f"{len(raws)} raw contents belong to {len(message.outputs)} outputs")
        for at, entry in enumerate(message.outputs):
            try:
                outputs.append(_grpc_output(entry, raws[at] if at < len(raws) else None))
            except (GatewayError, ValueError) as fault:
                faults.append(f"output {at}: {visible(str(fault), _SHOWN)}")
    return ServerReply(status, {}, document, tuple(outputs), tuple(faults), error)


def _grpc_output(entry: Any, raw: bytes | None) -> tuple[Tensor, str]:
    name, datatype, shape = _described(entry.name, entry.datatype, list(entry.shape))
    filled = [each.name for each, _ in entry.contents.ListFields()]
    if raw is not None:
        if filled:
            raise ValueError("it has raw and typed contents")
        return raw_tensor(name, Datatype(datatype), shape, memoryview(raw)), "raw"
    expected = CONTENTS.get(datatype)
    if filled not in ([], [expected]):
        raise ValueError(f"its contents are {', '.join(filled)}; expected {expected}")
    elements = list(getattr(entry.contents, expected)) if expected and filled else []
    return tensor_from(name, datatype, shape, elements), "contents"


def mismatches(answer: AllowedReply, reply: ServerReply, subject: RequestSubject) -> list[str]:
    """Return in words how a reply differs from an answer; nothing if it is that answer."""
    if not any(_is_status(reply.status, each) for each in answer.status):
        return [f"{reply.text()}; expected {' or '.join(answer.status)}"]
    found = [*reply.faults] if answer.body is not None or answer.outputs else []
    for name, pattern in answer.headers.items():
        value = reply.headers.get(name)
        if value is None or re.fullmatch(pattern, value, re.IGNORECASE) is None:
            shown = "absent" if value is None else repr(visible(value, 80))
            found.append(f"the header {name} is {shown}; expected {pattern}")
    if answer.body is not None:
        found += _differences(subject.filled(answer.body), reply.document, "", subject)
    if answer.outputs and not found:
        found += _wrong_outputs(answer, reply, subject)
    return found


def _is_status(status: str, expected: str) -> bool:
    return status == expected or (expected.endswith("xx") and status[:1] == expected[:1])


_KINDS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "$string": lambda value: isinstance(value, str),
    "$filled": lambda value: isinstance(value, str) and value != "",
    "$number": lambda value: type(value) in {int, float} or str(value).isdecimal(),
    "$boolean": lambda value: isinstance(value, bool),
    "$object": lambda value: isinstance(value, dict),
    "$datatype": lambda value: isinstance(value, str) and value in NAMES,
    # Messages in the form of JSON have integers of 64 bits as texts.
    "$size": lambda value: type(value) in {int, str} and bool(_SIZE.fullmatch(str(value))),
}


def _differences(pattern: Any, value: Any, at: str, subject: RequestSubject) -> Iterator[str]:
    """Yield how a value differs from a pattern; see the text of `rules`."""
    where = f"{at!r}" if at else "the body"
    if value is _ABSENT or pattern == "$absent":
        if (value is _ABSENT) != (pattern == "$absent"):
            yield f"{where} is {'absent' if value is _ABSENT else 'there'}"
    elif isinstance(pattern, Mapping) and pattern.keys() & {"$some", "$equal"}:
        yield from _compared(pattern, value, where, subject)
    elif isinstance(pattern, Mapping | list):
        if not isinstance(value, dict if isinstance(pattern, Mapping) else list):
            expected = "an object" if isinstance(pattern, Mapping) else "a list"
            yield f"{where} is {_shown(value)}; expected {expected}"
            return
        for inner, found, name in _members(pattern, value):
            yield from _differences(inner, found, f"{at}.{name}".lstrip("."), subject)
    elif not _is_value(value, pattern):
        kind = f"a {pattern[1:]}" if pattern in _KINDS else _shown(pattern)
        yield f"{where} is {_shown(value)}; expected {kind}"


def _compared(pattern: Any, value: Any, where: str, subject: RequestSubject) -> Iterator[str]:
    """Yield how a list differs from what one item of it must be, or the whole."""
    if "$equal" in pattern:
        if value != pattern["$equal"]:
            yield f"{where} is {_shown(value)}; expected {_shown(pattern['$equal'])}"
        return
    items = value if isinstance(value, list) else []
    if all(any(_differences(pattern["$some"], each, "", subject)) for each in items):
        yield f"{where} has no item like {_shown(pattern['$some'])}"


def _is_value(value: Any, pattern: Any) -> bool:
    if isinstance(pattern, str) and pattern in _KINDS:
        return _KINDS[pattern](value)
    return type(pattern) is type(value) and bool(pattern == value)


def _members(pattern: Any, value: Any) -> Iterator[tuple[Any, Any, str]]:
    """Yield the patterns of members or items, with their values and names."""
    if isinstance(pattern, list):
        for index, each in enumerate(value):
            yield pattern[0], each, str(index)
        return
    for name, inner in pattern.items():
        found = value.get(name.removesuffix("?"), _ABSENT)
        if not name.endswith("?") or (found is not _ABSENT and found is not None):
            yield inner, found, name.removesuffix("?")


def _shown(value: Any) -> str:
    return visible(json.dumps(value, ensure_ascii=False), 80)


def _wrong_outputs(
    answer: AllowedReply, reply: ServerReply, subject: RequestSubject
) -> Iterator[str]:
    declared = {each.name: each for each in subject.model.outputs}
    known = {each.name: each for each in subject.case.outputs}
    came = [tensor.name for tensor, _ in reply.outputs]
    names = [subject.filled(name) for name in answer.names] or list(declared or known) or came
    if sorted(came) != sorted(names):
        yield f"the outputs are {_shown(came)}; expected {_shown(names)}"
    for tensor, form in reply.outputs:
        where = f"output {visible(tensor.name, 80)!r}"
        if answer.form and form != answer.form:
            yield f"{where} came as {form}; expected {answer.form}"
        if answer.outputs == "classes":
            yield from _wrong_classes(tensor, known.get(tensor.name))
            continue
        entry = declared.get(tensor.name)
        shape = shape_of(tensor)
        if entry is not None and name_of(tensor) != entry.datatype:
            yield f"{where} is {name_of(tensor)}; expected {entry.datatype} as in the metadata"
        if entry is not None and not _is_shape(shape, entry.shape):
            shapes = f"{list(shape)}; expected {list(entry.shape)}"
            yield f"{where} has the shape {shapes} as in the metadata"
        if answer.outputs == "known" and tensor.name in known:
            yield from _wrong_bits(tensor, known[tensor.name])


def _is_shape(shape: Sequence[int], declared: Sequence[int]) -> bool:
    return len(shape) == len(declared) and all(
        size in {found, -1} for found, size in zip(shape, declared, strict=True)
    )


def _wrong_bits(found: Tensor, expected: Tensor) -> Iterator[str]:
    where = f"output {visible(found.name, 80)!r}"
    if (found.datatype, found.shape) != (expected.datatype, expected.shape):
        kinds = [f"{name_of(each)} {list(shape_of(each))}" for each in (found, expected)]
        yield f"{where} is {kinds[0]}; expected {kinds[1]}"
        return
    raws = [bytes(as_raw(each)) for each in (found, expected)]
    if raws[0] == raws[1]:
        return
    for at, pair in enumerate(zip(elements_of(found), elements_of(expected), strict=True)):
        one, other = (visible(repr(each), 60) for each in pair)
        if repr(pair[0]) != repr(pair[1]):
            yield f"{where} has {one} as element {at}; expected {other}"
            return
    yield f"{where} has other bits: {raws[0][:40].hex()}; expected {raws[1][:40].hex()}"


def _wrong_classes(found: Tensor, known: Tensor | None) -> Iterator[str]:
    """Yield what is wrong with the best classes of a known output, ties by lower index."""
    if known is None:
        return
    where = f"output {visible(found.name, 80)!r}"
    values = elements_of(known)
    order = sorted(range(len(values)), key=lambda at: (-values[at], at))[:CLASSES]
    expected = [f"{values[at]:f}:{at}" for at in order]
    if found.datatype is not Datatype.BYTES:
        yield f"{where} is {name_of(found)}; expected classes as BYTES"
        return
    texts = [each.decode("utf-8", "replace") for each in elements_of(found)]
    if [_class_of(text) for text in texts] != [_class_of(text) for text in expected]:
        yield f"{where} has the classes {_shown(texts)}; expected {_shown(expected)}"


def _class_of(text: str) -> tuple[float, str] | None:
    value, _, rest = text.partition(":")
    try:
        return float(value), rest.partition(":")[0]
    except ValueError:
        return None
