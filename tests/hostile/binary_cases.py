"""Bodies of the binary tensor extension that lie about their parts, and coded bodies that do."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any

from tests.hostile.json_cases import LIMITS
from tests.hostile.wire import GOOD_BODY

HEADER = "Inference-Header-Content-Length"
_SIZES: dict[str, int] = {"BOOL": 1, "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8} | {
    key: int("".join(filter(str.isdigit, key))) // 8 for key in LIMITS if key != "BOOL"
}
Case = tuple[str, tuple[str, ...], bytes]
"""Model, header fields, body."""


def document(size: Any, datatype: str = "INT32", shape: Any = (2,), **members: Any) -> bytes:
    """Write the JSON part of a request with one binary input."""
    row: dict[str, Any] = {"name": "INPUT0", "datatype": datatype, "shape": list(shape)}
    row["parameters"] = {"binary_data_size": size}
    return json.dumps({"inputs": [row], **members}).encode()


def _with(length: object, body: bytes, model: str = "identity_int32") -> Case:
    return model, (f"{HEADER}: {length}",), body


def _lengths() -> Iterator[tuple[str, Case]]:
    text = document(8)
    body = text + bytes(8)
    for name, length in {
        "one_less": len(text) - 1,
        "one_more": len(text) + 1,
        "all": len(body),
        "above_all": len(body) + 1,
        "one": 1,
        "minus": -1,
        "plus": f"+{len(text)}",
        "hex": hex(len(text)),
        "float": f"{len(text)}.0",
        "exponent": "1e2",
        "underscore": "1_0",
        "empty": "",
        "text": "abc",
        "list": f"{len(text)}, {len(text)}",
        "spaces": "1 1",
        "full_width": "\u00b2",
        "2_63": 2**63,
        "2_64": 2**64,
        "2_64_and_more": 2**64 + len(text),
        "digits_4301": "9" * 4301,
    }.items():
        yield f"length_{name}", _with(length, body)
    yield "length_0", ("identity_int32", (f"{HEADER}: 0",), body)
    fields = (f"{HEADER}: {len(text)}",)
    yield "length_twice", ("identity_int32", fields * 2, body)
    yield "length_twice_differs", ("identity_int32", (*fields, f"{HEADER}: 3"), body)
    yield "length_missing", ("identity_int32", (), body)
    yield "length_of_an_empty_body", _with(10, b"")
    yield "length_0_of_an_empty_body", _with(0, b"")


def _sizes() -> Iterator[tuple[str, Case]]:
    for name, size, data in (
        ("one_less", 7, bytes(7)),
        ("one_more", 9, bytes(9)),
        ("said_more", 9, bytes(8)),
        ("said_less", 7, bytes(8)),
        ("zero", 0, b""),
        ("zero_with_data", 0, bytes(8)),
        ("minus", -8, bytes(8)),
        ("text", "8", bytes(8)),
        ("float", 8.0, bytes(8)),
        ("bool", True, bytes(8)),
        ("null", None, bytes(8)),
        ("list", [8], bytes(8)),
        ("2_32", 2**32 + 8, bytes(8)),
        ("2_63", 2**63, bytes(8)),
        ("2_64", 2**64 + 8, bytes(8)),
        ("left_over", 8, bytes(9)),
        ("left_over_much", 8, bytes(100_000)),
        ("missing", 8, b""),
    ):
        text = document(size)
        yield f"size_{name}", _with(len(text), text + data)
    for name, shape in {
        "wraps": [2**32, 2**32],
        "wraps_and_zero": [2**32, 2**32, 0, 2**41],
        "minus": [-1],
        "half": [1],
        "rank_33": [1] * 33,
    }.items():
        text = document(8, shape=shape)
        yield f"size_for_shape_{name}", _with(len(text), text + bytes(8))
    for datatype, size in _SIZES.items():
        model = f"identity_{datatype.lower()}"
        for wrong in (2 * size - 1, 2 * size + 1, size, 0):
            text = document(wrong, datatype)
            yield f"size_{wrong}_for_2_{datatype}", _with(len(text), text + bytes(wrong), model)
    row = {"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}
    text = json.dumps({"inputs": [row]}).encode()
    yield "bytes_after_json_data", _with(len(text), text + bytes(4))
    two = [
        {"name": f"I{n}", "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": 4}}
        for n in range(2)
    ]
    text = json.dumps({"inputs": two}).encode()
    yield "second_missing", _with(len(text), text + bytes(4))
    yield "second_cut", _with(len(text), text + bytes(7))


def _texts() -> Iterator[tuple[str, Case]]:
    good = struct.pack("<I", 3) + b"abc"
    for name, shape, data in (
        ("prefix_too_long", [1], struct.pack("<I", 4) + b"abc"),
        ("prefix_too_short", [1], struct.pack("<I", 2) + b"abc"),
        ("prefix_huge", [1], b"\xff\xff\xff\xff" + b"abc"),
        ("prefix_int32_minus", [1], struct.pack("<i", -1)),
        ("prefix_cut", [1], b"\3\0\0"),
        ("prefix_big_endian", [1], struct.pack(">I", 3) + b"abc"),
        ("no_prefix", [1], b"abcdefgh"),
        ("one_too_few", [2], good),
        ("one_too_many", [1], good * 2),
        ("none", [1], b""),
        ("some_for_none", [0], good),
        ("trailing", [1], good + b"\0"),
        ("many_empty", [3], bytes(16)),
        ("shape_of_a_million", [1_000_000], good),
        ("shape_above_a_million", [1_000_001], bytes(4 * 4)),
        ("last_prefix_lies", [1000], good * 999 + struct.pack("<I", 5) + b"abc"),
    ):
        text = document(len(data), "BYTES", shape)
        yield f"bytes_{name}", _with(len(text), text + data, "identity_bytes")


def _codings() -> Iterator[tuple[str, Case]]:
    packed = gzip.compress(GOOD_BODY)
    deflated = zlib.compress(GOOD_BODY)
    raw = zlib.compressobj(wbits=-15)
    raw_deflated = raw.compress(GOOD_BODY) + raw.flush()
    bomb = gzip.compress(b" " * (64 << 20))
    zip_bomb = zlib.compress(b"[" * (16 << 20))
    layered = gzip.compress(bomb)
    for name, coding, body in (
        ("garbage", "gzip", b"garbage"),
        ("garbage_after_magic", "gzip", b"\x1f\x8b\x08" + b"\xff" * 50),
        ("plain", "gzip", GOOD_BODY),
        ("empty", "gzip", b""),
        ("magic_only", "gzip", packed[:2]),
        ("head_only", "gzip", packed[:10]),
        ("cut_data", "gzip", packed[: len(packed) // 2]),
        ("cut_trailer", "gzip", packed[:-8]),
        ("cut_last", "gzip", packed[:-1]),
        ("bad_crc", "gzip", packed[:-8] + b"\0" * 4 + packed[-4:]),
        ("bad_length", "gzip", packed[:-4] + b"\xff" * 4),
        ("trailing", "gzip", packed + b"x"),
        ("two_members", "gzip", packed + packed),
        ("bomb", "gzip", bomb),
        ("bomb_twice", "gzip", layered),
        ("bomb_of_members", "gzip", gzip.compress(b"") * 20_000 + packed),
        ("bomb_name", "gzip", b"\x1f\x8b\x08\x08" + bytes(6) + b"n" * 1_000_000),
        ("deflate_bomb", "deflate", zip_bomb),
        ("deflate_garbage", "deflate", b"garbage"),
        ("deflate_cut", "deflate", deflated[:-4]),
        ("deflate_adler", "deflate", deflated[:-4] + bytes(4)),
        ("deflate_gzip", "deflate", packed),
        ("deflate_raw", "deflate", raw_deflated),
        ("gzip_deflate", "gzip", deflated),
        ("deflate_dictionary", "deflate", b"\x78\xbb" + bytes(20)),
        ("unknown", "foo", GOOD_BODY),
        ("brotli", "br", b"\x0b\x02\x80"),
        ("zstd", "zstd", b"\x28\xb5\x2f\xfd" + bytes(20)),
        ("snappy", "snappy", b"\xff\xff\xff\xff\x0f"),
        ("compress", "compress", b"\x1f\x9d\x90"),
        ("two", "gzip, gzip", gzip.compress(packed)),
        ("fifty", ", ".join(["gzip"] * 50), packed),
        ("two_kinds", "deflate, gzip", gzip.compress(deflated)),
        ("parameter", "gzip;q=1", packed),
        ("quoted", '"gzip"', packed),
        ("long", "x" * 4000, GOOD_BODY),
        ("chunked", "chunked", GOOD_BODY),
    ):
        yield f"coding_{name}", ("simple", (f"Content-Encoding: {coding}",), body)
    two = ("Content-Encoding: gzip", "Content-Encoding: gzip")
    yield "coding_two_fields", ("simple", two, gzip.compress(packed))


def cases() -> dict[str, Case]:
    """Return every case by id."""
    return {name: case for table in (_lengths, _sizes, _texts, _codings) for name, case in table()}
