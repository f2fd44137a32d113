"""A SeldonMessage without its carrier: the form of its payload, its meta, and the outputs.

Source: docs/protocols/seldon.md, "3. Messages" and "5. Responses".
"""

import enum
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
from msgspec import Struct, field

from gateway.api.protocol import Limitations
from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import JsonParameter, Parameter
from gateway.ir.errors import InvalidOutput, InvalidRequest, Unsupported
from gateway.ir.limits import MessageLimits, check_count, check_name
from gateway.ir.tensors.data import ArrayData, JsonLayout, UntypedData, UntypedRules
from gateway.ir.tensors.datatypes import Datatype, fp32_of_bf16
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, as_items, as_numpy
from gateway.ir.values.doubles import MOST_EXACT
from gateway.protocols.seldon.declarations import NO_DECLARATION, SeldonForm
from gateway.protocols.seldon.options import AUTO, TEXT, SeldonOptions
from gateway.wire.rows.tables import show

_TABLE_RANK: Final = 2
_NAMES: Final = 16
_MOST_NUMBERED: Final = 1 << 16
"""More names would have more bytes than most requests."""


class PayloadKind(enum.Enum):
    """The form of a payload, which that of the answer follows."""

    TENSOR = "tensor"
    NDARRAY = "ndarray"
    TFTENSOR = "tftensor"
    TEXT = "strData"
    BYTES = "binData"
    JSON = "jsonData"

    __hash__ = object.__hash__


class Payload(NamedTuple):
    """What a message carries.

    Attributes:
        kind: Its form.
        tensors: Its tensors, mostly one without a name.
    """

    kind: PayloadKind
    tensors: tuple[Tensor, ...]


class Meta(Struct, frozen=True):
    """The meta of a message, as far as it has a meaning here.

    Attributes:
        puid: The id of the request; "" for none.
        tags: The tags; lists and objects are JSON.
    """

    puid: str = ""
    tags: Mapping[str, Parameter] = field(default_factory=dict)


NO_META: Final = Meta()


class MessageForm(Struct, frozen=True):
    """What the answer to one request depends on.

    Attributes:
        kind: The form of its payload.
        meta: Its meta.
        declared: What the configuration declares of its model.
    """

    kind: PayloadKind = PayloadKind.TENSOR
    meta: Meta = NO_META
    declared: SeldonForm = NO_DECLARATION

    def of_model(
        self, declared: Mapping[str, SeldonForm], call: InferRequest, reply: InferResponse
    ) -> "MessageForm":
        """Return the same with the declaration of the model that only its reply names."""
        if call.model is not None or reply.model.name not in declared:
            return self
        return MessageForm(self.kind, self.meta, declared[reply.model.name])


def element_tensor(member: str, value: Any, rules: UntypedRules, size_bytes: int) -> Tensor:
    """Return the only element of a message as a tensor of the shape that the model declares.

    Args:
        member: Where it stands.
        value: A text, or an object with `b64`.
        rules: What the protocol allows.
        size_bytes: Bytes of the message.
    """
    data = UntypedData(value, JsonLayout.ELEMENT, member, rules, size_bytes=size_bytes)
    return Tensor("", None, None, data)


def meta_of(value: Any, limits: MessageLimits) -> Meta:
    """Return the meta of a message of JSON; members without a meaning here are not read.

    Raises:
        InvalidRequest: It is no object, or puid and tags are wrong.
        TooLarge: A limit is exceeded.
    """
    if value is None:
        return NO_META
    if type(value) is not dict:
        raise InvalidRequest(f"meta is {show(value)}: expected an object")
    puid, tags = value.get("puid"), value.get("tags")
    if puid is not None and not isinstance(puid, str):
        raise InvalidRequest(f"meta.puid is {show(puid)}: expected text")
    if tags is not None and type(tags) is not dict:
        raise InvalidRequest(f"meta.tags is {show(tags)}: expected an object")
    return Meta(checked_puid(puid or "", limits), read_tags(tags or {}, limits))


def checked_puid(puid: str, limits: MessageLimits) -> str:
    """Return the id of a request.

    Raises:
        InvalidRequest, TooLarge: It has control characters, or is too long.
    """
    if puid:
        check_name("meta.puid", puid, limits.name_bytes, "name_bytes")
    return puid


def read_tags(tags: Mapping[str, Any], limits: MessageLimits) -> Mapping[str, Parameter]:
    """Return tags as parameters; null is left out, lists and objects are JSON.

    Raises:
        InvalidRequest, TooLarge: A name is not allowed, or there are too many.
    """
    check_count("tags", len(tags), limits.parameters, "parameters")
    found: dict[str, Parameter] = {}
    for name, value in tags.items():
        check_name("name of a tag", name, limits.name_bytes, "name_bytes")
        if isinstance(value, str | bool | int | float):
            found[name] = value
        elif value is not None:
            found[name] = JsonParameter(orjson.dumps(value).decode())
    return found


def answer_tags(form: MessageForm, reply: InferResponse) -> dict[str, Parameter]:
    """Return the tags of an answer: those of its request, and the model's parameters."""
    return {**form.meta.tags, **reply.parameters}


def requested_outputs(declared: SeldonForm) -> tuple[RequestedOutput, ...]:
    """Return the output that answers, if one is declared."""
    return (RequestedOutput(declared.output),) if declared.output else ()


def answering_output(reply: InferResponse, declared: SeldonForm) -> Tensor:
    """Return the output that answers.

    Raises:
        Unsupported: There are several, and none is declared.
        InvalidOutput: There is none.
    """
    outputs = reply.outputs
    if declared.output:
        for each in outputs:
            if each.name == declared.output:
                return each
        raise InvalidOutput(f"the model has no output {declared.output!r}")
    if len(outputs) == 1:
        return outputs[0]
    if not outputs:
        raise InvalidOutput("the model has no outputs: expected one")
    names = ", ".join([repr(each.name) for each in outputs[:8]])
    raise Unsupported(
        f"the model has the outputs {names}, and a SeldonMessage carries one array: expected "
        "models.NAME.protocols.seldon.output or json_outputs"
    )


def answer_kind(tensor: Tensor, request_kind: PayloadKind) -> PayloadKind:
    """Return the form of an answer to a payload of the form *request_kind*."""
    datatype = tensor.datatype
    is_data = request_kind in (PayloadKind.TENSOR, PayloadKind.NDARRAY, PayloadKind.TFTENSOR)
    if request_kind is PayloadKind.TFTENSOR:
        return request_kind
    if datatype is Datatype.BYTES:
        return request_kind if not is_data and tensor.shape in _SINGLE else PayloadKind.NDARRAY
    if datatype is Datatype.BOOL:
        return PayloadKind.NDARRAY
    return request_kind if is_data else PayloadKind.TENSOR


_SINGLE: Final = frozenset([(1,) * rank for rank in range(8)])


def only_text(tensor: Tensor) -> str | None:
    """Return the only element as text; None where it is not UTF-8."""
    try:
        return str(as_items(tensor)[0], "utf-8")
    except UnicodeDecodeError:
        return None


@lru_cache(_NAMES)
def _numbered(count: int) -> tuple[str, ...]:
    return tuple([f"t:{at}" for at in range(count)])


def column_names(tensor: Tensor, declared: SeldonForm) -> tuple[str, ...]:
    """Return the names of the columns of an answer: those declared, or numbers of not too many."""
    shape = tensor.shape or ()
    if len(shape) < _TABLE_RANK:
        return declared.names if shape[:1] == (len(declared.names),) else ()
    if declared.names and len(declared.names) == shape[1]:
        return declared.names
    return _numbered(shape[1]) if shape[1] <= _MOST_NUMBERED else ()


def exact_doubles(tensor: Tensor, what: str) -> npt.NDArray[Any]:
    """Return numbers as doubles.

    Args:
        tensor: With a datatype of numbers.
        what: "output" or "input", for errors.

    Raises:
        InvalidOutput: An integer is beyond 2**53.
    """
    array = as_numpy(tensor)
    if tensor.datatype is Datatype.BF16:
        array = fp32_of_bf16(array)
    if array.dtype.kind in "iu" and array.dtype.itemsize == np.dtype(np.int64).itemsize:
        wrong = array > MOST_EXACT if array.dtype.kind == "u" else _beyond(array)
        if wrong.any():
            index = int(np.argmax(wrong.reshape(-1)))
            raise InvalidOutput(
                f"{what} {tensor.name!r} has {array.reshape(-1)[index]} at index {index}: expected "
                "at most 2**53, beyond which doubles are not exact"
            )
    return array.astype("<f8", copy=False)


def is_exact_as_doubles(tensor: Tensor) -> bool:
    """Return whether every number of a tensor is a double."""
    try:
        exact_doubles(tensor, "input")
    except InvalidOutput:
        return False
    return True


def _beyond(array: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = (array > MOST_EXACT) | (array < -MOST_EXACT)
    return found


def flat_doubles(tensor: Tensor, what: str) -> Tensor:
    """Return a tensor's numbers as one list of doubles; integers stay integers.

    Raises:
        InvalidOutput: An integer is beyond 2**53.
    """
    doubles = exact_doubles(tensor, what).reshape(-1)
    datatype = tensor.datatype
    if datatype is not None and datatype.is_integer:
        array = as_numpy(tensor).reshape(-1)
        return Tensor(tensor.name, datatype, array.shape, ArrayData(array))
    return Tensor(tensor.name, Datatype.FP64, doubles.shape, ArrayData(doubles))


LIMITATIONS: Final = Limitations(
    title="Seldon", sequences=True, classes=True, shared_memory=True, versions=True
)


def check_one_array(call: InferRequest) -> None:
    """Refuse a call with several inputs.

    Raises:
        Unsupported: The call has another number of inputs than one.
    """
    if len(call.inputs) != 1:
        names = ", ".join([repr(each.name) for each in call.inputs[:8]]) or "none"
        raise Unsupported(
            f"the call has the inputs {names}, and a SeldonMessage carries one array",
            model=call.model,
        )


def payload_kind(tensor: Tensor, options: SeldonOptions, *, has_integers: bool) -> PayloadKind:
    """Return the form in which a tensor is sent.

    Args:
        tensor: The only input.
        options: The options of the upstream, with `form`.
        has_integers: An `ndarray` has integers of any size, as in JSON.
    """
    if options.form == TEXT:
        return PayloadKind.TEXT
    if options.form != AUTO:
        return PayloadKind(options.form)
    if tensor.datatype in (Datatype.BYTES, Datatype.BOOL):
        return PayloadKind.NDARRAY
    if has_integers and not is_exact_as_doubles(tensor):
        return PayloadKind.NDARRAY
    return PayloadKind.TENSOR


def only_element(tensor: Tensor) -> bytes:
    """Return the only element of an input of BYTES.

    Raises:
        Unsupported: It has another number of elements, or another datatype.
    """
    items = as_items(tensor) if tensor.datatype is Datatype.BYTES else ()
    if len(items) != 1:
        raise Unsupported(
            f"input {tensor.name!r} is no single element of BYTES: strData and binData carry one "
            "(options: {seldon: {form: text}})"
        )
    return bytes(items[0])


def own_tags(meta: Meta, call: InferRequest) -> dict[str, Parameter]:
    """Return the tags of a server's answer, without those of the request, which it sends back."""
    sent = call.parameters
    return {name: value for name, value in meta.tags.items() if sent.get(name) != value}
