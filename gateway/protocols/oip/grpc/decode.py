"""Reads inference messages of Open Inference over gRPC into the tensor IR.

This module assigns data to tensors, which are views of the message.  `scan.py` finds the fields,
`typed_contents.py` reads typed contents.

Where the scan fails, the protobuf library parses the message, and either refuses it or returns it
in its canonical form, which is scanned again.  Only a message with too many fields is refused
without the library, which creates an object for each.

Source: Open Inference Protocol, gRPC API; docs/protocols/open-inference.md, "5. Tensors over gRPC".
"""

from collections.abc import Callable, Mapping, Sequence

from google.protobuf.message import Message

from gateway.accelerator import accelerated
from gateway.ir.errors import InvalidTensor, MalformedMessage, TooLarge
from gateway.ir.limits import MessageLimits, check_element_size
from gateway.ir.tensors.data import RawData, SharedMemoryData, TensorData, split_items
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.expected_inputs import compare_inputs, is_comparing
from gateway.ir.tensors.items import longest_of
from gateway.ir.tensors.tensor import Tensor, raw_tensor
from gateway.ir.work import OBJECT_BYTE, charge
from gateway.protocols.oip.grpc.scan import (
    RAW_INPUTS,
    RAW_OUTPUTS,
    CachedMessages,
    Columns,
    InferMessage,
    InferMessageScanner,
    TensorDescription,
)
from gateway.protocols.oip.grpc.typed_contents import typed_data
from gateway.protocols.oip.shared_memory import KEYS, located
from gateway.schema.open_inference_pb2 import ModelInferRequest, ModelInferResponse
from gateway.wire.protobuf.library import parse
from gateway.wire.protobuf.wire_format import FieldCounter, TooManyFields, WireError

Read = tuple[InferMessage, str, tuple[Tensor, ...]]
"""A parsed message, its id, and its tensors with their data."""

EMPTY = memoryview(b"")
# A library that keeps the interpreter's lock reads what the scan does not.
_LIBRARY_BYTES = 8 << 20
_FEW_TENSORS = 64
# Work of one tensor with typed contents, in items.
_TYPED_TENSOR = 40
NOWHERE: Mapping[str, SharedMemoryData] = {}


class InferReader:
    """Reads inference messages.

    Args:
        limits: The limits of a message.

    Attributes:
        plain_response: Reads most responses; see `plain_reader`.
    """

    def __init__(self, limits: MessageLimits) -> None:
        self._limits = limits
        self._scanner = InferMessageScanner(limits)
        most = limits.name_bytes
        self._plain_request = plain_reader(self._scanner.cached(RAW_INPUTS), most)
        self.plain_response = plain_reader(self._scanner.cached(RAW_OUTPUTS), most)

    def request(self, view: memoryview, rewritten: bool = False) -> Read:
        """Read a ModelInferRequest; tensors share *view*'s memory.

        Args:
            view: The message.
            rewritten: The library wrote it, because the scan failed before.

        Raises:
            MalformedMessage: The bytes are not such a message.
            InvalidTensor: A tensor's data, datatype and shape contradict each other; contents are
                both raw and typed, or too few or too many.
            InvalidRequest: A name or parameter is not allowed.
            TooLarge: A limit is exceeded.
        """
        plain = self._plain_request(view)
        if plain is not None:
            return plain
        counter = FieldCounter()
        try:
            message, request_id, raws = self._scanner.scan(view, RAW_INPUTS, counter)
            if message.columns is not None:
                return message, request_id, _plain(message.columns, raws)
            if is_comparing():
                compare_inputs(message.model, [one.name for one in message.tensors])
            return message, request_id, self._inputs(message.tensors, raws, counter)
        except WireError as error:
            _check_for_library(error, view, ModelInferRequest, rewritten=rewritten)
        return self.request(_by_library(view, ModelInferRequest), rewritten=True)

    def response(
        self,
        view: memoryview,
        places: Mapping[str, SharedMemoryData] = NOWHERE,
        rewritten: bool = False,
    ) -> Read:
        """Read a ModelInferResponse; tensors share *view*'s memory.

        Outputs that were requested in shared memory have no data in the message.

        Raises as `request`, but raw and typed contents may be mixed, as servers do.
        """
        plain = None if places else self.plain_response(view)
        if plain is not None:
            return plain
        counter = FieldCounter()
        try:
            message, reply_id, raws = self._scanner.scan(view, RAW_OUTPUTS, counter)
            if message.columns is not None and not places:
                return message, reply_id, _plain(message.columns, raws)
            return message, reply_id, self._outputs(message.tensors, raws, places, counter)
        except WireError as error:
            _check_for_library(error, view, ModelInferResponse, rewritten=rewritten)
        return self.response(_by_library(view, ModelInferResponse), places, rewritten=True)

    def _inputs(
        self, found: Sequence[TensorDescription], raws: Sequence[memoryview], counter: FieldCounter
    ) -> tuple[Tensor, ...]:
        for one in found:
            if one.parameters and not KEYS.isdisjoint(one.parameters):
                return self._with_shared(found, raws, counter)
        if not raws:
            if len(found) > _FEW_TENSORS:
                charge(len(found) * _TYPED_TENSOR)
            return tuple([self._typed_input(one, counter) for one in found])
        if len(raws) != len(found):
            # The error names a tensor with contents first, because that is the cause.
            for one in found:
                self._check_raw_input(one, len(raws), counter)
            raise _wrong_raw_count(len(raws), len(found), "tensors")
        tensors = []
        for one, raw in zip(found, raws, strict=True):
            self._check_raw_input(one, len(raws), counter)
            tensors.append(_raw(one, raw, self._limits))
        return tuple(tensors)

    def _with_shared(
        self, found: Sequence[TensorDescription], raws: Sequence[memoryview], counter: FieldCounter
    ) -> tuple[Tensor, ...]:
        """Return the inputs, some in shared memory, which have no raw contents."""
        remaining = iter(raws)
        tensors = []
        for one in found:
            tensor = located(_tensor(one, RawData(EMPTY)), self._limits)
            if tensor is not None:
                if len(one.contents):
                    raise InvalidTensor(
                        f"tensor {one.name!r} has contents and is in shared memory: "
                        "expected one of the two"
                    )
            elif raws:
                raw = next(remaining, None)
                if raw is None:
                    raise _wrong_raw_count(len(raws), len(found), "tensors, some in shared memory")
                self._check_raw_input(one, len(raws), counter)
                tensor = _raw(one, raw, self._limits)
            else:
                tensor = self._typed_input(one, counter)
            tensors.append(tensor)
        if next(remaining, None) is not None:
            raise _wrong_raw_count(len(raws), len(found), "tensors, some in shared memory")
        return tuple(tensors)

    def _typed_input(self, one: TensorDescription, counter: FieldCounter) -> Tensor:
        data = _data(one, self._limits, counter)
        if data is not None:
            return _tensor(one, data)
        if one.count:
            raise InvalidTensor(
                f"tensor {one.name!r} has neither contents nor raw contents: "
                f"expected {one.count} elements for shape {list(one.shape)}"
            )
        return _tensor(one, RawData(EMPTY))

    def _check_raw_input(self, one: TensorDescription, raws: int, counter: FieldCounter) -> None:
        if len(one.contents) and _data(one, self._limits, counter) is not None:
            raise InvalidTensor(
                f"tensor {one.name!r} has contents, and the message has {raws} raw contents: "
                "expected one of the two"
            )

    def _outputs(
        self,
        described: Sequence[TensorDescription],
        raws: Sequence[memoryview],
        places: Mapping[str, SharedMemoryData],
        counter: FieldCounter,
    ) -> tuple[Tensor, ...]:
        limits = self._limits
        # Raw contents belong to the outputs without typed ones (MLServer adds an empty message of
        # contents to raw ones), in order; those of outputs without elements may be missing.
        found = [
            (one, _data(one, limits, counter) if len(one.contents) else None) for one in described
        ]
        bare = [one for one, data in found if data is None]
        if len(raws) != len(bare):
            bare = [one for one in bare if one.count and one.name not in places]
            if len(raws) != len(bare):
                raise _wrong_raw_count(len(raws), len(bare), "outputs without contents")
        raw_of = dict(zip([one.name for one in bare], raws, strict=True))
        return tuple(
            [
                _shared_tensor(one, places[one.name])
                if one.name in places
                else _raw(one, raw_of.get(one.name, EMPTY), limits)
                if data is None
                else _tensor(one, data)
                for one, data in found
            ]
        )


PlainReader = Callable[[memoryview], Read | None]


@accelerated
def plain_reader(cached: CachedMessages, id_bytes: int) -> PlainReader:
    """Return a function that reads most messages: cached ones whose tensors need no check.

    It returns None for another message, and for an id that must be checked.

    Args:
        cached: The function that `InferMessageScanner` has.
        id_bytes: The largest size of an id.
    """

    def read(view: memoryview, /) -> Read | None:
        found = cached(view)
        if found is None:
            return None
        (message, has_id, columns), raws = found
        if columns is None:
            return None
        request_id = ""
        if has_id:
            own = bytes(raws[0])
            if len(own) > id_bytes or not own.isascii() or not own.decode().isprintable():
                return None
            request_id, raws = own.decode(), raws[1:]
        return message, request_id, _plain(columns, raws)

    return read


def _check_for_library(
    error: WireError, view: memoryview, kind: type[Message], *, rewritten: bool
) -> None:
    """Raise the error of a message that the library need not parse (again)."""
    if rewritten:
        raise MalformedMessage(f"message is not a usable {kind.__name__}: {error}") from error
    if isinstance(error, TooManyFields):
        raise TooLarge(f"{error}; repeated numbers are to be packed") from error
    if len(view) > _LIBRARY_BYTES:
        raise TooLarge(
            f"message of {len(view)} bytes is not in the form that protobuf's writers give it: "
            f"{error}; at most {_LIBRARY_BYTES} bytes are read then"
        ) from error
    charge(len(view) * OBJECT_BYTE)


def _by_library(view: memoryview, kind: type[Message]) -> memoryview:
    """Return the same message without repeated single fields and unknown fields; copies."""
    message = parse(view, kind)
    message.DiscardUnknownFields()
    return memoryview(message.SerializeToString())


def _wrong_raw_count(found: int, needed: int, what: str) -> InvalidTensor:
    return InvalidTensor(f"message has {found} raw contents for {needed} {what}")


def _data(
    described: TensorDescription, limits: MessageLimits, counter: FieldCounter
) -> TensorData | None:
    name, datatype, count = described.name, described.datatype, described.count
    return typed_data(name, datatype, count, described.contents, limits, counter)


def _tensor(described: TensorDescription, data: TensorData) -> Tensor:
    return Tensor(described.name, described.datatype, described.shape, data, described.parameters)


def _plain(columns: Columns, raws: tuple[memoryview, ...]) -> tuple[Tensor, ...]:
    """Return the tensors of most messages, whose raw contents have the right sizes."""
    names, datatypes, shapes, parameters = columns
    return tuple(map(Tensor, names, datatypes, shapes, map(RawData, raws), parameters))


def _shared_tensor(described: TensorDescription, place: SharedMemoryData) -> Tensor:
    """Return an output in its requested place; a server repeats the place."""
    parameters = {key: value for key, value in described.parameters.items() if key not in KEYS}
    return Tensor(described.name, described.datatype, described.shape, place, parameters)


def _raw(described: TensorDescription, raw: memoryview, limits: MessageLimits) -> Tensor:
    if len(raw) == described.size_bytes:
        return _tensor(described, RawData(raw))
    datatype = described.datatype
    tensor = raw_tensor(described.name, datatype, described.shape, raw, described.parameters)
    if datatype is Datatype.BYTES and len(raw) > limits.bytes_element_size:
        _, longest = longest_of(split_items(described.name, raw, described.count))
        check_element_size("tensor", described.name, longest, limits)
    return tensor
