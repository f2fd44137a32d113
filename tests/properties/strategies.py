"""Calls and replies of the IR, drawn within what one way of a protocol carries."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
    ServerMetadataRequest,
)
from gateway.ir.context import CallSequence, ModelRef
from gateway.ir.metadata import (
    ModelMetadata,
    ModelState,
    RepositoryEntry,
    ServerMetadata,
    TensorMetadata,
)
from gateway.ir.tensors.data import ArrayData, ItemsData, RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, Shape, Tensor
from tests.properties.carries import Carries
from tests.properties.extensions import EXTENSIONS, extension_calls, extension_replies

INT64_MIN = -(1 << 63)

# No control characters and no lone surrogates: those are refused, which unit tests tell.
TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=6)
NAMES = st.sampled_from(["x", "INPUT0", "Zoë", "a b", "模型", "a/b%2F?#"]) | TEXT.filter(bool)
# Models and versions are not called as steps of a path, nor "stats", which /v2/models has below it.
MODEL_NAMES = NAMES.filter(lambda name: name not in {".", "..", "stats"})
PLAIN_NAMES = st.sampled_from(["x", "INPUT0", "a-b_c.d"])
VERSIONS = st.just("") | st.sampled_from(["1", "v2024-11", "é"])
SHAPES: SearchStrategy[Shape] = st.sampled_from(
    [(), (0,), (1,), (3,), (2, 3), (0, 2), (4, 0, 2), (1, 2, 1, 2, 1)]
) | st.lists(st.integers(0, 3), max_size=5).map(tuple)
# Names that mean something to one protocol or another.
_RESERVED = ("sequence_", "priority", "timeout", "binary_data", "triton_", "classification")
_ALSO_RESERVED = ("shared_memory_", "graphpipe_")
KEYS = TEXT.filter(lambda key: not key.startswith(_RESERVED + _ALSO_RESERVED))


@functools.cache
def parameters(types: frozenset[type], largest: int) -> SearchStrategy[Mapping[str, Any]]:
    """Draw parameters of *types*."""
    values: dict[type, SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.integers(-9, 9) | st.integers(INT64_MIN, largest) | st.just(largest),
        float: st.floats(allow_nan=False, allow_infinity=False),
        str: TEXT,
    }
    drawn = [values[kind] for kind in values if kind in types]
    if not drawn:
        return st.just({})
    return st.dictionaries(KEYS, st.one_of(drawn), max_size=2)


@st.composite
def tensors(
    draw: DrawFn,
    name: str,
    datatypes: frozenset[Datatype],
    carries: Carries,
    *,
    text: bool,
    finite: bool,
) -> Tensor:
    """Draw a tensor, in any form its data can have."""
    datatype = draw(_one_of(datatypes))
    shape = draw(_shapes(carries.least_rank, carries.most_rank))
    count = math.prod(shape)
    tensor_parameters = draw(parameters(carries.tensor_parameters, carries.largest))
    if datatype is Datatype.BYTES:
        one = TEXT.map(str.encode) if text else st.binary(max_size=6)
        items = draw(st.lists(one, min_size=count, max_size=count))
        return Tensor(name, datatype, shape, ItemsData(items), tensor_parameters)
    raw = draw(_elements(datatype, count, finite=finite))
    array = np.frombuffer(raw, datatype.numpy_dtype).reshape(shape)
    form = draw(st.sampled_from(["raw", "array", "reversed", "big-endian"]))
    if form == "raw":
        return Tensor(name, datatype, shape, RawData(memoryview(raw)), tensor_parameters)
    if form == "reversed":
        array = np.flip(np.ascontiguousarray(np.flip(array)))
    elif form == "big-endian":
        array = array.astype(datatype.numpy_dtype.newbyteorder(">"))
    return Tensor(name, datatype, shape, ArrayData(array), tensor_parameters)


# All ones in an infinity or NaN; BF16 is drawn as its bits, since numpy has no such numbers.
_BF16_EXPONENT = 0x7F80


@functools.cache
def _one_of(datatypes: frozenset[Datatype]) -> SearchStrategy[Datatype]:
    return st.sampled_from(sorted(datatypes, key=lambda one: one.name))


@functools.cache
def _shapes(least_rank: int, most_rank: int) -> SearchStrategy[Shape]:
    return SHAPES.filter(lambda shape: least_rank <= len(shape) <= most_rank)


@functools.cache
def _elements(datatype: Datatype, count: int, *, finite: bool) -> SearchStrategy[bytes]:
    """Draw the bytes of so many elements; any bits but in BOOL, and in floats to be finite."""
    if datatype is Datatype.BOOL:
        return st.lists(st.booleans(), min_size=count, max_size=count).map(bytes)
    if datatype is Datatype.BF16 and finite:
        finite_bits = st.integers(0, 0xFFFF).filter(
            lambda bits: bits & _BF16_EXPONENT != _BF16_EXPONENT
        )
        return st.lists(finite_bits, min_size=count, max_size=count).map(
            lambda drawn: np.array(drawn, "<u2").tobytes()
        )
    if datatype.is_float and finite:
        bits = 8 * datatype.size_bytes
        values = st.floats(allow_nan=False, allow_infinity=False, width=bits)  # type: ignore[arg-type]  # 16, 32 or 64
        dtype = datatype.numpy_dtype
        return st.lists(values, min_size=count, max_size=count).map(
            lambda drawn: np.array(drawn, dtype).tobytes()
        )
    size = count * datatype.size_bytes
    return st.binary(min_size=size, max_size=size)


@functools.cache
def _names(least: int, most: int) -> SearchStrategy[list[str]]:
    return st.lists(NAMES, min_size=least, max_size=most, unique=True)


@functools.cache
def _up_to(least: int, most: int) -> SearchStrategy[int]:
    return st.integers(least, most)


@functools.cache
def models(carries: Carries) -> SearchStrategy[ModelRef]:
    """Draw a model and version."""
    if carries.model is not None:
        return st.just(carries.model)
    names = PLAIN_NAMES if carries.plain_models else MODEL_NAMES
    return st.builds(ModelRef, names, VERSIONS if carries.versions else st.just(""))


@functools.cache
def _ids(carries: Carries) -> SearchStrategy[str]:
    drawn: list[SearchStrategy[str]] = []
    if str in carries.ids:
        drawn.append(TEXT.filter(bool))
    if int in carries.ids:
        drawn.append(st.integers(1, carries.largest).map(str))
    if not carries.needs_id or not drawn:
        drawn.append(st.just(""))
    return st.one_of(drawn)


@functools.cache
def _sequences(carries: Carries) -> SearchStrategy[CallSequence | None]:
    drawn: list[SearchStrategy[Any]] = []
    if str in carries.sequences:
        drawn.append(TEXT.filter(bool))
    if int in carries.sequences:
        drawn.append(st.integers(1, carries.largest))
    if not drawn:
        return st.none()
    return st.none() | st.builds(CallSequence, st.one_of(drawn), st.booleans(), st.booleans())


@st.composite
def inferences(draw: DrawFn, carries: Carries) -> InferRequest:
    """Draw an inference request."""
    most = carries.most_tensors
    names = draw(_names(1, most))
    outputs = draw(_names(1 if carries.asks_by_name else 0, most)) if carries.selects else []
    output_parameters = parameters(carries.tensor_parameters, carries.largest)
    return InferRequest(
        model=draw(models(carries)),
        inputs=tuple(
            draw(
                tensors(name, carries.datatypes, carries, text=carries.text, finite=carries.finite)
            )
            for name in names
        ),
        outputs=tuple(
            RequestedOutput(name, parameters=draw(output_parameters)) for name in outputs
        ),
        id=draw(_ids(carries)),
        sequence=draw(_sequences(carries)),
        priority=draw(_up_to(0, carries.priority)),
        timeout_us=draw(st.none() | _up_to(1, carries.largest)) if carries.timeouts else None,
        parameters=draw(parameters(carries.parameters, carries.largest)),
    )


@st.composite
def responses(draw: DrawFn, carries: Carries, call: InferRequest) -> InferResponse:
    """Draw a reply to *call*: the outputs that it names, or any."""
    names = [output.name for output in call.outputs]
    if not names:
        names = draw(_names(carries.least_outputs, carries.most_tensors))
    model = call.model or ModelRef("")
    reply_parameters = parameters(carries.reply_parameters, carries.largest)
    return InferResponse(
        model=draw(st.builds(ModelRef, MODEL_NAMES, VERSIONS)) if carries.answers_model else model,
        outputs=tuple(
            draw(
                tensors(
                    name,
                    carries.reply_datatypes,
                    carries,
                    text=carries.reply_text,
                    finite=carries.reply_finite,
                )
            )
            for name in names
        ),
        id=call.id,
        parameters=draw(reply_parameters),
    )


@functools.cache
def calls(carries: Carries) -> SearchStrategy[Call[Any]]:
    """Draw any call that *way* carries."""
    drawn: list[SearchStrategy[Any]] = []
    for kind in sorted(carries.questions, key=lambda one: one.__name__):
        if kind in EXTENSIONS:
            drawn.append(extension_calls(kind, MODEL_NAMES, VERSIONS))
        elif kind is InferRequest:
            drawn.append(inferences(carries))
        elif kind in (ModelReadyRequest, ModelMetadataRequest):
            drawn.append(st.builds(kind, model=models(carries)))
        elif kind is RepositoryIndexRequest:
            ready = st.booleans() if carries.ready_only else st.just(False)
            drawn.append(st.builds(kind, ready_only=ready))
        else:
            drawn.append(st.builds(kind))
    return st.one_of(drawn)


def replies(carries: Carries, call: Call[Any]) -> SearchStrategy[Any]:
    """Draw a reply to *call*."""
    if type(call) in EXTENSIONS:
        return extension_replies(call)
    if isinstance(call, InferRequest):
        return responses(carries, call)
    if isinstance(call, ModelMetadataRequest):
        return _model_metadata(carries, call)
    if isinstance(call, RepositoryIndexRequest):
        return _indexes(carries)
    if isinstance(call, ServerMetadataRequest):
        return st.builds(ServerMetadata, TEXT, TEXT, st.lists(TEXT, max_size=3).map(tuple))
    return st.booleans()


def _model_metadata(carries: Carries, call: ModelMetadataRequest) -> SearchStrategy[ModelMetadata]:
    datatypes = _one_of(carries.reply_datatypes)
    shapes = st.lists(st.integers(-1, 9), min_size=carries.least_rank, max_size=4).map(tuple)
    full_tensor = st.builds(TensorMetadata, NAMES, datatypes, shapes)
    # A server may leave out what a tensor is; it has no datatype then, and no shape.
    tensor = full_tensor | st.builds(TensorMetadata, NAMES, st.none(), st.none())
    listed = st.lists(tensor, min_size=1, max_size=3, unique_by=lambda one: one.name).map(tuple)
    return st.builds(
        ModelMetadata,
        name=st.just(call.model.name if call.model else "")
        if not carries.answers_model
        else MODEL_NAMES,
        versions=st.lists(MODEL_NAMES, max_size=2).map(tuple),
        platform=TEXT,
        inputs=listed,
        outputs=listed,
    )


@functools.cache
def _indexes(carries: Carries) -> SearchStrategy[tuple[RepositoryEntry, ...]]:
    entry = st.builds(RepositoryEntry, MODEL_NAMES)
    if not carries.index_names:
        entry = st.builds(RepositoryEntry, MODEL_NAMES, VERSIONS, st.sampled_from(ModelState), TEXT)
    return st.lists(entry, max_size=3, unique_by=lambda one: one.name).map(tuple)


@st.composite
def exchanges(draw: DrawFn, carries: Carries) -> tuple[Call[Any], Any]:
    """Draw a call and its reply."""
    call = draw(calls(carries))
    return call, draw(replies(carries, call))
