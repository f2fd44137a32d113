"""Inference messages of Open Inference, drawn: legal, nearly so, and in other spellings."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from gateway.ir.tensors.datatypes import Datatype
from gateway.protocols.oip.datatypes import CONTENTS_FIELD, CONTENTS_NAMES
from gateway.schema import open_inference_pb2 as pb
from gateway.wire.protobuf.wire_format import (
    EGROUP,
    I32,
    I64,
    LEN,
    SGROUP,
    VARINT,
    WireError,
    fields,
    tag,
    varint,
)

CLEAN = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=6)
NAMES = st.sampled_from(["X", "Y", "Zoë", "", "a b"]) | CLEAN
INT64 = st.integers(-(2**63), 2**63 - 1)
UINT64 = st.integers(0, 2**64 - 1)
DIMS = st.integers(0, 3)
SOME_NAMES = st.lists(NAMES, max_size=3, unique=True)

# What the datatype's own field may hold, in and out of the datatype's range.
VALUES: dict[int, st.SearchStrategy[Any]] = {
    1: st.booleans(),
    2: st.integers(-128, 127) | st.integers(-(2**31), 2**31 - 1),
    3: INT64,
    4: st.integers(0, 255) | st.integers(0, 2**32 - 1),
    5: UINT64,
    6: st.floats(width=32),
    7: st.floats(),
    8: st.binary(max_size=5),
}


# Messages.


@st.composite
def parameters(draw: DrawFn) -> pb.InferParameter:
    """Draw a parameter of any arm, or of none."""
    arms: dict[str, st.SearchStrategy[Any]] = {
        "bool_param": st.booleans(),
        "int64_param": INT64,
        "string_param": NAMES,
        "double_param": st.floats(),
        "uint64_param": UINT64,
    }
    arm = draw(st.sampled_from([*arms] * 5 + [""]))
    return pb.InferParameter(**{arm: draw(arms[arm])}) if arm else pb.InferParameter()


MAPS = st.dictionaries(NAMES, parameters(), max_size=2)


def flat(datatype: Datatype, values: list[Any]) -> bytes:
    """Write elements raw, whatever is in range; others become zero."""
    if datatype is Datatype.BYTES:
        return b"".join(struct.pack("<I", len(value)) + value for value in values)
    array = np.zeros(len(values), datatype.numpy_dtype)
    for index, value in enumerate(values):
        with contextlib.suppress(OverflowError, ValueError), np.errstate(over="ignore"):
            array[index] = value
    return array.tobytes()


@st.composite
def tensors(draw: DrawFn, name: str, *, typed: bool) -> tuple[dict[str, Any], bytes]:
    """Draw the fields of a tensor, and its raw contents; now and then they do not agree."""
    datatype = draw(st.sampled_from(Datatype))
    shape = draw(st.lists(DIMS, max_size=3))
    count = int(np.prod(shape, dtype=object)) + draw(st.sampled_from([0] * 15 + [1]))
    number = CONTENTS_FIELD.get(datatype, 6)
    values = draw(st.lists(VALUES[number], min_size=count, max_size=count))
    described = {
        "name": name,
        "datatype": draw(st.sampled_from([datatype.name] * 15 + ["FP31"])),
        "shape": shape,
        "parameters": draw(MAPS),
    }
    if typed:
        contents: dict[str, list[Any]] = {CONTENTS_NAMES[number]: values}
        if draw(st.integers(0, 15)) == 0:
            contents["uint_contents"] = [1]
        described["contents"] = pb.InferTensorContents(**contents)
        return described, b""
    if draw(st.integers(0, 7)) == 0:
        described["contents"] = pb.InferTensorContents()
    return described, flat(datatype, values)


@st.composite
def requests(draw: DrawFn) -> bytes:
    """Draw a ModelInferRequest, legal or nearly so."""
    typed = draw(st.booleans())
    drawn = [draw(tensors(name, typed=typed)) for name in draw(SOME_NAMES)]
    message = pb.ModelInferRequest(
        model_name=draw(NAMES),
        model_version=draw(NAMES),
        id=draw(NAMES),
        parameters=draw(MAPS),
        inputs=[pb.ModelInferRequest.InferInputTensor(**tensor) for tensor, _ in drawn],
        outputs=[
            pb.ModelInferRequest.InferRequestedOutputTensor(name=name, parameters=draw(MAPS))
            for name in draw(SOME_NAMES)
        ],
        raw_input_contents=[] if typed else [raw for _, raw in drawn],
    )
    return bytes(message.SerializeToString())


@st.composite
def responses(draw: DrawFn) -> bytes:
    """Draw a ModelInferResponse, raw and typed outputs mixed."""
    drawn = [draw(tensors(name, typed=draw(st.booleans()))) for name in draw(SOME_NAMES)]
    spare = draw(st.integers(0, 7)) == 0
    message = pb.ModelInferResponse(
        model_name=draw(NAMES),
        model_version=draw(NAMES),
        id=draw(NAMES),
        parameters=draw(MAPS),
        outputs=[pb.ModelInferResponse.InferOutputTensor(**tensor) for tensor, _ in drawn],
        raw_output_contents=[
            raw
            for tensor, raw in drawn
            if (raw or not spare)
            and not tensor.get("contents", pb.InferTensorContents()).ByteSize()
        ],
    )
    return bytes(message.SerializeToString())


# Other spellings of messages.


def spelled(key: int, value: Any) -> bytes:
    """Write one field as `fields` gave it."""
    kind = key & 7
    if kind == VARINT:
        return varint(key) + varint(value)
    if kind == LEN:
        return varint(key) + varint(len(value)) + bytes(value)
    if kind == SGROUP:
        return varint(key) + bytes(value) + varint(key - SGROUP + EGROUP)
    return varint(key) + bytes(value)


ADDED = [
    spelled(tag(15, VARINT), 7),
    spelled(tag(99, LEN), b"\xff"),
    spelled(tag(20, I32), b"1234"),
    spelled(tag(21, I64), b"12345678"),
    spelled(tag(12, SGROUP), spelled(tag(1, VARINT), 1)),
    # Known numbers in a wire type they do not have.
    spelled(tag(1, VARINT), 1),
    spelled(tag(5, I32), b"1234"),
    spelled(tag(3, I64), b"12345678"),
    spelled(tag(7, SGROUP), b""),
    # Known ones, which may come once more.
    spelled(tag(1, LEN), b"X"),
    spelled(tag(1, LEN), b"\xff"),
    spelled(tag(1, LEN), b"\n"),
    spelled(tag(2, LEN), b"FP31"),
    spelled(tag(2, LEN), b"INT8"),
    spelled(tag(3, VARINT), 1),
    spelled(tag(3, LEN), b"\1"),
    spelled(tag(5, LEN), b""),
    spelled(tag(4, LEN), spelled(tag(1, LEN), b"k")),
]


@st.composite
def respelled(draw: DrawFn, data: bytes, depth: int = 4) -> bytes:
    """Draw another spelling of a message, which may mean something else."""
    try:
        found = fields(memoryview(data))
    except WireError:
        return data
    chunks = [spelled(key, value) for key, value in found]
    for _ in range(draw(st.integers(0, 2)) if found else 0):
        index = draw(st.integers(0, len(found) - 1))
        chunks[index] = draw(otherwise(*found[index], depth))
    chunks += draw(st.sampled_from([[]] * 20 + [[one] for one in ADDED]))
    if draw(st.booleans()):
        chunks = draw(st.permutations(chunks))
    return b"".join(chunks)


@st.composite
def otherwise(draw: DrawFn, key: int, value: Any, depth: int) -> bytes:
    """Draw another spelling of one field."""
    how = draw(st.sampled_from(["inside"] * 8 + ["twice", "dropped", "unpacked", "split"]))
    if how == "dropped":
        return b""
    if how == "twice" or key & 7 != LEN:
        return spelled(key, value) * 2
    if how == "unpacked":
        return b"".join(spelled(key & ~7 | VARINT, one) for one in bytes(value)[:20])
    if how == "split":
        cut = draw(st.integers(0, len(value)))
        return spelled(key, value[:cut]) + spelled(key, value[cut:])
    return spelled(key, draw(respelled(bytes(value), depth - 1)) if depth else value)


@st.composite
def damaged(draw: DrawFn, messages: st.SearchStrategy[bytes]) -> bytes:
    """Draw a message as it is, respelled, cut short, or with bytes changed."""
    data = draw(messages)
    how = draw(st.sampled_from(["respelled"] * 5 + ["whole", "cut", "changed"]))
    if how == "respelled":
        return draw(respelled(data))
    if how == "cut":
        return data[: draw(st.integers(0, len(data)))]
    if how == "changed":
        changed = bytearray(data)
        for _ in range(draw(st.integers(1, 3)) if data else 0):
            changed[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        return bytes(changed)
    return data
