"""Reads and writes inference requests over HTTP.

Source: Open Inference Protocol, "Inference Request JSON Object"; docs/protocols/open-inference.md,
"4. Binary tensors over HTTP" and "8. Inference requests and responses".
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import orjson
from msgspec import Struct

from gateway.accelerator import accelerated
from gateway.ir.calls import InferRequest
from gateway.ir.context import (
    NO_PARAMETERS,
    Context,
    JsonParameter,
    ModelRef,
    Origin,
    Parameter,
    unknown_of,
)
from gateway.ir.errors import InvalidRequest, MalformedMessage, TooLarge, Unsupported
from gateway.ir.limits import MessageLimits, check_count
from gateway.ir.tensors.data import JsonItemsData, RawData, SharedMemoryData, StreamedData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.expected_inputs import compare_inputs, is_comparing
from gateway.ir.tensors.tensor import RequestedOutput, Shape, Tensor, as_items
from gateway.protocols.oip.dialects import JSON_ALONE, Dialect
from gateway.protocols.oip.extension_policy import check_extended
from gateway.protocols.oip.http.context import NAME, NEEDS
from gateway.protocols.oip.json.binary_tensors import (
    BINARY_DATA,
    LENGTH_HEADER,
    LENGTH_KEY,
    BinaryPart,
    binary_headers,
    body_of,
    json_length,
    too_short,
)
from gateway.protocols.oip.json.parse import (
    Document,
    dump,
    read_document,
    read_with_words,
    unknown_members,
)
from gateway.protocols.oip.json.server_limits import (
    check_inputs,
    check_numbers,
    too_long,
)
from gateway.protocols.oip.json.templates import JsonTemplateCache, Read, TemplateParser
from gateway.protocols.oip.json.tensors import (
    TensorReader,
    input_names,
    list_member,
    read_parameters,
    refuse_twice,
    tensor_name,
    text_member,
)
from gateway.protocols.oip.json.write import (
    JsonTarget,
    Nonfinite,
    append_elements,
    binary_part,
    binary_writer,
    described_binary,
    dump_parameters,
    gathered,
    put_binary,
    tensor_prefix,
)
from gateway.protocols.oip.outputs import output_parameters, requested_output
from gateway.protocols.oip.parameters import (
    BINARY_DATA_OUTPUT,
    INT64_MAX,
    NO_REQUEST_PARAMETERS,
    RequestParameters,
    join_parameters,
    split_parameters,
)
from gateway.protocols.oip.shared_memory import join_shared
from gateway.wire.heads.metadata import sender_metadata
from gateway.wire.http import Buffer, Headers, HttpRequest, size_of, view_of

_WHAT = "the request"
_ALL_BINARY = b'"parameters":%b,' % dump({BINARY_DATA_OUTPUT: True})
_HOW_BINARY = (
    "a binary request is the JSON followed by the bytes of its tensors, with the header "
    f"{LENGTH_HEADER} set to the length of the JSON; with Python's requests pass "
    "data=json_bytes + tensor_bytes, not json= and data= together"
)

_CACHE_ENTRIES = 512
_BYTES_AT_HAND = frozenset({RawData})

_write_binary = binary_writer(partial(binary_part, "input"))


@dataclass(frozen=True, slots=True)
class InferReplyFormat:
    """The outputs that are requested as binary.

    Attributes:
        default: Whether those that the request does not list are.
        listed: Those that it lists, by name.  One listed without `binary_data` is JSON, even with
            `binary_data_output`, as in Triton.
    """

    default: bool = False
    listed: Mapping[str, bool] = field(default_factory=dict)


ALL_JSON = InferReplyFormat()
ALL_BINARY = InferReplyFormat(default=True)


class ParsedRequest(Struct, frozen=True):
    """The parsed request without its id and its inputs; `unknown` as in `Origin`."""

    parameters: RequestParameters
    outputs: tuple[RequestedOutput, ...]
    form: InferReplyFormat
    unknown: bytes = b""


class HeaderFields(Struct, frozen=True):
    """The parsed header fields of an inference request.

    Attributes:
        metadata: All of them, names in lower case.
        request_id: The client's; "" for none.
        json_bytes: Length of the JSON; None for that of the whole body.
    """

    metadata: tuple[tuple[str, str], ...]
    request_id: str
    json_bytes: int | None


RequestReader = Callable[[ModelRef, memoryview, int | None], tuple[Read[ParsedRequest], bool]]


class RequestTemplates(JsonTemplateCache[ParsedRequest]):
    """The templates of requests.

    Args:
        limits: The limits of messages.

    Attributes:
        decode: Makes the call of a request; see `request_decoder`.
    """

    def __init__(self, limits: MessageLimits) -> None:
        super().__init__("input", limits)
        self.decode = request_decoder(self.parse, request_reader(limits), self.learn)


def decode_request(
    model: ModelRef,
    wire: HttpRequest,
    templates: RequestTemplates,
    request_id: str = "",
    dialect: Dialect | None = None,
) -> InferRequest:
    """Read an inference request.

    Binary inputs are views of the body. A raw binary request (length header 0) is one input
    without name, datatype and shape, and all outputs are returned as binary.

    Args:
        model: From the path.
        wire: The request.
        templates: The templates that earlier requests left.
        request_id: For a request without an id of the client.
        dialect: Read what a server of this dialect reads; None to read strictly.

    Raises:
        InvalidRequest: The bytes or members are wrong.
        TooLarge: A limit is exceeded.
    """
    # A template does not help large tensors, and only these arrive later. It is strict.
    if dialect is None and wire.body_stream is None:
        return templates.decode(model, wire, request_id)
    body, rest, limits = view_of(wire.body), wire.body_stream, templates.limits
    fields = wire.headers.parsed_with(fields_of)
    length = fields.json_bytes
    end = len(body) if length is None else length
    if end > len(body) and (rest is None or end > rest.end):
        raise too_short(end, len(body) if rest is None else rest.end)
    if length == 0:
        return _raw_request(model, wire, fields, request_id, body)
    has_header = length is not None
    if dialect is not None and dialect.reads_words is not None:
        document = read_with_words(body[:end], _WHAT, limits, dialect.reads_words)
    else:
        document = _document(body[:end], limits, has_header=has_header)
    binary = BinaryPart("input", body[end:], has_header=has_header, rest=rest)
    read = _read(model, document, binary, limits, dialect)
    return _call(model, wire, fields, request_id, read)


RequestDecoder = Callable[[ModelRef, HttpRequest, str], InferRequest]


@accelerated
def request_decoder(
    parse: TemplateParser[ParsedRequest],
    read: RequestReader,
    learn: Callable[[bytes, memoryview, int, Read[ParsedRequest]], None],
) -> RequestDecoder:
    """Return a function that makes the call of a complete request, as strictly as the protocol.

    It takes the model, the request, and the id of the call for a request without one.

    Args:
        parse: Parses a request by its template.
        read: Reads one without a template.
        learn: Caches the template of one that was read.
    """

    def decode(model: ModelRef, wire: HttpRequest, request_id: str, /) -> InferRequest:
        body = view_of(wire.body)
        fields = wire.headers.parsed_with(fields_of)
        length = fields.json_bytes
        end = len(body) if length is None else length
        if end > len(body):
            raise too_short(end, len(body))
        if length == 0:
            return _raw_request(model, wire, fields, request_id, body)
        found, key = parse(body, end)
        if found is not None:  # a template is that of a message whose tensors are in it
            return _call(model, wire, fields, request_id, found, has_bytes=True)
        found, has_bytes = read(model, body, length)
        if key is not None:
            learn(key, body, end, found)
        return _call(model, wire, fields, request_id, found, has_bytes)

    return decode


def _raw_request(
    model: ModelRef, wire: HttpRequest, fields: HeaderFields, request_id: str, body: memoryview
) -> InferRequest:
    """Return the call of a raw binary request."""
    whole = Tensor("", None, None, RawData(body), NO_PARAMETERS)
    parsed = ParsedRequest(NO_REQUEST_PARAMETERS, (), ALL_BINARY)
    return _call(model, wire, fields, request_id, (parsed, "", (whole,)))


def _call(
    model: ModelRef,
    wire: HttpRequest,
    fields: HeaderFields,
    request_id: str,
    read: Read[ParsedRequest],
    has_bytes: bool = False,
) -> InferRequest:
    """Return the call of a parsed request.

    Args:
        model: From the path.
        wire: The request.
        fields: Its header fields.
        request_id: For a request without an id of the client.
        read: The request.
        has_bytes: Whether each of its inputs certainly has its bytes.
    """
    parsed, own_id, inputs = read
    origin = Origin(NAME, wire, parsed.form, has_bytes, unknown=parsed.unknown)
    found, parameters = fields.request_id, parsed.parameters
    return InferRequest(
        model=model,
        context=Context(
            NAME,
            fields.metadata,
            found or request_id,
            wire.deadline,
            None,
            NEEDS,
            origin,
            wire.client,
        ),
        inputs=inputs,
        outputs=parsed.outputs,
        id=own_id,
        sequence=parameters.sequence,
        priority=parameters.priority,
        timeout_us=parameters.timeout_us,
        parameters=parameters.custom,
    )


def fields_of(headers: Headers) -> HeaderFields:
    """Parse the header fields of an inference request.

    Raises:
        MalformedMessage: The length of the JSON is not a number.
    """
    metadata, request_id = sender_metadata(headers)
    names = headers.positions
    length = json_length(headers) if names is None or LENGTH_KEY in names else None
    return HeaderFields(metadata, request_id, length)


@accelerated
def request_reader(limits: MessageLimits) -> RequestReader:
    """Return a function that reads a request strictly, without a template.

    It takes the model, the body, and the length of the JSON in it; None for all of it. It returns
    what was read, and whether each of its inputs certainly has its bytes.

    Args:
        limits: The limits of messages.
    """

    def read(
        model: ModelRef, body: memoryview, length: int | None, /
    ) -> tuple[Read[ParsedRequest], bool]:
        has_header = length is not None
        document = _document(body[:length], limits, has_header=has_header)
        rest = body[len(body) if length is None else length :]
        binary = BinaryPart("input", rest, has_header=has_header)
        found = _read(model, document, binary, limits, None)
        has_bytes = {type(tensor.data) for tensor in found[2]} <= _BYTES_AT_HAND
        return found, has_bytes

    return read


def _read(
    model: ModelRef,
    document: Document,
    binary: BinaryPart,
    limits: MessageLimits,
    dialect: Dialect | None,
) -> Read[ParsedRequest]:
    """Read a request without a template."""
    members = document.members
    json_values = dialect is not None and dialect.reads_json_parameters
    found = read_parameters(members.get("parameters"), _WHAT, limits, json_values=json_values)
    parameters = split_parameters(found, limits, reserved=dialect is None or dialect.reserves_keys)
    if is_comparing():
        compare_inputs(model, input_names(document))
    inputs = TensorReader("input", binary, limits, dialect=dialect).read(document)
    outputs, listed = _requested(members, limits, json_values=json_values)
    form = ALL_JSON
    if parameters.binary_data_output or True in listed.values():
        form = InferReplyFormat(parameters.binary_data_output, listed)
    parsed = ParsedRequest(parameters, outputs, form, unknown_members(members))
    return parsed, text_member(members, "id", limits), inputs


def _document(view: memoryview, limits: MessageLimits, *, has_header: bool) -> Document:
    try:
        return read_document(view, _WHAT, limits)
    except MalformedMessage as error:
        if has_header or " twice " in error.message:
            raise
        if bytes(view[:64]).lstrip()[:1] == b"{":
            hint = (
                f"if binary tensors follow the JSON, the header {LENGTH_HEADER} must be "
                "the length of the JSON"
            )
        else:
            hint = _HOW_BINARY
        raise MalformedMessage(f"{error.message}; {hint}") from error


def _requested(
    members: Mapping[str, Any], limits: MessageLimits, *, json_values: bool
) -> tuple[tuple[RequestedOutput, ...], dict[str, bool]]:
    found = list_member(members, "outputs")
    if not found:
        return (), {}
    check_count("requested outputs", len(found), limits.outputs, "outputs")
    outputs: list[RequestedOutput] = []
    listed: dict[str, bool] = {}
    for index, member in enumerate(found):
        name = tensor_name("output", index, member, limits)
        value = member.get("parameters")
        if value is None or _is_json(value):  # the usual ones first
            listed[name] = False
            outputs.append(RequestedOutput(name, 0, NO_PARAMETERS))
            continue
        parameters = read_parameters(value, f"output {name!r}", limits, json_values=json_values)
        listed[name] = _takes_binary(name, parameters)
        outputs.append(requested_output(name, parameters, limits, least_classes=0))
    if len(listed) != len(outputs):
        # Triton replies to a request that repeats an output.
        first: dict[str, RequestedOutput] = {}
        outputs = [
            one
            for one in outputs
            if first.setdefault(one.name, one) is one or first[one.name] != one
        ]
        refuse_twice("output", [output.name for output in outputs])
    return tuple(outputs), listed


def _is_json(parameters: Any) -> bool:
    """Return whether `binary_data` is false, and the only parameter."""
    return (
        type(parameters) is dict and len(parameters) == 1 and parameters.get(BINARY_DATA) is False
    )


def _takes_binary(name: str, parameters: dict[str, Parameter]) -> bool:
    """Remove the parameter about the message's form; return whether the output is binary."""
    binary = parameters.pop(BINARY_DATA, False)
    if type(binary) is not bool:
        raise InvalidRequest(
            f"parameter 'binary_data' of output {name!r} is {repr(binary)[:40]}: "
            "expected true or false"
        )
    return binary


def encode_request(
    call: InferRequest,
    request_id: str,
    dialect: Dialect,
    limits: MessageLimits,
    binary_out: bool = True,
) -> tuple[Headers, Sequence[Buffer]]:
    """Write an inference request in a server's dialect; raw inputs are views.

    Args:
        call: Its inputs have name, datatype and shape.
        request_id: Sent as `id`; "" for none.
        dialect: The server's.
        limits: On texts and JSON, for servers of one process.
        binary_out: Request binary outputs, where the dialect has them.

    Raises:
        Unsupported: The dialect cannot carry a part of it.
        TooLarge: It would occupy a server of one process for long.
    """
    if dialect.keeps_json and _came_as_json(call):
        with suppress(Unsupported, TooLarge):  # then it is not for a server of JSON alone
            return encode_request(call, request_id, JSON_ALONE, limits, binary_out)
    inputs = call.inputs
    binary_out = binary_out and dialect.has_binary
    if dialect.numbers is not None:
        check_inputs(inputs, dialect, dialect.numbers, limits)
    opened = b'{"id":%b,' % orjson.dumps(request_id) if request_id else b"{"
    parameters = _parameters(call, dialect, binary_out and not call.outputs)
    closing = _outputs(call, dialect, binary_out) if call.outputs else b"}"
    origin = call.context.origin
    if origin is not None and origin.unknown:
        opened += unknown_of(origin, NAME)
    found = _write_binary(inputs) if dialect.has_binary else None
    if found is not None:
        members, views = found
        whole = b'%b%b"inputs":[%b]%b' % (opened, parameters, members, closing)
        return binary_headers(len(whole)), (whole, *views)
    text: list[bytes] = [opened, parameters]
    binary: list[memoryview] = []
    before = b'"inputs":['
    is_long = False
    for tensor in inputs:
        text.append(before)
        before = b","
        if _put_input(text, binary, tensor, dialect, limits):
            is_long = True
    if is_long and not dialect.has_binary and (size := sum(map(len, text))) > limits.json_bytes:
        raise too_long(inputs[-1].name, size, limits, _hint(dialect))
    if not inputs:
        text.append(before)
    text += (b"]", closing)
    parts = gathered(text) if is_long else (b"".join(text),)
    if inputs and type(inputs[-1].data) is StreamedData:
        return binary_headers(size_of(parts)), (*parts, *[view for view in binary if len(view)])
    return body_of(parts, binary, True)


def _came_as_json(call: InferRequest) -> bool:
    """Return whether a client of this protocol sent JSON alone, and wants JSON."""
    origin = call.context.origin
    if origin is None or origin.codec != NAME or origin.form is not ALL_JSON:
        return False
    return all(name.lower() != LENGTH_KEY for name, _ in origin.wire.headers)


def _parameters(call: InferRequest, dialect: Dialect, all_binary: bool) -> bytes:
    """Return the member `parameters` of a request, followed by a comma; b"" for none."""
    reserved = call.priority or call.sequence is not None or call.timeout_us is not None
    if not reserved and not call.parameters:
        return _ALL_BINARY if all_binary else b""
    parameters: dict[str, Any] = join_parameters(call)
    if all_binary:
        parameters[BINARY_DATA_OUTPUT] = True
    words = None if dialect.reads_words is None else parameters
    _check_parameters(_WHAT, parameters, dialect, words)
    return b'"parameters":%b,' % dump_parameters(parameters)


def _put_input(
    text: list[bytes],
    binary: list[memoryview],
    tensor: Tensor,
    dialect: Dialect,
    limits: MessageLimits,
) -> bool:
    """Append one input to the text, or to the bytes after it; return whether its text is long."""
    datatype, shape, data = tensor.datatype, tensor.shape, tensor.data
    if not tensor.name or datatype is None or shape is None:
        raise Unsupported(
            f"input {tensor.name!r} has no name, datatype or shape: Open Inference needs all three"
        )
    parameters = tensor.parameters
    if parameters:
        _check_parameters(f"input {tensor.name!r}", parameters, dialect)
    if type(data) is SharedMemoryData:
        if not dialect.has_extensions:
            check_extended(f"input {tensor.name!r}", None, dialect)
        if parameters:
            parameters = {**parameters, **join_shared(data)}
            text += (tensor_prefix("input", tensor.name, datatype, shape, parameters), b"}")
        else:
            text.append(_shared_input(tensor.name, datatype, shape, data))
    elif type(data) is StreamedData:  # last, after all bytes that have arrived
        text.append(described_binary("input", tensor, datatype, shape, tensor.nbytes))
    elif dialect.has_binary and not (type(data) is JsonItemsData and dialect.reads_as_numpy):
        if datatype is Datatype.BYTES and dialect.is_text_only:
            _check_text(tensor, dialect)
        put_binary(text, binary, "input", tensor, datatype, shape)
    else:
        nonfinite = Nonfinite.QUOTED if dialect.reads_as_numpy else Nonfinite.REFUSE_ALL
        target = JsonTarget("input", _hint(dialect), dialect.has_half_in_json, nonfinite)
        if datatype is not Datatype.BYTES:
            check_numbers(tensor, shape, limits, target)
        return append_elements(text, target, tensor, datatype, shape)
    return False


@lru_cache(_CACHE_ENTRIES)  # the next message has the same place
def _shared_input(name: str, datatype: Datatype, shape: Shape, data: SharedMemoryData) -> bytes:
    """Return the object of an input in shared memory, which has no other parameters."""
    return tensor_prefix("input", name, datatype, shape, join_shared(data)) + b"}"


def _hint(dialect: Dialect) -> str:
    return f"{dialect.name} accepts no binary tensors over HTTP, use its gRPC port"


def _outputs(call: InferRequest, dialect: Dialect, binary: bool) -> bytes:
    """Return the text after the inputs of a request for outputs."""
    outputs = [_output(output, dialect, binary=binary) for output in call.outputs]
    return b',"outputs":%b}' % dump(outputs)


def _output(output: RequestedOutput, dialect: Dialect, *, binary: bool) -> dict[str, Any]:
    if output.classes or output.shared is not None:
        check_extended(f"output {output.name!r}", output, dialect)
    member: dict[str, Any] = {"name": output.name}
    parameters = output_parameters(output)
    _check_parameters(f"output {output.name!r}", parameters, dialect)
    if binary and output.shared is None:
        parameters[BINARY_DATA] = True
    if parameters:
        member["parameters"] = orjson.Fragment(dump_parameters(parameters))
    return member


def _check_text(tensor: Tensor, dialect: Dialect) -> None:
    for index, item in enumerate(as_items(tensor)):
        try:
            str(item, "utf-8")
        except UnicodeDecodeError as error:
            raise Unsupported(
                f"input {tensor.name!r} has bytes that are not UTF-8 at index {index}: "
                f"{dialect.name} accepts text only over HTTP, use its gRPC port"
            ) from error


def _check_parameters(
    what: str,
    parameters: Mapping[str, Parameter],
    dialect: Dialect,
    words: dict[str, Any] | None = None,
) -> None:
    """Refuse what the server would not read.

    Args:
        what: Names the message or tensor in errors.
        parameters: Its parameters.
        dialect: The server's.
        words: Receives NaN and infinities as the words of JSON in Python; None to refuse them.
    """
    for key, value in parameters.items():
        if isinstance(value, float) and not math.isfinite(value):
            if words is None:
                raise Unsupported(f"parameter {key!r} of {what} is {value}, which is not JSON")
            words[key] = JsonParameter(json.dumps(value))
        if type(value) is JsonParameter and not dialect.reads_json_parameters:
            raise Unsupported(
                f"parameter {key!r} of {what} is a list or an object: {dialect.name} expects a "
                "string, a number, true or false"
            )
        if dialect.has_signed_parameters and type(value) is int and value > INT64_MAX:
            # `sequence_id` is read as an unsigned integer; only custom parameters lose precision.
            if key == "sequence_id":
                continue
            raise Unsupported(
                f"parameter {key!r} of {what} is {value}: {dialect.name} accepts integers up to "
                f"{INT64_MAX} over HTTP"
            )
