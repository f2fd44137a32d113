"""Scans inference messages of Open Inference over gRPC, field by field.

ModelInferRequest and ModelInferResponse differ in one field number.  The scan finds names, shapes
and parameters, and views of the data; `decode.py` assigns data to tensors, and `typed_contents.py`
reads typed contents.

`WireError` means that the scan fails: broken bytes, or a field that occurs twice and must be
merged. Of other single fields that occur twice the last counts; unknown fields are skipped.

Source: Open Inference Protocol, gRPC API; docs/protocols/open-inference.md, "5. Tensors over gRPC"
and "9. Parameters and headers".
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from msgspec import Struct

from gateway.accelerator import accelerated
from gateway.ir.context import NO_PARAMETERS, ModelRef, Parameter, Parameters
from gateway.ir.errors import InvalidRequest, InvalidTensor, MalformedMessage, TooLarge
from gateway.ir.limits import (
    MessageLimits,
    check_bytes_elements,
    check_count,
    check_name,
    check_rank,
    check_shape,
    check_unique,
    is_usable_name,
)
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Shape
from gateway.protocols.oip.datatypes import parse_datatype
from gateway.wire.message_cache import MaskedMessageCache
from gateway.wire.protobuf.wire_format import (
    I64,
    LEN,
    SGROUP,
    VARINT,
    FieldCounter,
    WireError,
    fields,
    float64,
    int64,
    int64s,
    tag,
    text,
    varint,
)

RAW_INPUTS, RAW_OUTPUTS = tag(7, LEN), tag(6, LEN)

_MODEL_NAME, _MODEL_VERSION, _ID = tag(1, LEN), tag(2, LEN), tag(3, LEN)
_PARAMETERS, _TENSORS, _OUTPUTS = tag(4, LEN), tag(5, LEN), tag(6, LEN)

_NAME, _DATATYPE = tag(1, LEN), tag(2, LEN)
_SHAPE, _SHAPE_UNPACKED = tag(3, LEN), tag(3, VARINT)
_TENSOR_PARAMETERS, _CONTENTS = tag(4, LEN), tag(5, LEN)
_OUTPUT_PARAMETERS = tag(2, LEN)

_KEY, _VALUE = tag(1, LEN), tag(2, LEN)
_BOOL, _INT64, _STRING = tag(1, VARINT), tag(2, VARINT), tag(3, LEN)
_DOUBLE, _UINT64 = tag(4, I64), tag(5, VARINT)

_KIND = 7
_VARINT_BYTES = 10
# Enough for the inputs of some hundred models; longer descriptions are rare.
_CACHE_ENTRIES = 512
_REMEMBERED_BYTES = 256
# Messages without their id and their raw contents.
_OUTLINES = 256
_OUTLINE_BYTES = 1024
EMPTY = memoryview(b"")
# Of a message: single fields, and unknown ones of newer clients.
_OTHER_FIELDS = 1024
# Of a tensor, an output or an entry of a map: fields that a newer client may add.
_UNKNOWN_FIELDS = 64
# Of the unknown fields of a message, which are copied.
_UNKNOWN_BYTES = 64 * 1024
_BYTES = Datatype.BYTES
# Parameters of tensors that have a meaning over HTTP only; KServe sends the first over gRPC.
_HTTP_ONLY = frozenset({"binary_data_size", "binary_data"})


class TensorDescription(Struct, frozen=True):
    """A tensor without its data.

    Attributes:
        count: Number of elements of the shape.
        size_bytes: Of its raw contents, where nothing else of them is checked; else -1.
        contents: Its InferTensorContents; empty when there is none.
    """

    name: str
    datatype: Datatype
    shape: Shape
    count: int
    size_bytes: int
    parameters: Parameters
    contents: memoryview


Columns = tuple[tuple[str, ...], tuple[Datatype, ...], tuple[Shape, ...], tuple[Parameters, ...]]


class InferMessage(Struct, frozen=True):
    """A parsed inference message without its id and its raw contents.

    Attributes:
        outputs: Name and parameters of each requested output; requests only.
        columns: Names, datatypes, shapes and parameters of the tensors, where each of them has
            raw contents of the right size, which need no other check, and no field is unknown; else
            None.
        unknown: The bytes of fields that the schema lacks.
    """

    model: ModelRef
    parameters: Parameters
    tensors: list[TensorDescription]
    outputs: list[tuple[str, Parameters]]
    columns: Columns | None
    unknown: bytes = b""


CachedMessage = tuple[InferMessage, bool, Columns | None]
"""A message, whether it has an id, and its columns."""

CachedMessages = Callable[[memoryview], tuple[CachedMessage, tuple[memoryview, ...]] | None]
"""Finds the cached part of a message; the views are its id, if it has one, and its raw contents."""

Scanned = tuple[InferMessage, str, tuple[memoryview, ...]]
"""A parsed message, its id, and its raw contents in order."""


class InferMessageScanner:
    """Scans inference messages; all data are views of the message.

    Messages repeat except for their raw contents and their id: the rest is cached, and so are
    descriptions of tensors, some hundred of each.

    Args:
        limits: The limits of names and counts.
    """

    def __init__(self, limits: MessageLimits) -> None:
        self._limits = limits
        self._fields = _most_fields(limits)
        self._scanners = {
            raw_tag: message_scanner(limits, raw_tag) for raw_tag in (RAW_INPUTS, RAW_OUTPUTS)
        }
        # By the tag of raw contents. An id is the first hole.
        self._outlines: dict[int, MaskedMessageCache[CachedMessage]] = {
            raw_tag: MaskedMessageCache(_OUTLINES, _OUTLINE_BYTES)
            for raw_tag in (RAW_INPUTS, RAW_OUTPUTS)
        }

    def scan(self, view: memoryview, raw_tag: int, counter: FieldCounter | None = None) -> Scanned:
        """Scan one message.

        Args:
            view: The message.
            raw_tag: `RAW_INPUTS` for a request, `RAW_OUTPUTS` for a response.
            counter: Of its fields, also for the reader of its contents.

        Raises:
            WireError: The scan fails.
            InvalidRequest: A name, datatype, shape or parameter is not allowed, or a name
                occurs twice.
            TooLarge: A limit is exceeded.
        """
        outlines = self._outlines[raw_tag]
        found = outlines.get(view)
        if found is None:
            scanned = self._scanners[raw_tag](view, counter or FieldCounter())
            if outlines.should_admit(_mark(scanned, len(view))):
                self._remember(scanned, view, raw_tag)
            return scanned
        (message, has_id, _), raws = found
        if has_id:
            return message, self._id(raws[0], raw_tag), raws[1:]
        return message, "", raws

    def cached(self, raw_tag: int) -> CachedMessages:
        """Return the function that finds cached messages by the tag of their raw contents."""
        return self._outlines[raw_tag].get

    def _remember(self, scanned: Scanned, view: memoryview, raw_tag: int) -> None:
        """Cache the text around id and raw contents, if it has the usual form of writers."""
        message, request_id, raws = scanned
        # Contents would keep the memory of their message.
        if not raws or any(len(each.contents) for each in message.tensors):
            return
        # The cache refuses a longer text: to find its holes would double the cost of each message.
        if len(view) - sum(map(len, raws)) - len(request_id) > _OUTLINE_BYTES:
            return
        holes: list[slice] = []
        ids = at = 0
        for key, value in fields(view, self._fields):
            if key & _KIND != LEN:
                return
            start = at + len(varint(key)) + len(varint(len(value)))
            at = start + len(value)
            if key == _ID:
                ids += 1
                if holes:  # after raw contents
                    return
            if key in (_ID, raw_tag):
                holes.append(slice(start, at))
        # Where lengths are longer than necessary, positions differ from those computed here.
        if at == len(view) and ids <= 1:
            self._outlines[raw_tag].put(view, holes, (message, ids == 1, message.columns))

    def _id(self, value: memoryview, raw_tag: int) -> str:
        request_id = text(value, "id")
        if raw_tag == RAW_INPUTS:
            check_name("id", request_id, self._limits.name_bytes, "name_bytes")
        return request_id


def _most_fields(limits: MessageLimits) -> int:
    """Return how many fields a message may have: those that may repeat, and some unknown ones."""
    return _OTHER_FIELDS + 2 * limits.tensors + limits.outputs + limits.parameters


MessageScanner = Callable[[memoryview, FieldCounter], Scanned]


@accelerated
def message_scanner(limits: MessageLimits, raw_tag: int) -> MessageScanner:
    """Return a function that scans messages of one kind, which are not cached.

    Args:
        limits: The limits of names and counts.
        raw_tag: `RAW_INPUTS` for requests, `RAW_OUTPUTS` for responses.
    """
    return _FieldScanner(limits, raw_tag).scan


class _FieldScanner:
    """Scans messages of one kind, field by field.

    Args:
        limits: The limits of names and counts.
        raw_tag: The tag of raw contents.
    """

    def __init__(self, limits: MessageLimits, raw_tag: int) -> None:
        self._limits = limits
        self._raw_tag = raw_tag
        self._fields = _most_fields(limits)
        self._remembered = lru_cache(_CACHE_ENTRIES)(self._without_contents)

    def scan(self, view: memoryview, counter: FieldCounter, /) -> Scanned:
        """Scan a message that is not cached; raises as `InferMessageScanner.scan`."""
        raw_tag = self._raw_tag
        name = version = request_id = ""
        raws: list[memoryview] = []
        tensors: list[memoryview] = []
        entries: list[memoryview] = []
        outputs: list[memoryview] = []
        unknown = bytearray()
        for key, value in fields(view, self._fields, counter):
            if key == raw_tag:
                raws.append(value)
            elif key == _TENSORS:
                tensors.append(value)
            elif key == _MODEL_NAME:
                name = text(value, "model_name")
            elif key == _OUTPUTS:
                outputs.append(value)
            elif key == _PARAMETERS:
                entries.append(value)
            elif key == _ID:
                request_id = text(value, "id")
            elif key == _MODEL_VERSION:
                version = text(value, "model_version")
            else:
                _put_unknown(unknown, key, value, raw_tag >> 3)
        limits = self._limits
        is_request = raw_tag == RAW_INPUTS
        model = (_requested_model if is_request else _replying_model)(name, version, limits)
        parameters = _parameters(entries, limits, counter, lenient=not is_request)
        described = self._described(tensors, counter)
        requested = _requested(outputs, limits, counter)
        if is_request:
            check_name("id", request_id, limits.name_bytes, "name_bytes")
            _check_named("input", [one.name for one in described])
            _check_named("requested output", [output for output, _ in requested])
        message = InferMessage(
            model,
            parameters,
            described,
            requested,
            None if unknown else _columns(described, raws),
            bytes(unknown),
        )
        return message, request_id, tuple(raws)

    def _described(
        self, tensors: list[memoryview], counter: FieldCounter
    ) -> list[TensorDescription]:
        check_count("tensors", len(tensors), self._limits.tensors, "tensors")
        found = []
        items = 0
        for view in tensors:
            cached = self._remembered(bytes(view)) if len(view) <= _REMEMBERED_BYTES else None
            one = _describe(view, self._limits, counter) if cached is None else cached
            if one.datatype is _BYTES:
                items += one.count
            found.append(one)
        check_bytes_elements(items, self._limits)
        check_unique("tensor", [described.name for described in found])
        return found

    def _without_contents(self, data: bytes) -> TensorDescription | None:
        """Describe a tensor without contents; contents are read from the message."""
        described = _describe(memoryview(data), self._limits, FieldCounter())
        return None if len(described.contents) else described


def _put_unknown(head: bytearray, key: int, value: Any, last: int) -> None:
    """Write a field behind the *last* of the schema, unless *head* is too long or it is a group."""
    if key >> 3 <= last:
        return
    if isinstance(value, int):
        head += varint(key) + varint(value)
    elif key & _KIND != SGROUP and len(head) + len(value) <= _UNKNOWN_BYTES:
        head += varint(key)
        if key & _KIND == LEN:
            head += varint(len(value))
        head += value


def _requested_model(name: str, version: str, limits: MessageLimits) -> ModelRef:
    """Return the model of a request."""
    check_name("model name", name, limits.model_name_bytes, "model_name_bytes")
    check_name("model version", version, limits.name_bytes, "name_bytes")
    return ModelRef(name, version)


def _replying_model(name: str, version: str, limits: MessageLimits) -> ModelRef:
    """Return the model of a response; a name or version that cannot be used counts as absent."""
    if not is_usable_name("model name", name, limits.model_name_bytes):
        name = ""
    if not is_usable_name("model version", version, limits.name_bytes):
        version = ""
    return ModelRef(name, version)


def _mark(scanned: Scanned, size_bytes: int) -> int:
    """Return a hash of the parts in which messages that are not cached differ.

    Their parameters, or the sizes of their data, differ each time.
    """
    message, _, raws = scanned
    return hash((size_bytes, message.model, *message.parameters.items(), *map(len, raws)))


def _columns(found: list[TensorDescription], raws: list[memoryview]) -> Columns | None:
    if [one.size_bytes for one in found] != [len(raw) for raw in raws]:
        return None
    return (
        tuple([one.name for one in found]),
        tuple([one.datatype for one in found]),
        tuple([one.shape for one in found]),
        tuple([one.parameters for one in found]),
    )


def _requested(
    outputs: list[memoryview], limits: MessageLimits, counter: FieldCounter
) -> list[tuple[str, Parameters]]:
    if not outputs:
        return []
    check_count("requested outputs", len(outputs), limits.outputs, "outputs")
    found = [_output(output, limits, counter) for output in outputs]
    if len({name for name, _ in found}) != len(found):
        # Triton replies to a request that repeats an output.
        first: dict[str, tuple[str, Parameters]] = {}
        found = [
            one for one in found if first.setdefault(one[0], one) is one or first[one[0]] != one
        ]
        check_unique("requested output", [name for name, _ in found])
    return found


def _check_named(kind: str, names: list[str]) -> None:
    if "" in names:
        raise InvalidTensor(f"{kind} {names.index('')} of the request has no name: expected one")


def _describe(view: memoryview, limits: MessageLimits, counter: FieldCounter) -> TensorDescription:
    name = spelled = ""
    dims: list[int] = []
    entries: list[memoryview] = []
    contents = None
    for key, value in fields(view, limits.rank + limits.parameters + _UNKNOWN_FIELDS, counter):
        if key == _NAME:
            name = text(value, "tensor name")
        elif key == _DATATYPE:
            spelled = text(value, "datatype")
        elif key == _SHAPE:
            dims += _dims(value, limits)
            check_rank(dims, limits)
        elif key == _CONTENTS:
            if contents is not None:
                raise WireError(f"tensor {name!r} has contents twice")
            contents = value
        elif key == _TENSOR_PARAMETERS:
            entries.append(value)
        elif key == _SHAPE_UNPACKED:
            dims.append(int64(value))
            check_rank(dims, limits)
    check_name("tensor name", name, limits.name_bytes, "name_bytes")
    datatype = parse_datatype(name, spelled)
    shape = tuple(dims)
    count = check_shape(name, datatype, shape, limits)
    parameters = _custom(_parameters(entries, limits, counter))
    plain = not parameters and contents is None and datatype is not _BYTES
    return TensorDescription(
        name,
        datatype,
        shape,
        count,
        count * datatype.size_bytes if plain else -1,
        parameters,
        EMPTY if contents is None else contents,
    )


def _dims(view: memoryview, limits: MessageLimits) -> list[int]:
    # A longer field exceeds the limit, and the list would be many times its size.
    if len(view) > _VARINT_BYTES * limits.rank:
        raise TooLarge(
            f"a shape has {len(view)} bytes, at most {limits.rank} dimensions are allowed",
            limit="rank",
        )
    return int64s(view)


def _output(
    view: memoryview, limits: MessageLimits, counter: FieldCounter
) -> tuple[str, Parameters]:
    name = ""
    entries: list[memoryview] = []
    for key, value in fields(view, limits.parameters + _UNKNOWN_FIELDS, counter):
        if key == _NAME:
            name = text(value, "output name")
        elif key == _OUTPUT_PARAMETERS:
            entries.append(value)
    check_name("output name", name, limits.name_bytes, "name_bytes")
    return name, _custom(_parameters(entries, limits, counter))


def _custom(parameters: Parameters) -> Parameters:
    if not parameters or _HTTP_ONLY.isdisjoint(parameters):
        return parameters
    return {key: value for key, value in parameters.items() if key not in _HTTP_ONLY}


def _parameters(
    entries: list[memoryview],
    limits: MessageLimits,
    counter: FieldCounter,
    *,
    lenient: bool = False,
) -> Parameters:
    """Read the entries of a map; of a repeated key the last entry counts.

    With *lenient*, those without a usable name or a value are left out.
    """
    if not entries:
        return NO_PARAMETERS
    found = dict(_entry(entry, counter) for entry in entries)
    check_count("parameters", len(found), limits.parameters, "parameters")
    cached: dict[str, Parameter] = {}
    for name, value in found.items():
        if lenient and (value is None or not is_usable_name("parameter", name, limits.name_bytes)):
            continue
        check_name("parameter name", name, limits.name_bytes, "name_bytes")
        if value is None:
            raise InvalidRequest(
                f"parameter {name!r} has no value: expected one of bool_param, int64_param, "
                "string_param, double_param, uint64_param"
            )
        cached[name] = value
    return cached


def _entry(view: memoryview, counter: FieldCounter) -> tuple[str, Parameter | None]:
    name = ""
    value: Parameter | None = None
    seen = False
    for key, part in fields(view, _UNKNOWN_FIELDS, counter):
        if key == _KEY:
            name = text(part, "parameter name")
        elif key == _VALUE:
            if seen:
                raise WireError(f"parameter {name!r} has two values")
            value = _choice(part, counter)
            seen = True
        else:
            # The library drops the entry, other runtimes keep it; no writer sends it.
            raise MalformedMessage(f"parameter {name!r} has an unknown field in its map entry")
    return name, value


def _choice(view: memoryview, counter: FieldCounter) -> Parameter | None:
    """Read an InferParameter: of several members the last counts, none gives None."""
    value: Parameter | None = None
    for key, part in fields(view, _UNKNOWN_FIELDS, counter):
        if key == _INT64:
            value = int64(part)
        elif key == _STRING:
            value = text(part, "string_param")
        elif key == _BOOL:
            value = part != 0
        elif key == _DOUBLE:
            value = float64(part)
        elif key == _UINT64:
            value = part
    return value
