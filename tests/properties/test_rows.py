"""Drawn rows equal those of a naive reader, value by value, and are written so that they read back."""

from __future__ import annotations

import json
import random
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pytest

from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.data import UntypedRules
from gateway.ir.tensors.datatypes import Datatype, bf16_of_fp32, fp32_of_bf16
from gateway.ir.tensors.tensor import array_tensor, as_numpy, as_raw
from gateway.policies.complete.untyped import quickly_typed, typed_request
from gateway.protocols.tfs.http.codec import HttpCodec
from gateway.wire.http import HttpRequest
from gateway.wire.rows.read import RowsReader, read_rows_document
from gateway.wire.rows.write import RowStyle, columns_json, rows_json, value_json

NUMBERS: Final = [each for each in Datatype if each not in (Datatype.BYTES, Datatype.BOOL)]
DOCUMENTS: Final = 40
SEED: Final = 20_261_126
DRAWN_ROWS: Final = 1_000_000
SIZES: Final = (*(1, 1, 1, 2, 3, 8, 40) * 9, 3000)
"""Rows of a document: its parser, and the form of its values, depend on its length."""


def read(body: bytes, form: str, *declared: TensorMetadata) -> dict[str, npt.NDArray[Any]]:
    document = read_rows_document(memoryview(body), "the body", DEFAULT_LIMITS)
    reader = RowsReader(document, DEFAULT_LIMITS, UntypedRules())
    inputs = {"instances": reader.rows, "inputs": reader.columns}[form](form)
    call = InferRequest(model=ModelRef("m"), inputs=inputs)
    found = typed_request(call, ModelMetadata(name="m", inputs=declared)).inputs
    return {each.name: as_numpy(each) for each in found}


def drawn_number(source: random.Random, datatype: Datatype) -> int | float:
    """Return a number around the edges of a datatype, often outside of it."""
    if source.random() < 0.2:
        return source.choice([0, 1, -1, 0.5, 1.0, 2**24 + 1, 2**53 + 1, 1e39, -1e-46, 65520])
    if datatype.is_integer:
        bits = 8 * datatype.size_bytes
        edge = source.choice([-(1 << bits - 1), (1 << bits - 1) - 1, (1 << bits) - 1, 0])
        return edge + source.randint(-1, 1)
    return source.choice([source.random(), source.gauss(0, 1e4), source.randint(-9, 9) / 4])


def naive(datatype: Datatype, value: float) -> Any:
    """Return what one number is as an element, as numpy has it; None where it is none."""
    if datatype.is_integer:
        if type(value) is not int:
            return None
        limits = np.iinfo(datatype.numpy_dtype)
        return value if limits.min <= value <= limits.max else None
    with np.errstate(over="ignore"):
        if datatype is Datatype.BF16:
            return _naive_bf16(float(value))
        found = np.array(float(value)).astype(datatype.numpy_dtype)
    return found.item() if np.isfinite(found) else None


def _naive_bf16(value: float) -> Any:
    """Return the nearest of the neighbours of a truncated value, the even one of two as near."""
    sign = int(np.float32(value).view(np.uint32)) >> 31 << 15
    bits = int(np.float32(abs(value)).view(np.uint32)) >> 16
    near = [each for each in (bits - 1, bits, bits + 1) if each >= 0]
    values = {each: float(fp32_of_bf16(np.array([each], np.uint16))[0]) for each in near}
    best = sign | min(near, key=lambda each: (abs(values[each] - abs(value)), each & 1))
    # The largest value has a larger neighbour, which is infinite.
    largest = float(fp32_of_bf16(np.array([0x7F7F], np.uint16))[0])
    return None if abs(value) >= largest + 2.0**119 else best


@pytest.mark.parametrize("datatype", NUMBERS, ids=lambda each: each.name)
def test_drawn_numbers_equal_a_naive_reader(datatype: Datatype) -> None:
    """Each is exact, or its document is refused; short and long documents agree."""
    source = random.Random(f"{SEED} {datatype.name}")  # noqa: S311
    declared = TensorMetadata("x", datatype, (-1,))
    refused = 0
    for _ in range(DOCUMENTS):
        drawn = [drawn_number(source, datatype) for _ in range(50)]
        known = [naive(datatype, each) for each in drawn]
        good = [each for each, value in zip(drawn, known, strict=True) if value is not None]
        expected = [value for value in known if value is not None]
        bad = [each for each, value in zip(drawn, known, strict=True) if value is None]
        for repeat in (1, 60):
            body = json.dumps({"instances": good * repeat}).encode()
            assert expected * repeat == read(body, "instances", declared)["x"].tolist()
        for number, each in enumerate(bad):
            at = source.randint(0, len(good))
            wrong = [*good[:at], each, *good[at:]]
            body = json.dumps({"instances": wrong + good * (59 if number == 0 else 0)}).encode()
            with pytest.raises(InvalidRequest, match=rf"instances\[{at}\] is "):
                read(body, "instances", declared)
            refused += 1
    assert refused or datatype is Datatype.FP64, "no number was out of range"


@pytest.mark.parametrize("form", ["instances", "inputs"])
def test_drawn_rows_of_several_inputs_equal_a_naive_reader(form: str) -> None:
    """Objects of rows and of columns give the same tensors, in documents of any length."""
    source = random.Random(f"{SEED} {form}")  # noqa: S311
    for _ in range(DOCUMENTS):
        rows = source.choice([1, 2, 17, 400])
        dims = source.choice([(), (1,), (3,), (2, 2)])
        arrays = {
            "a": np.array([source.randint(-(2**63), 2**63 - 1) for _ in range(rows)]),
            "b": np.random.default_rng(rows).random((rows, *dims)).astype(np.float32),
            "c": np.array([source.random() < 0.5 for _ in range(rows)]),
        }
        lists = {name: array.tolist() for name, array in arrays.items()}
        value: Any = lists
        if form == "instances":
            value = [{name: lists[name][at] for name in lists} for at in range(rows)]
        declared = [
            TensorMetadata("a", Datatype.INT64, (-1,)),
            TensorMetadata("b", Datatype.FP32, (-1, *dims)),
            TensorMetadata("c", Datatype.BOOL, (-1,)),
        ]
        found = read(json.dumps({form: value}).encode(), form, *declared)
        assert {name: array.tolist() for name, array in found.items()} == lists


@pytest.mark.parametrize("datatype", [*NUMBERS, Datatype.BOOL], ids=lambda each: each.name)
def test_written_numbers_read_back_equal(datatype: Datatype) -> None:
    """A value, rows of one output and of two, and columns are the same after they are read."""
    bits = np.random.default_rng(SEED).integers(0, 256, (400, datatype.size_bytes), np.uint8)
    array = bits.view(datatype.numpy_dtype).reshape(-1, 4)
    if datatype is Datatype.BOOL:
        array = (bits > 127).reshape(-1, 4)
    tensors = [array_tensor("x", array, datatype), array_tensor("y", array[:, 0].copy(), datatype)]
    declared = [
        TensorMetadata("x", datatype, (-1, 4)),
        TensorMetadata("y", datatype, (-1,)),
    ]
    style = RowStyle()
    texts = [
        ("instances", rows_json(tensors, style), declared),
        ("inputs", columns_json(tensors, style), declared),
        ("inputs", value_json(tensors[0], style), declared[:1]),
        ("instances", rows_json(tensors[:1], style), declared[:1]),
    ]
    for form, text, known in texts:
        found = read(b'{"%b": %b}' % (form.encode(), text), form, *known)
        for name, values in found.items():
            expected = array if name == "x" else array[:, 0]
            if datatype is Datatype.BF16:
                expected, values = map(fp32_of_bf16, (expected, values))  # noqa: PLW2901  # bits
            assert np.array_equal(expected, values, equal_nan=datatype.is_float)


def test_a_float_is_never_written_as_an_integer() -> None:
    """Whole numbers keep a point or an exponent."""
    values = np.array([0, 1, -2, 1e16, 1e300, 123456789], np.float64)
    text = value_json(array_tensor("x", values), RowStyle()).decode()
    for each in text.strip("[]").split(","):
        assert "." in each or "e" in each


def test_bf16_is_rounded_once() -> None:
    """A value beside a tie of BF16 is not rounded to the tie of FP32 first."""
    value = 1 + 2.0**-8 + 2.0**-40
    naive_twice = bf16_of_fp32(np.array([value], np.float32))[0]
    declared = TensorMetadata("x", Datatype.BF16, (-1,))
    found = read(json.dumps({"inputs": [value]}).encode(), "inputs", declared)["x"][0]
    assert found == naive_twice + 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "datatype", [*NUMBERS, Datatype.BOOL, Datatype.BYTES], ids=lambda each: each.name
)
def test_a_million_drawn_rows_equal_a_reference(datatype: Datatype) -> None:
    """Rows in documents of all lengths are those of Python's parser, or are refused with their place."""
    source = np.random.default_rng([SEED, list(Datatype).index(datatype)])
    declared = TensorMetadata("x", datatype, (-1, 2))
    codec, metadata = HttpCodec(), ModelMetadata(name="m", inputs=(declared,))
    rows = refused = 0
    while rows < DRAWN_ROWS // (len(NUMBERS) + 2):
        count = int(source.choice(SIZES))
        values = drawn_rows(source, datatype, count)
        rows += count
        at = int(source.integers(count)) if source.random() < 0.05 else None
        if at is not None:
            values[at][1] = True if datatype.is_float else 0.5
        is_object = source.random() < 0.5
        document = {"instances": [{"x": row} for row in values] if is_object else values}
        spaced = (", ", ": ") if source.random() < 0.5 else (",", ":")
        text = json.dumps(document, separators=spaced)
        wire = HttpRequest("POST", "/v1/models/m:predict", body=(text.encode(),))
        call = cast("InferRequest", codec.decode_call(wire))
        if at is None:
            typed = quickly_typed(call, metadata) or typed_request(call, metadata)
            assert reference(text, datatype) == as_raw(typed.inputs[0])
            assert (count, 2) == typed.inputs[0].shape
            continue
        place = rf"instances\[{at}\]{'.x' if is_object else ''}\[1\] is "
        assert quickly_typed(call, metadata) is None
        with pytest.raises(InvalidRequest, match=place):
            typed_request(call, metadata)
        refused += 1
    assert refused


def drawn_rows(source: np.random.Generator, datatype: Datatype, rows: int) -> list[list[Any]]:
    """Return rows of two elements: any bits, edges, and values that must be rounded."""
    if datatype is Datatype.BYTES:
        letters = source.choice(
            np.array(["", "a", "é", "\\", "\n", "日", "0", "[1]"]), (rows, 2, 3)
        )
        return [["".join(each) for each in row] for row in letters.tolist()]
    dtype = datatype.numpy_dtype
    bits = source.integers(0, 256, (rows, 2, dtype.itemsize), np.uint8)
    if datatype is Datatype.BOOL:
        return cast("list[list[Any]]", (bits[..., 0] > 127).tolist())
    values = bits.view(dtype)[..., 0]
    kind = source.integers(4, size=(rows, 2))
    if not datatype.is_float:
        limits = np.iinfo(dtype)
        edges = source.choice(np.array([limits.min, limits.max, 0, 1, 99], dtype), (rows, 2))
        return cast("list[list[Any]]", np.where(kind == 0, edges, values).tolist())
    if datatype is Datatype.BF16:
        values = fp32_of_bf16(values)
    exact = np.where(np.isfinite(values), values, 0).astype(np.float64)
    found = np.where(kind == 0, source.standard_normal((rows, 2)), exact)
    whole = source.integers(-2000, 2000, (rows, 2))
    pairs = zip(found.tolist(), whole.tolist(), (kind == 1).tolist(), strict=True)
    return [
        [integer if is_whole else number for number, integer, is_whole in zip(*row, strict=True)]
        for row in pairs
    ]


def reference(text: str, datatype: Datatype) -> bytes:
    """Return the elements of a document as Python's parser reads them."""
    rows = json.loads(text)["instances"]
    values = [each for row in rows for each in (row["x"] if isinstance(row, dict) else row)]
    if datatype is Datatype.BYTES:
        items = [each.encode() for each in values]
        return b"".join([len(item).to_bytes(4, "little") + item for item in items])
    if datatype is not Datatype.BF16:
        wide = np.float64 if datatype.is_float else datatype.numpy_dtype
        return np.array(values, wide).astype(datatype.numpy_dtype).tobytes()
    # Half of the distance to the next value of BF16 is exact in FP64.
    numbers = np.array(values, np.float64)
    lower = (np.abs(numbers).astype(np.float32).view(np.uint32) >> 16).astype(np.int64)
    lower -= fp32_of_bf16(lower.astype(np.uint16)) > np.abs(numbers)
    below, above = (
        fp32_of_bf16(each.astype(np.uint16)).astype(np.float64) for each in (lower, lower + 1)
    )
    rest = np.abs(numbers) - below - (above - np.abs(numbers))
    nearest = lower + ((rest > 0) | ((rest == 0) & (lower & 1 == 1)))
    found: bytes = (nearest | np.signbit(numbers) * 0x8000).astype(np.uint16).tobytes()
    return found
