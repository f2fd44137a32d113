"""A recorded call: its rows, made from a call and its replies, and read back into these.

`schema.py` stores the rows.
"""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, TypeAlias, cast

from msgspec import Struct, convert, field
from msgspec.structs import (
    astuple,
    replace,  # noqa: TID251  # rows have no wire origin
)

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import Context, ModelRef, Need, Parameters
from gateway.ir.errors import ERROR_CLASSES, ErrorCode, GatewayError, MalformedMessage
from gateway.ir.tensors.data import (
    ArrayData,
    JsonItemsData,
    RawData,
    SharedMemoryData,
    SlicedData,
    StreamedData,
    UntypedData,
)
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, as_raw, raw_tensor
from gateway.ir.text_tasks import TextTask
from gateway.ir.unread import failure_of, path_of
from gateway.ir.values.untyped import adds_axis
from gateway.shadow.records.checksum import checksum
from gateway.shadow.records.column_texts import (
    check_parameters,
    parse_details,
    parse_needs,
    parse_parameters,
    parse_sequence,
    parse_shape,
)
from gateway.shadow.records.details import details_of, members_of
from gateway.shadow.records.privacy import Hasher, Payload, Privacy, least_payload
from gateway.shadow.records.untyped import untyped_data, untyped_payload, untyped_text

OK: Final = "ok"
_PATH: Final = 256
FORWARDED: Final = "Forwarded"
"""The kind of a call that a server got as it came: only its messages are recorded."""
REFUSED: Final = "refused by the gateway"
INPUT, OLD, NEW = "input", "old", "new"

RAW, SLICED, ABSENT, UNTYPED, JSON = "raw", "sliced", "absent", "untyped", "json"
"""Forms of a tensor: elements in wire form; a slice of elements whose end only the model knows, of
which the first has all bytes; elements that were not in the message; JSON whose datatype only the
model knows; elements as a JSON list, only in records that may lack elements."""


INVALID_VALUES: Final = (KeyError, TypeError, ValueError, IndexError, RecursionError)
"""What reading a row raises whose checksum is right, but whose values no gateway writes."""


class TensorRow(Struct, frozen=True, array_like=True):
    """One tensor of a call.

    Attributes:
        side: "input", or "old" or "new" for an output.
        item: Position of the reply in a stream; 0 for inputs.
        datatype: None where only the model knows it; the same for *shape*.
        declared: What a sender declared of a slice, bytes; None for nothing.
        size: Bytes of the wire form; 0 for all slices but the first.
        digest: Keyed hash of the elements; None unless the payload is hashed.
        data: The elements; None unless the payload is full.
    """

    side: str
    item: int
    place: int
    name: str
    datatype: str | None
    shape: str | None
    form: str
    declared: int | None
    size: int
    digest: bytes | None = None
    data: bytes | None = None


class ItemRow(Struct, frozen=True, array_like=True):
    """One reply of a call.

    Attributes:
        at_us: Time since the start of the call.
        code: "ok", or the code of the error that this reply is.
        parameters: JSON; None unless parameters are written.
    """

    item: int
    at_us: int
    code: str
    parameters: str | None = None


class WireRow(Struct, frozen=True, array_like=True):
    """One message as the client sent or received it.

    Attributes:
        side: "request" or "reply".
        place: Position among the messages of this side.
        head: JSON: carrier, and method and path or status.
    """

    side: str
    place: int
    head: str
    body: bytes


class CallRow(Struct, frozen=True, kw_only=True, array_like=True):
    """A call without its tensors.

    Attributes:
        at_us: Start in UTC, microseconds since 1970.
        took_us: Until the complete reply.
        kind: "InferRequest", "StreamInferRequest", `FORWARDED`, or "" for a request that could not
            be read.
        needs: Names of what the caller's codec needs in the reply, JSON.
        sequence: JSON [id, start, end]; None outside a sequence.
        parameters: JSON; None unless parameters are written.
        details: JSON of the rest: id, batch size, priority, requested outputs, listed headers, and
            the name of a client that sent a credential; the path of a call that is not read, and
            whether the gateway itself refused it.
        code: "ok" or the code of the error.
        error: Its text; "" unless the payload is full.
    """

    at_us: int
    took_us: int
    request_id: str = ""
    kind: str = ""
    client: str = ""
    agent: str = ""
    protocol: str = ""
    needs: str = "[]"
    route: str = ""
    target: str = ""
    model: str = ""
    version: str = ""
    sequence: str | None = None
    parameters: str | None = None
    details: str = "{}"
    code: str = OK
    error: str = ""


class RecordedCall(Struct, frozen=True):
    """A call with everything that belongs to it.

    Attributes:
        id: "SEGMENT-NUMBER" in a capture, "" before it is written.
    """

    call: CallRow
    tensors: Sequence[TensorRow] = ()
    items: Sequence[ItemRow] = ()
    wire: Sequence[WireRow] = ()
    id: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of elements and messages."""
        found = 0
        for row in self.tensors:
            if row.data is not None:
                found += len(row.data)
        for message in self.wire:
            found += len(message.body)
        return found

    def crc32(self) -> int:
        """Return the checksum of all rows."""
        rows = (map(astuple, each) for each in (self.tensors, self.items, self.wire))
        return checksum(astuple(self.call), *rows)

    @property
    def is_forwarded(self) -> bool:
        """Whether a server got the call as it came, and nobody here has read it."""
        return self.call.kind == FORWARDED

    @property
    def is_refused(self) -> bool:
        """Whether the gateway itself refused the call: no server has."""
        if not self.call.kind:
            return True
        return '"refused"' in self.call.details and "refused" in parse_details(self.call.details)

    @property
    def missing(self) -> str:
        """Why the call cannot be sent again; "" if it can."""
        if not self.call.kind:
            return REFUSED
        if self.is_forwarded:
            return f"forwarded: only a server of {self.call.protocol} reads it"
        inputs = [each for each in self.tensors if each.side == INPUT]
        if any(each.form == ABSENT for each in inputs):
            return "inputs were not in the message"
        if any(each.data is None and (each.size or each.form in (RAW, UNTYPED)) for each in inputs):
            return "payload not recorded"
        if self.call.parameters is None and parse_details(self.call.details).get("has_parameters"):
            return "parameters not recorded"
        return ""

    def request(self) -> InferRequest:
        """Return the call, without a deadline.

        Raises:
            GatewayError: A row has values that no call has.
        """
        try:
            return self._request()
        except INVALID_VALUES as error:
            raise MalformedMessage(f"recorded call {self.id} is malformed: {error}") from error

    def _request(self) -> InferRequest:
        details = parse_details(self.call.details)
        sequence = None if self.call.sequence is None else parse_sequence(self.call.sequence)
        inputs = [each for each in self.tensors if each.side == INPUT]
        outputs = [RequestedOutput(name, classes) for name, classes in details.get("outputs", ())]
        needs, size = parse_needs(self.call.needs), details.get("batch_size")
        found = tuple(tensors_of(inputs, has_batch="batch_size" not in details))
        if size is None and any(adds_axis(each.data) for each in found):
            # The model of the server says whether it has the axis that this gateway added.
            needs, size = needs | {Need.BATCHING}, 1
        return InferRequest(
            model=ModelRef(self.call.model, self.call.version),
            context=Context(
                protocol=self.call.protocol, request_id=self.call.request_id, needs=needs
            ),
            inputs=found,
            outputs=tuple(outputs),
            id=details.get("id", ""),
            sequence=sequence,
            priority=details.get("priority", 0),
            timeout_us=details.get("timeout_us"),
            parameters=parse_parameters(self.call.parameters),
            flat_members=members_of(details.get("flat_members", {})),
            batch_size=size,
            texts=None if "texts" not in details else convert(details["texts"], TextTask),
        )

    def outputs(self, side: str = OLD) -> tuple[tuple[Tensor, ...], ...] | None:
        """Return the outputs of each reply of a side; None if their elements are not recorded.

        Raises:
            GatewayError: A row has values that no tensor has.
        """
        rows = [each for each in self.tensors if each.side == side]
        if any(each.data is None for each in rows):
            return None
        try:
            return tuple(
                tuple(tensors_of([each for each in rows if each.item == item.item]))
                for item in self.items
            )
        except INVALID_VALUES as error:
            raise MalformedMessage(f"recorded call {self.id} is malformed: {error}") from error

    @property
    def problem(self) -> str:
        """What is wrong with the values of the rows; "" for nothing."""
        call = self.call
        try:
            _ = self.class_outputs, self.error_code
            if not 0 <= call.at_us < _END_OF_TIME_US:
                raise ValueError(f"time {call.at_us} is in no calendar")
            parse_details(call.details)
            parse_needs(call.needs)
            if call.sequence is not None:
                parse_sequence(call.sequence)
            check_parameters(call.parameters)
            for item in self.items:
                _check_item(item)
            for row in self.tensors:
                if row.shape is not None:
                    parse_shape(row.shape)
                if row.datatype is not None:
                    _DATATYPES[row.datatype]
        except INVALID_VALUES as error:
            return f"malformed: {type(error).__name__} {str(error)[:80]}"
        return ""

    @property
    def class_outputs(self) -> frozenset[str]:
        """Names of the outputs that were requested as classes."""
        if '"outputs"' not in self.call.details:
            return frozenset()
        requested = parse_details(self.call.details)["outputs"]
        return frozenset(name for name, classes in requested if classes)

    @property
    def client_id(self) -> str:
        """The id in the body of the client's request; "" for none."""
        return str(parse_details(self.call.details).get("id", ""))

    @property
    def error_code(self) -> ErrorCode | None:
        """The code of the error that ended the call; None for a reply."""
        return None if self.call.code == OK else ErrorCode(self.call.code)


class MissingElements(Exception):
    """Elements to record are not in memory.

    Attributes:
        reason: Where they are: "arriving" or "shared_memory".
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Recordable(Struct):
    """A call while it is served: what the recorder needs of it.

    Attributes:
        started_us: In UTC, microseconds since 1970.
        request: None for a request that could not be read.
        items: Each reply with its time since the start, microseconds.
        code: "ok" or the code of the error that ended the call.
        is_refused: Whether the gateway itself refused it.
    """

    started_us: int
    request: InferRequest | None
    kind: str
    context: Context
    agent: str = ""
    client: str = ""
    route: str = ""
    target: str = ""
    took_us: int = 0
    items: list[tuple[int, InferResponse]] = field(default_factory=list)
    code: str = OK
    error: str = ""
    wire: list[WireRow] = field(default_factory=list)
    is_refused: bool = False


def record_of(source: Recordable, privacy: Privacy, hasher: Hasher | None) -> RecordedCall:
    """Return the rows of a call, without what *privacy* withholds.

    Args:
        source: The call.
        privacy: What to withhold.
        hasher: Hashes elements; the rest is copied. None for rows that go to another process:
            they refer to the elements, and an empty digest marks those that `with_hashes` hashes
            there. Writable arrays are copied.

    Raises:
        InvalidTensor: A tensor cannot be written in wire form.
        MissingElements: Elements are to be read that are not in memory.
    """
    tensors: list[TensorRow] = []
    items = []
    request = source.request
    if request is not None:
        _add_rows(tensors, request.inputs, INPUT, 0, privacy, hasher)
    for number, (at_us, reply) in enumerate(source.items):
        _add_rows(tensors, outputs_of(reply), OLD, number, privacy, hasher)
        failure = failure_of(reply)
        code = OK if failure is None else failure.code.value
        parameters = _parameters_text(reply.parameters) if privacy.parameters else None
        items.append(ItemRow(number, at_us, code, parameters))
    return RecordedCall(_call_row(source, privacy), tensors, items, source.wire)


def with_hashes(record: RecordedCall, hasher: Hasher) -> RecordedCall:
    """Return a record that `record_of` made without a hasher, with the hashes."""
    if all(row.digest is None for row in record.tensors):
        return record

    def hashed(row: TensorRow) -> TensorRow:
        if row.data is None or row.digest is None:
            return row
        return replace(row, digest=hasher(memoryview(row.data)), data=None)

    return RecordedCall(record.call, list(map(hashed, record.tensors)), record.items, record.wire)


def outputs_of(reply: InferResponse) -> tuple[Tensor, ...]:
    """Return the outputs of a reply, with the batch axis in every shape.

    A client with a separate batch size cannot tell items of shape [] from items of shape [1].
    """
    size = reply.batch_size
    if size is None:
        return reply.outputs
    return tuple(
        Tensor(each.name, each.datatype, (size, *(each.shape or (1,))), each.data, each.parameters)
        if each.shape is not None
        else each
        for each in reply.outputs
    )


def item_rows(items: Iterable[Iterable[Tensor]], side: str) -> list[TensorRow]:
    """Return the rows of the outputs of replies, with their elements, which are copied.

    Raises:
        InvalidTensor: The elements cannot be written in wire form.
    """
    return [
        _tensor_row(each, side, number, place)
        for number, outputs in enumerate(items)
        for place, each in enumerate(outputs)
    ]


def _tensor_row(tensor: Tensor, side: str, item: int, place: int) -> TensorRow:
    datatype, shape = _type_texts(tensor.datatype, tensor.shape)
    return TensorRow(
        side=side,
        item=item,
        place=place,
        name=tensor.name,
        datatype=datatype,
        shape=shape,
        form=RAW,
        declared=None,
        size=tensor.nbytes,
        data=bytes(as_raw(tensor)),
    )


def _parameters_text(parameters: Parameters) -> str:
    return json.dumps(dict(parameters)) if parameters else "{}"


@lru_cache(4096)  # calls repeat them
def _type_texts(
    datatype: Datatype | None, shape: tuple[int, ...] | None
) -> tuple[str | None, str | None]:
    return (
        None if datatype is None else datatype.name,
        None if shape is None else json.dumps(shape),
    )


@lru_cache(256)
def _needs_text(needs: frozenset[Need]) -> str:
    return json.dumps(sorted(each.value for each in needs))


def _call_row(source: Recordable, privacy: Privacy) -> CallRow:
    context, request = source.context, source.request
    model = ModelRef("") if request is None or request.model is None else request.model
    sequence = None if request is None else request.sequence
    details = details_of(request, context, privacy)
    if source.is_refused:
        details["refused"] = True
    if source.kind in {"", FORWARDED} and context.origin is not None:
        details["path"] = path_of(context.origin.wire)[:_PATH]
    return CallRow(
        at_us=source.started_us,
        took_us=source.took_us,
        request_id=context.request_id,
        kind=source.kind,
        client=source.client,
        agent=source.agent,
        protocol=context.protocol,
        needs=_needs_text(context.needs),
        route=source.route,
        target=source.target,
        model=model.name,
        version=model.version,
        sequence=None
        if sequence is None
        else json.dumps([sequence.id, sequence.start, sequence.end]),
        parameters=_parameters_text(request.parameters)
        if request is not None and privacy.parameters
        else None,
        details=json.dumps(details) if details else "{}",
        code=source.code,
        error=source.error if privacy.payload == "full" else "",
    )


def _check_item(item: ItemRow) -> None:
    """Check the values of a reply.

    Raises:
        ValueError: One is invalid.
    """
    check_parameters(item.parameters)
    if item.code != OK:
        ErrorCode(item.code)


_Content: TypeAlias = tuple[str, int | None, int, bytes | None, bytes | None]


def _add_rows(
    rows: list[TensorRow],
    tensors: Sequence[Tensor],
    side: str,
    item: int,
    privacy: Privacy,
    hasher: Hasher | None,
) -> None:
    is_plain = hasher is None and privacy.payload == "full" and not privacy.tensors
    for place, tensor in enumerate(tensors):
        datatype, shape = _type_texts(tensor.datatype, tensor.shape)
        data = tensor.data
        if is_plain and type(data) is RawData:  # the usual case, at half of the cost
            size = len(view := cast("bytes", data.view))
            row = TensorRow(
                side, item, place, tensor.name, datatype, shape, RAW, None, size, None, view
            )
        else:
            content = _content_of(tensor, tensors, privacy, hasher)
            row = TensorRow(side, item, place, tensor.name, datatype, shape, *content)
        rows.append(row)


def _content_of(
    tensor: Tensor, tensors: Sequence[Tensor], privacy: Privacy, hasher: Hasher | None
) -> _Content:
    """Return what a row has of one of *tensors*, after its name, datatype and shape."""
    form, payload = _FORMS.get(type(tensor.data), RAW), privacy.of_tensor(tensor.name)
    declared = None
    if form == ABSENT:
        if privacy.reads_elements and not privacy.can_lack_elements:
            raise MissingElements(_MISSING[type(tensor.data)])
        if privacy.reads_elements and isinstance(tensor.data, JsonItemsData):
            text = b"[%b]" % b",".join(tensor.data.values)
            return JSON, None, len(text), None, text
        payload = "none"
    if isinstance(tensor.data, UntypedData):
        payload = untyped_payload(tensor.name, privacy.of_tensor, privacy.tensors)
    elif isinstance(tensor.data, SlicedData):
        payload, declared = _payload_of_slices(tensors, privacy), tensor.data.declared_bytes
    if payload == "none":
        return form, declared, tensor.nbytes, None, None
    view = _elements_of(tensor)
    if hasher is None:
        # A model may write to its array again; received bytes never change.
        content = bytes(view) if _is_writable(tensor) else cast("bytes", view)
        return form, declared, view.nbytes, b"" if payload == "hash" else None, content
    if payload == "hash":
        return form, declared, view.nbytes, hasher(view), None
    return form, declared, view.nbytes, None, bytes(view)


def _payload_of_slices(tensors: Sequence[Tensor], privacy: Privacy) -> Payload:
    """Return what is written of slices: the buffer of one contains the elements of all."""
    names = [each.name for each in tensors if type(each.data) is SlicedData]
    return least_payload(map(privacy.of_tensor, names))


_FORMS: Final = {
    SlicedData: SLICED,
    UntypedData: UNTYPED,
    SharedMemoryData: ABSENT,
    StreamedData: ABSENT,
    JsonItemsData: ABSENT,
}
_MISSING: Final[dict[type, str]] = {
    SharedMemoryData: "shared_memory",
    StreamedData: "arriving",
    JsonItemsData: "not_text",
}


def _elements_of(tensor: Tensor) -> memoryview:
    data = tensor.data
    if type(data) is SlicedData:
        return memoryview(b"") if data.index else data.whole
    if type(data) is UntypedData:
        return memoryview(untyped_text(data))
    return as_raw(tensor)


def _is_writable(tensor: Tensor) -> bool:
    return type(tensor.data) is ArrayData and bool(tensor.data.array.flags.writeable)


def tensors_of(rows: Sequence[TensorRow], *, has_batch: bool = True) -> Iterable[Tensor]:
    """Yield the tensors of *rows* in their order; their elements are recorded.

    Args:
        rows: The rows of one side and one reply.
        has_batch: Whether shapes include the batch axis.

    Raises:
        InvalidTensor: Elements do not match datatype and shape.
        ValueError: A value is out of range.
    """
    whole = memoryview(b"")
    if [row.place for row in rows] != list(range(len(rows))):
        rows = sorted(rows, key=lambda each: each.place)
    for index, row in enumerate(rows):
        datatype = None if row.datatype is None else _DATATYPES[row.datatype]
        shape = None if row.shape is None else parse_shape(row.shape)
        view = memoryview(row.data or b"")
        if row.form == SLICED:
            whole = view if not index else whole
            yield Tensor(row.name, datatype, shape, SlicedData(whole, index, row.declared))
        elif row.form == UNTYPED:
            data = untyped_data(row.data or b"", row.size)
            yield Tensor(row.name, datatype, shape, data)
        elif datatype is None or shape is None or not has_batch:
            yield Tensor(row.name, datatype, shape, RawData(view))
        else:
            yield raw_tensor(row.name, datatype, shape, view)


_DATATYPES: Final = dict(Datatype.__members__)  # Datatype[...] takes four times as long


def error_of(code: str, text: str) -> GatewayError | None:
    """Return the error that a recorded code is; None for "ok"."""
    return None if code == OK else ERROR_CLASSES[ErrorCode(code)](text or "recorded error")


_END_OF_TIME_US: Final = 253_402_300_800_000_000
"""The begin of the year 10000, which no calendar of Python has."""
