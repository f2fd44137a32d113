"""Bytes of clients become inputs, and outputs become bytes, over both carriers.

A body has no tensors: what the configuration declares, or else the model, says what it is.

Source: docs/protocols/torchserve.md, "3. Requests" and "5. Responses".
"""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple

from msgspec.structs import replace  # noqa: TID251  # of data, not of calls

from gateway.api.protocol import Limitations, named_model
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import Need
from gateway.ir.errors import InvalidOutput, InvalidRequest, MalformedMessage, TooLarge, Unsupported
from gateway.ir.limits import MessageLimits, check_name
from gateway.ir.tensors.data import JsonLayout, UntypedData, UntypedRules
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, as_items, as_raw
from gateway.ir.values.nearest import loads_to_odd
from gateway.protocols.torchserve.declarations import (
    BYTES,
    COLUMNS,
    JSON,
    SETTING,
    TEXT,
    VALUE,
    BodyForm,
)
from gateway.wire.http import Buffer
from gateway.wire.rows.read import RowsDocument, RowsReader, read_any, read_rows_document
from gateway.wire.rows.write import RowStyle, columns_json, rows_json, value_json

NEEDS: Final = frozenset({Need.NAMES, Need.DATATYPES, Need.SHAPES})
_OF_ITEMS: Final = NEEDS | {Need.BATCHING}
UPSTREAM_NEEDS: Final = _OF_ITEMS | {Need.ITEMS, Need.UNTYPED}
DATA, BODY = "data", "body"
_INSTANCES, _PREDICTIONS = "instances", "predictions"
_OCTETS: Final = "application/octet-stream"
_STYLE: Final = RowStyle()
# What JSON can begin with, white space, a byte order mark and NaN included.
_JSON_BEGINS: Final = frozenset(b' \t\r\n[{"-0123456789tfnNI\xef')
_EMPTY: Final = memoryview(b"")


class Item(NamedTuple):
    """A body, or one field of a form.

    Attributes:
        view: Its bytes.
        is_json: Its content type says that it is JSON.
        place: Names it in errors.
    """

    view: memoryview
    is_json: bool = False
    place: str = BODY


def reply_needs(form: BodyForm) -> frozenset[Need]:
    """Return what the reply to a request needs."""
    return _OF_ITEMS if form.asks_for_axis else NEEDS


def requested_outputs(form: BodyForm) -> tuple[RequestedOutput, ...]:
    """Return the outputs of a request; none for all."""
    return (RequestedOutput(form.output),) if form.output else ()


class BodyReader:
    """Reads bodies and forms of one listener.

    Args:
        limits: The limits of a message.
    """

    def __init__(self, limits: MessageLimits) -> None:
        self._limits = limits
        self._rules = {
            (adds_axis, has_elements): UntypedRules(
                protocol="torchserve",
                has_whole_floats=True,
                bytes_element_size=limits.bytes_element_size,
                adds_axis=adds_axis,
                has_elements=has_elements,
                setting=SETTING,
            )
            for adds_axis in (False, True)
            for has_elements in (False, True)
        }

    def fields(self, fields: Mapping[str, Item], form: BodyForm) -> tuple[Tensor, ...]:
        """Return the inputs of a form, or of the map of a gRPC message.

        Raises:
            InvalidRequest: No field is the body, or it is wrong.
            TooLarge: A limit is exceeded.
        """
        if form.request == COLUMNS:
            return self._columns(fields, form)
        found = fields.get(DATA) or fields.get(BODY)
        if found is None:
            names = ", ".join([repr(name[:64]) for name in list(fields)[:8]]) or "no fields"
            raise InvalidRequest(
                f"the form has {names}: expected {DATA!r} or {BODY!r}, or one field for each input "
                f"where {SETTING}.request is {COLUMNS}"
            )
        return self.body(found, form)

    def body(self, item: Item, form: BodyForm) -> tuple[Tensor, ...]:
        """Return the inputs of a body.

        Raises:
            MalformedMessage: It is no JSON, or no UTF-8.
            InvalidRequest: It has another form than the one that is declared.
            TooLarge: A limit is exceeded.
        """
        request = form.request
        if request in (BYTES, TEXT):
            if request == TEXT:
                _check_text(item)
            rules = self._rules[form.adds_axis, request == BYTES]
            return (_field(form.input, item, item.view, rules),)
        rules = self._rules[form.adds_axis, False]
        if form.has_envelope:
            document = read_rows_document(item.view, f"the {item.place}", self._limits)
            return _named(RowsReader(document, self._limits, rules).rows(_INSTANCES), form)
        if item.is_json or request in (JSON, COLUMNS):
            return _named(self._json(item, rules), form)
        tensors = self._undecided(item, rules)
        return _named(tensors, form)

    def response(self, item: Item, form: BodyForm) -> tuple[Tensor, ...]:
        """Return the outputs in a response of a server; they wait for the model's datatypes.

        Raises:
            MalformedMessage: It is no JSON, or no UTF-8.
            InvalidRequest: It has another form than the one that is declared.
            TooLarge: A limit is exceeded.
        """
        if form.has_envelope:
            document = read_rows_document(item.view, f"the {item.place}", self._limits)
            found = RowsReader(document, self._limits, self._rules[False, False])
            return _only_row(found.rows(_PREDICTIONS))
        kind = JSON if form.response == VALUE else form.response
        if not item.view.nbytes and kind not in (BYTES, TEXT):
            raise MalformedMessage(
                f"the {item.place} is empty: expected JSON, or a form that the configuration "
                f"declares ({SETTING}.response)"
            )
        own = BodyForm(request=kind, input=form.output, batch=False)
        return self.body(item, own)

    def _columns(self, fields: Mapping[str, Item], form: BodyForm) -> tuple[Tensor, ...]:
        if not fields:
            raise InvalidRequest("the form has no fields: expected one for each input")
        rules = self._rules[form.adds_axis, False]
        tensors = []
        for name, item in fields.items():
            check_name("name of an input", name, self._limits.name_bytes, "name_bytes")
            (tensor, *others) = self._undecided(item, rules)
            if others or tensor.name:
                raise InvalidRequest(f"field {name!r} is an object: expected the value of an input")
            tensors.append(tensor.renamed(name))
        return tuple(tensors)

    def _json(self, item: Item, rules: UntypedRules) -> tuple[Tensor, ...]:
        value = read_any(item.view, f"the {item.place}", self._limits)
        reread = partial(_reread, item)
        document = RowsDocument({item.place: value}, item.view, reread)
        return RowsReader(document, self._limits, rules).columns(item.place)

    def _undecided(self, item: Item, rules: UntypedRules) -> tuple[Tensor, ...]:
        """Return bytes of no type: the JSON in them, and the bytes for an input of BYTES."""
        view = item.view
        if not view.nbytes or view[0] not in _JSON_BEGINS:
            return (_field("", item, view, rules),)
        try:
            first, *others = self._json(item, rules)
        except (MalformedMessage, TooLarge):
            return (_field("", item, view, rules),)
        data = first.data
        if isinstance(data, UntypedData):
            layout = data.layout if first.name else JsonLayout.FIELD
            data = replace(data, raw=view, layout=layout)
        return (Tensor(first.name, None, None, data), *others)


def _field(name: str, item: Item, view: memoryview, rules: UntypedRules) -> Tensor:
    """Return bytes that are no JSON, or that are not read as JSON."""
    layout, size = JsonLayout.FIELD, view.nbytes
    data = UntypedData(view, layout, item.place, rules, size_bytes=size, raw=view)
    return Tensor(name, None, None, data)


def _named(tensors: tuple[Tensor, ...], form: BodyForm) -> tuple[Tensor, ...]:
    """Return *tensors*; a body that does not name its input is the declared one."""
    if not form.input or len(tensors) > 1 or tensors[0].name:
        return tensors
    return (tensors[0].renamed(form.input),)


def _check_text(item: Item) -> None:
    try:
        str(item.view, "utf-8")
    except UnicodeDecodeError as error:
        raise MalformedMessage(
            f"the {item.place} is not UTF-8: {error.reason} at byte {error.start}; expected text "
            f"({SETTING}.request)"
        ) from error


def _only_row(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the only row of an envelope."""
    found = []
    for tensor in tensors:
        data = tensor.data
        if not isinstance(data, UntypedData) or len(data.value) != 1:
            raise InvalidRequest(f"{_PREDICTIONS} has several rows: expected one, as the request")
        place = f"{data.place}[0]"
        reread = None if data.reread is None else data.reread.then(itemgetter(0))
        data = replace(
            data,
            value=data.value[0],
            place=place,
            layout=JsonLayout.VALUE,
            member="",
            reread=reread,
        )
        found.append(Tensor(tensor.name, None, None, data))
    return tuple(found)


def _reread(item: Item) -> Mapping[str, Any]:
    """Return the members of the document of an item, see `RowsDocument.reread`."""
    return {item.place: loads_to_odd(item.view)}


required_model: Final = partial(named_model, "TorchServe")
LIMITATIONS: Final = Limitations(title="TorchServe", classes=True, shared_memory=True)


def write_request(
    call: InferRequest, form: BodyForm, *, has_type: bool = True
) -> tuple[str, Buffer]:
    """Return content type and body of a request to a server.

    Args:
        call: The request.
        form: What is declared of its model.
        has_type: The carrier has content types. Without one a body for one input of BYTES is read
            as its only element, unless it names the input.

    Raises:
        Unsupported: The inputs do not fit the declared form.
    """
    inputs = call.inputs
    is_plain = not form.request and not form.has_envelope and len(inputs) == 1
    try:
        if is_plain and not has_type and inputs[0].datatype is Datatype.BYTES:
            is_one = len(as_items(inputs[0])) == 1
            return _OCTETS, _element(inputs[0]) if is_one else columns_json(inputs, _STYLE)
        return _request(inputs, form)
    except InvalidOutput as error:
        text = error.message.replace("output", "input", 1).replace(".response", ".request")
        raise Unsupported(text, model=call.model) from error


def _request(inputs: Sequence[Tensor], form: BodyForm) -> tuple[str, Buffer]:
    if form.request in (BYTES, TEXT):
        if len(inputs) != 1:
            names = ", ".join([repr(each.name) for each in inputs[:8]])
            raise Unsupported(
                f"the request has the inputs {names}: expected one for the form {form.request!r} "
                f"({SETTING}.request)"
            )
        if form.request == BYTES:
            return _OCTETS, _bytes(inputs[0])
        return "text/plain; charset=utf-8", _text(inputs[0])
    is_one = len(inputs) == 1
    body = value_json(inputs[0], _STYLE) if is_one else columns_json(inputs, _STYLE)
    return "application/json", b'{"instances":[%b]}' % body if form.has_envelope else body


def write_fields(inputs: Sequence[Tensor]) -> dict[str, Buffer]:
    """Return one field for each input: an element of BYTES, or JSON.

    Raises:
        Unsupported: An element cannot be written.
    """
    found: dict[str, Buffer] = {}
    for tensor in inputs:
        is_bytes = tensor.datatype is Datatype.BYTES
        try:
            found[tensor.name] = _element(tensor) if is_bytes else value_json(tensor, _STYLE)
        except InvalidOutput as error:
            text = error.message.replace("output", "input", 1).replace(".response", ".request")
            raise Unsupported(text) from error
    return found


def write_reply(reply: InferResponse, form: BodyForm, style: RowStyle) -> Buffer:
    """Return the body of the response to an inference.

    Raises:
        Unsupported: The outputs do not fit the declared form, or an element cannot be written.
    """
    try:
        return _written(_items(reply.outputs, form), form, style)
    except InvalidOutput as error:
        raise Unsupported(error.message, model=reply.model) from error


def _items(outputs: Sequence[Tensor], form: BodyForm) -> Sequence[Tensor]:
    """Return outputs without the batch axis that the configuration declares."""
    if not form.adds_axis:
        return outputs
    items = []
    for tensor in outputs:
        shape = tensor.shape or ()
        if shape[:1] != (1,):
            raise InvalidOutput(
                f"output {tensor.name!r} has the shape {list(shape)}: expected a first axis of 1 "
                f"({SETTING}.batch)"
            )
        items.append(Tensor(tensor.name, tensor.datatype, shape[1:], tensor.data))
    return items


def _written(outputs: Sequence[Tensor], form: BodyForm, style: RowStyle) -> Buffer:
    if form.has_envelope:
        return b'{"predictions":%b}' % rows_json(outputs, style)
    kind = form.response or (VALUE if len(outputs) == 1 else JSON)
    if kind == JSON:
        return columns_json(outputs, style)
    if len(outputs) != 1:
        names = ", ".join([repr(each.name) for each in outputs[:8]])
        raise Unsupported(
            f"the model has the outputs {names}: expected one for the response {kind!r} "
            f"({SETTING}.output)"
        )
    tensor = outputs[0]
    if kind == BYTES:
        return _bytes(tensor)
    if kind == TEXT:
        return _text(tensor)
    if tensor.datatype is Datatype.BYTES and tensor.shape == ():
        return _text(tensor)
    return value_json(tensor, style)


def _bytes(tensor: Tensor) -> Buffer:
    """Return the only element of BYTES, or the elements of another tensor in wire form."""
    return _element(tensor) if tensor.datatype is Datatype.BYTES else as_raw(tensor)


def _text(tensor: Tensor) -> Buffer:
    if tensor.datatype is not Datatype.BYTES:
        kind = "" if tensor.datatype is None else tensor.datatype.name
        raise InvalidOutput(
            f"output {tensor.name!r} is {kind}: expected BYTES for text ({SETTING}.response)"
        )
    element = _element(tensor)
    try:
        str(element, "utf-8")
    except UnicodeDecodeError:
        raise InvalidOutput(
            f"output {tensor.name!r} is not UTF-8: expected text, or bytes where "
            f"{SETTING}.response is {BYTES}"
        ) from None
    return element


def _element(tensor: Tensor) -> bytes | memoryview:
    items = as_items(tensor)
    if len(items) != 1:
        raise InvalidOutput(
            f"output {tensor.name!r} has {len(items)} elements: expected one ({SETTING}.response)"
        )
    return items[0]
