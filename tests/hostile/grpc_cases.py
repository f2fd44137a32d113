"""Bytes sent as ModelInferRequest that must be refused, written by hand and by the library."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

from gateway.schema import open_inference_pb2 as pb
from tests.hostile.json_cases import LIMITS
from tests.hostile.judge import good_call

VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)
NAME, VERSION, ID, PARAMETERS, INPUTS, OUTPUTS, RAW = range(1, 8)
MODEL = b"identity_int32"
_SIZES: dict[str, int] = {"BOOL": 1, "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8} | {
    key: int("".join(filter(str.isdigit, key))) // 8 for key in LIMITS if key != "BOOL"
}
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def varint(value: int, width: int = 0) -> bytes:
    """Write a varint; *width* pads it with meaningless bytes."""
    parts = bytearray()
    while value > 0x7F or len(parts) + 1 < width:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def field(number: int, kind: int, payload: bytes = b"") -> bytes:
    """Write a tag, and *payload* with its length where the kind has one."""
    length = varint(len(payload)) if kind == BYTES else b""
    return varint(number << 3 | kind) + length + payload


def tensor(datatype: str = "INT32", shape: Any = (1,), name: str = "INPUT0", **more: Any) -> Any:
    """Return an input of the library's making."""
    return pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape, **more)


def request(*inputs: Any, raw: Any = (), model: str = "identity_int32", **more: Any) -> bytes:
    """Write a request with the library."""
    message = pb.ModelInferRequest(
        model_name=model, inputs=inputs, raw_input_contents=list(raw), **more
    )
    return bytes(message.SerializeToString())


def _hand_tensor(*fields: bytes) -> bytes:
    return field(NAME, BYTES, MODEL) + field(INPUTS, BYTES, b"".join(fields))


def _contents(name: str, values: Any) -> Any:
    contents: Any = pb.InferTensorContents()
    getattr(contents, name).extend(values)
    return contents


def _bytes() -> Iterator[tuple[str, bytes]]:
    """Return bytes that are no protobuf message."""
    good = request(tensor(), raw=[bytes(4)])
    yield from {
        "one_zero": b"\0",
        "zeros": bytes(1000),
        "ones": b"\xff" * 1000,
        "json": b'{"model_name": "simple"}',
        "tag_only": b"\x0a",
        "field_0": b"\x02\x00",
        "field_0_varint": b"\x00\x01",
        "tag_of_6_bytes": b"\x8a\x80\x80\x80\x80\x00\x00",
        "tag_above_32_bits": varint(1 << 36 | BYTES) + b"\x00",
        "kind_6": b"\x0e",
        "kind_7": b"\x0f",
        "varint_of_11_bytes": field(99, VARINT) + b"\xff" * 10 + b"\x01",
        "varint_endless": field(99, VARINT) + b"\xff" * 10_000,
        "varint_cut": field(99, VARINT) + b"\xff",
        "fixed64_cut": field(99, FIXED64) + bytes(7),
        "fixed32_cut": field(99, FIXED32) + bytes(3),
        "length_above": b"\x0a\x7fabc",
        "length_2_31": b"\x0a" + varint(2**31) + b"abc",
        "length_2_32": b"\x0a" + varint(2**32 + 3) + b"abc",
        "length_2_63": b"\x0a" + varint(2**63) + b"abc",
        "length_minus_1": b"\x0a" + varint(2**64 - 1) + b"abc",
        "length_of_11_bytes": b"\x0a" + b"\xff" * 10 + b"\x01",
        "group_open": field(99, GROUP),
        "group_not_open": field(99, END_GROUP),
        "group_wrong_end": field(99, GROUP) + field(98, END_GROUP),
        "groups_100": field(99, GROUP) * 101 + field(99, END_GROUP) * 101,
        "groups_100k": field(99, GROUP) * 100_000 + field(99, END_GROUP) * 100_000,
        "groups_open_1m": field(99, GROUP) * 1_000_000,
        "group_as_name": field(NAME, GROUP) + field(NAME, END_GROUP),
        "end_group_first": b"\x0c" + good,
        "trailing_byte": good + b"\x0a",
        "trailing_varint": good + b"\x80",
        "http": b"POST / HTTP/1.1\r\n\r\n",
        "gzip": b"\x1f\x8b\x08" + bytes(50),
    }.items()
    for cut in range(1, len(good)):
        yield f"cut_at_{cut}", good[:cut]
    for number in range(1, 8):
        for kind in (VARINT, FIXED64, FIXED32):
            payload = {VARINT: b"\1", FIXED64: bytes(8), FIXED32: bytes(4)}[kind]
            yield f"field_{number}_alone_as_kind_{kind}", field(number, kind, payload)
    for number in (NAME, VERSION, ID):
        yield f"field_{number}_not_utf8", good + field(number, BYTES, b"\xff\xfe")
        yield f"field_{number}_overlong", good + field(number, BYTES, b"\xc0\xaf")
        yield f"field_{number}_surrogate", good + field(number, BYTES, b"\xed\xa0\x80")
        for name, text in {
            "control": b"a\1",
            "nul": b"a\0b",
            "newline": b"a\nb",
            "escape": b"\x1b[2J",
            "c1": b"\xc2\x9b",
            "long": b"n" * 1025,
        }.items():
            yield f"field_{number}_{name}", good + field(number, BYTES, text)
    generator = random.Random(2)  # noqa: S311  # the same bytes each time
    for number in range(60):
        size = generator.choice((3, 30, 300, 3000))
        yield f"random_{number}", field(NAME, BYTES, b"nobody") + generator.randbytes(size)


def _tensors() -> Iterator[tuple[str, bytes]]:
    """Return hand-written invalid tensors."""
    name, kind = field(1, BYTES, b"INPUT0"), field(2, BYTES, b"INT32")
    shape, raw = field(3, BYTES, b"\1"), field(RAW, BYTES, bytes(4))
    yield "no_datatype", _hand_tensor(name, shape) + raw
    yield "no_shape_and_too_much", _hand_tensor(name, kind) + field(RAW, BYTES, bytes(8))
    yield "empty_tensor", _hand_tensor() + raw
    yield "name_not_utf8", _hand_tensor(field(1, BYTES, b"\xff"), kind, shape) + raw
    yield "datatype_not_utf8", _hand_tensor(name, field(2, BYTES, b"\xff"), shape) + raw
    yield "shape_cut", _hand_tensor(name, kind, field(3, BYTES, b"\x80")) + raw
    yield "shape_of_11_bytes", _hand_tensor(name, kind, field(3, BYTES, b"\xff" * 10 + b"\1")) + raw
    yield "shape_as_fixed", _hand_tensor(name, kind, field(3, FIXED64, bytes(8))) + raw * 2
    yield "shape_as_group", _hand_tensor(name, kind, field(3, GROUP), field(3, END_GROUP)) + raw * 2
    yield "shape_rank_1m", _hand_tensor(name, kind, field(3, BYTES, b"\1" * 1_000_000)) + raw
    yield "shape_unpacked_1m", _hand_tensor(name, kind, b"\x18\x01" * 500_000) + raw
    yield "name_twice_differs", _hand_tensor(field(1, BYTES, b"OTHER"), kind, shape) + raw * 2
    contents = field(5, BYTES, field(2, BYTES, b"\1"))
    yield "raw_and_typed", _hand_tensor(name, kind, shape, contents) + raw
    yield "contents_cut", _hand_tensor(name, kind, shape, b"\x2a\x05\x12\x7f\x01")
    yield "contents_in_group", _hand_tensor(name, kind, shape, field(5, GROUP), field(5, END_GROUP))
    fixed = field(5, BYTES, field(2, FIXED32, bytes(4)))
    yield "contents_as_fixed", _hand_tensor(name, kind, shape, fixed)
    floats = field(5, BYTES, field(6, BYTES, bytes(5)))
    odd = field(2, BYTES, b"FP32")
    yield "floats_of_5_bytes", _hand_tensor(name, odd, shape, floats)
    many = field(5, BYTES, b"".join(field(8, BYTES) for _ in range(200_000)))
    yield "many_empty_texts", _hand_tensor(name, field(2, BYTES, b"BYTES"), shape, many)
    yield "inputs_257", request(*[tensor(name=f"I{n}") for n in range(257)], raw=[bytes(4)] * 257)
    yield "inputs_300k_empty", field(NAME, BYTES, MODEL) + field(INPUTS, BYTES) * 300_000
    yield "outputs_300k_empty", request(tensor(), raw=[bytes(4)]) + field(OUTPUTS, BYTES) * 300_000
    yield "raw_300k_empty", request(tensor(), raw=[bytes(4)]) + field(RAW, BYTES) * 300_000
    yield "parameters_300k", request(tensor(), raw=[bytes(4)]) + field(PARAMETERS, BYTES) * 300_000
    outputs = [pb.ModelInferRequest.InferRequestedOutputTensor(name=f"O{n}") for n in range(257)]
    yield "outputs_257", request(tensor(), raw=[bytes(4)], outputs=outputs)
    yield "inputs_same_name", request(tensor(), tensor(), raw=[bytes(4)] * 2)
    yield "no_inputs", request()
    yield "raw_without_inputs", request(raw=[bytes(4)])
    yield "raw_too_many", request(tensor(), raw=[bytes(4)] * 2)
    yield "raw_too_few", request(tensor(), tensor(name="I"), raw=[bytes(4)])
    yield "no_data", request(tensor())
    yield "no_model", request(tensor(), raw=[bytes(4)], model="")
    yield "other_model", request(tensor(), raw=[bytes(4)], model="nobody")
    yield "other_version", request(tensor(), raw=[bytes(4)], model_version="9")
    yield "other_input", request(tensor(name="OTHER"), raw=[bytes(4)])
    yield "nested_in_name", field(NAME, BYTES, good_call() * 10)
    nested = b""
    for _ in range(2000):
        nested = field(PARAMETERS, BYTES, field(2, BYTES, nested))
    yield "nested_deep", request(tensor(), raw=[bytes(4)]) + nested


def _shapes() -> Iterator[tuple[str, bytes]]:
    for name, shape in {
        "minus": [-1],
        "minus_huge": [-(2**63)],
        "minus_pair": [-1, -1],
        "wraps_to_0": [2**32, 2**32],
        "wraps_to_1": [2**32 + 1, 2**32 - 1, 2**32 + 1],
        "int64": [2**63 - 1],
        "above_dim": [2**40 + 1],
        "zero_above_dim": [0, 2**40 + 1],
        "zero": [0],
        "two": [2],
        "product_2_31": [2**31],
        "product_2_30": [2**30],
        "rank_33": [1] * 33,
    }.items():
        for datatype in ("INT32", "BYTES", "FP64"):
            model = f"identity_{datatype.lower()}"
            data = b"\0\0\0\0" if datatype == "BYTES" else bytes(_SIZES[datatype])
            yield f"{datatype}_{name}", request(tensor(datatype, shape), raw=[data], model=model)
            if name != "zero":
                yield f"{datatype}_{name}_empty", request(tensor(datatype, shape), model=model)
        contents = pb.InferTensorContents(int_contents=[1])
        yield f"typed_{name}", request(tensor(shape=shape, contents=contents))


def _elements() -> Iterator[tuple[str, bytes]]:
    for datatype, size in _SIZES.items():
        model = f"identity_{datatype.lower()}"
        for wrong in (2 * size - 1, 2 * size + 1, size, 0):
            body = request(tensor(datatype, (2,)), raw=[bytes(wrong)], model=model)
            yield f"{datatype}_raw_of_{wrong}", body
        for other in sorted(set(_CONTENTS.values())):
            if other == _CONTENTS.get(datatype):
                continue
            values: Any = [b"1"] if other == "bytes_contents" else [1]
            contents = _contents(other, values)
            body = request(tensor(datatype, (1,), contents=contents), model=model)
            yield f"{datatype}_in_{other}", body
    for datatype in ("INT8", "INT16", "UINT8", "UINT16"):
        least, most = LIMITS[datatype]
        for value in (least - 1, most + 1, 2**31 - 1):
            if value < 0 and datatype.startswith("U"):
                continue
            contents = _contents(_CONTENTS[datatype], [value])
            body = request(
                tensor(datatype, (1,), contents=contents), model=f"identity_{datatype.lower()}"
            )
            yield f"{datatype}_of_{value}", body
    for count in (0, 1, 3, 1000):
        contents = pb.InferTensorContents(int_contents=[1] * count)
        yield f"typed_{count}_for_2", request(tensor(shape=(2,), contents=contents))
    both = pb.InferTensorContents(int_contents=[1], int64_contents=[1])
    yield "two_contents", request(tensor(contents=both))
    for name, shape, data in (
        ("prefix_too_long", [1], struct.pack("<I", 4) + b"abc"),
        ("prefix_huge", [1], b"\xff\xff\xff\xffabc"),
        ("prefix_cut", [1], b"\3\0\0"),
        ("no_prefix", [1], b"abcdefgh"),
        ("too_few", [2], struct.pack("<I", 3) + b"abc"),
        ("too_many", [1], (struct.pack("<I", 3) + b"abc") * 2),
        ("million_and_one", [1_000_001], bytes(4 * 1_000_001)),
    ):
        yield f"BYTES_{name}", request(tensor("BYTES", shape), raw=[data], model="identity_bytes")
    for datatype in (
        "",
        "int32",
        "TYPE_INT32",
        "FP128",
        "STRING",
        "object",
        "i4,(9999,)f8",
        "\x1b",
    ):
        yield f"datatype_{datatype!r}", request(tensor(datatype), raw=[bytes(4)])


def _parameters() -> Iterator[tuple[str, bytes]]:
    parameter = pb.InferParameter
    wrong: dict[str, list[Any]] = {
        "sequence_id": [
            parameter(int64_param=-1),
            parameter(bool_param=True),
            parameter(double_param=1.5),
            parameter(string_param="a\n"),
            parameter(string_param="s" * 1025),
        ],
        "sequence_start": [parameter(int64_param=1), parameter(string_param="true")],
        "sequence_end": [parameter(double_param=0)],
        "priority": [
            parameter(int64_param=-1),
            parameter(string_param="1"),
            parameter(bool_param=True),
        ],
        "timeout": [parameter(int64_param=-1), parameter(string_param="1"), parameter()],
        "a\n": [parameter(bool_param=True)],
        "p" * 1025: [parameter(bool_param=True)],
        "triton_x": [parameter(bool_param=True)],
    }
    for key, values in wrong.items():
        for number, value in enumerate(values):
            body = request(tensor(), raw=[bytes(4)], parameters={key: value})
            yield f"{key[:16]!r}_{number}", body
    many = {f"p{n}": parameter(int64_param=n) for n in range(65)}
    yield "65", request(tensor(), raw=[bytes(4)], parameters=many)
    yield "65_of_tensor", request(tensor(parameters=many), raw=[bytes(4)])
    region = {"shared_memory_region": parameter(string_param="../../etc/passwd")}
    yield "shared_memory", request(tensor(parameters=region))
    output = pb.ModelInferRequest.InferRequestedOutputTensor(name="OUTPUT0", parameters=region)
    yield "shared_memory_output", request(tensor(), raw=[bytes(4)], outputs=[output])
    other = pb.ModelInferRequest.InferRequestedOutputTensor(name="OTHER")
    yield "other_output", request(tensor(), raw=[bytes(4)], outputs=[other])


def cases() -> dict[str, bytes]:
    """Return every case by id."""
    tables = {
        "bytes": _bytes,
        "tensor": _tensors,
        "shape": _shapes,
        "element": _elements,
        "parameter": _parameters,
    }
    return {f"{key}-{name}": data for key, table in tables.items() for name, data in table()}
