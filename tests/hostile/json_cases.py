"""JSON bodies of inference requests that must be refused, by class; names are the tests' ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

ROW = {"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [1]}
DEEP = 100_000


def tensor(**members: Any) -> dict[str, Any]:
    """Return an input with *members* changed; None as a value leaves one out."""
    return {key: value for key, value in {**ROW, **members}.items() if value is not ...}


def request(*inputs: Any, **members: Any) -> bytes:
    """Write a request."""
    return json.dumps({"inputs": list(inputs), **members}).encode()


def _texts() -> Iterator[tuple[str, bytes]]:
    """Return texts that are no JSON, or JSON that parsers read in two ways."""
    good = request(ROW)
    row = json.dumps(ROW).encode()
    yield from {
        "empty": b"",
        "space": b"   ",
        "brace": b"{",
        "null": b"null",
        "true": b"true",
        "number": b"1",
        "string": b'"x"',
        "list": b"[]",
        "list_of_requests": b"[" + good + b"]",
        "two_documents": good + good,
        "trailing_comma": b'{"inputs": [' + row + b"],}",
        "trailing_text": good + b"x",
        "trailing_nul": good + b"\0",
        "leading_nul": b"\0" + good,
        "bom_twice": b"\xef\xbb\xbf" * 2 + good,
        "utf16": good.decode().encode("utf-16"),
        "utf32": good.decode().encode("utf-32"),
        "latin1": b'{"inputs": [], "id": "\xe9"}',
        "overlong_utf8": b'{"inputs": [], "id": "\xc0\xaf"}',
        "utf8_surrogate": b'{"inputs": [' + row + b'], "id": "\xed\xa0\x80"}',
        "lone_surrogate": b'{"inputs": [' + row + b'], "id": "\\ud800"}',
        "lone_low_surrogate_key": b'{"inputs": [' + row + b'], "\\udc00": 1}',
        "surrogate_in_name": good.replace(b"INPUT0", b"\\udfff"),
        "bad_escape": good.replace(b"INPUT0", b"\\x41"),
        "short_escape": good.replace(b"INPUT0", b"\\u00"),
        "raw_newline": good.replace(b"INPUT0", b"a\nb"),
        "raw_nul": good.replace(b"INPUT0", b"a\0b"),
        "escaped_nul": good.replace(b"INPUT0", b"a\\u0000b"),
        "single_quotes": good.replace(b'"', b"'"),
        "comment": b"/* x */" + good,
        "nan": good.replace(b"[1]}", b"[NaN]}"),
        "infinity": good.replace(b"[1]}", b"[-Infinity]}"),
        "python_repr": str({"inputs": [ROW], "x": None}).encode(),
        "plus": good.replace(b"[1]}", b"[+1]}"),
        "leading_zero": good.replace(b"[1]}", b"[01]}"),
        "hex_number": good.replace(b"[1]}", b"[0x1]}"),
        "point_only": good.replace(b"[1]}", b"[1.]}"),
        "digits_4301": good.replace(b"[1]}", b"[" + b"9" * 4301 + b"]}"),
        "digits_100k": good.replace(b"[1]}", b"[" + b"9" * 100_000 + b"]}"),
        "digits_in_unknown": b'{"inputs": [], "x": ' + b"9" * 200_000 + b"}",
        "exponent_huge": good.replace(b"[1]}", b"[1e999999999]}"),
        "same_key": b'{"inputs": [' + row + b'], "inputs": [' + row + b"]}",
        "same_key_escaped": b'{"inputs": [' + row + b'], "input\\u0073": [' + row + b"]}",
        "same_key_in_tensor": good.replace(b'"shape"', b'"shape": [2], "shape"'),
        "same_key_in_parameters": b'{"parameters": {"a": 1, "a": 2}, "inputs": [' + row + b"]}",
        "same_key_unknown": b'{"x": {"a": 1, "a": 2}, "inputs": [' + row + b"]}",
        "same_key_large": b'{"x": "%b", "x": 1, "inputs": [%b]}' % (b"a" * 20_000, row),
        "same_data": good.replace(b'"data"', b'"data": [2], "data"'),
        "no_end": good[:-1],
        "mebibyte_of_open_braces": b'{"a":' * 160_000,
        "mebibyte_of_brackets": b"{" + b'"a":' + b"[" * 900_000,
        "gzip_not_said": b"\x1f\x8b\x08\0\0\0\0\0\0\3",
        "html": b"<html></html>",
        "protobuf": b"\x0a\x06simple",
        "form": b"inputs=1&a=b",
        "more_than_a_mebibyte": request(tensor(shape=[400_000], data=[1] * 400_000)),
    }.items()
    for depth in (65, 500, 1023, 1025, 5_000, DEEP):
        for place, text in {
            "data": b'{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1],"data":%b1%b}]}',
            "shape": b'{"inputs":[{"name":"INPUT0","datatype":"INT32","data":[1],"shape":%b1%b}]}',
            "unknown": b'{"inputs":[],"x":%b1%b}',
            "parameters": b'{"inputs":[],"parameters":{"a":%b1%b}}',
            "id": b'{"inputs":[],"id":%b1%b}',
            "inputs": b'{"inputs":%b1%b}',
            "outputs": b'{"inputs":[],"outputs":%b1%b}',
        }.items():
            yield f"depth_{depth}_in_{place}", text % (b"[" * depth, b"]" * depth)
    yield "depth_of_objects", b'{"inputs":[],"x":' + b'{"a":' * 2000 + b"1" + b"}" * 2000 + b"}"
    yield "depth_mixed", b'{"inputs":[],"x":' + b'[{"a":' * 2000 + b"1" + b"}]" * 2000 + b"}"


_ODD: dict[str, Any] = {
    "null": None,
    "true": True,
    "zero": 0,
    "minus": -1,
    "float": 1.5,
    "text": "x",
    "empty_text": "",
    "list": [],
    "list_of_lists": [[]],
    "list_of_null": [None],
    "object": {},
    "nested": {"a": {"b": []}},
    "huge": 10**30,
    "long_text": "y" * 5000,
}
_FINE = {
    ("name", "text"),  # another name is the model's to refuse: tested below
    ("id", "text"),
    ("id", "empty_text"),
    ("id", "null"),
    ("outputs", "null"),
    ("outputs", "list"),
    ("parameters", "null"),
    ("parameters", "object"),
    ("shape", "list"),  # a scalar
}


def _members() -> Iterator[tuple[str, bytes]]:
    """Return every member with every wrong type."""
    for kind, value in _ODD.items():
        for key in ("inputs", "outputs", "parameters", "id"):
            if (key, kind) not in _FINE:
                yield f"{key}_{kind}", request(**{"inputs": [ROW], key: value})
        for key in ("name", "datatype", "shape", "data"):
            if (key, kind) not in _FINE:
                yield f"tensor_{key}_{kind}", request(tensor(**{key: value}))
        if kind not in ("null", "object"):
            yield f"tensor_parameters_{kind}", request(tensor(parameters=value))
        yield f"tensor_is_{kind}", request(value)
        yield f"output_is_{kind}", request(ROW, outputs=[value])
        if kind != "text":
            yield f"output_name_{kind}", request(ROW, outputs=[{"name": value}])
        if kind not in ("null", "object"):
            yield (
                f"output_parameters_{kind}",
                request(ROW, outputs=[{"name": "OUTPUT0", "parameters": value}]),
            )
        if kind in ("list", "object", "nested", "list_of_null"):
            yield f"parameter_{kind}", request(ROW, parameters={"a": value})
    for key in ("name", "datatype", "shape", "data"):
        yield f"tensor_without_{key}", request(tensor(**{key: ...}))
    yield "no_inputs", b"{}"
    yield "only_id", b'{"id": "a"}'


def _shapes() -> Iterator[tuple[str, bytes]]:
    """Return invalid shapes."""
    for name, shape in {
        "minus": [-1],
        "minus_pair": [-1, -1],
        "minus_huge": [-(2**63)],
        "float": [1.0],
        "exponent": [1e0],
        "bool": [True],
        "text": ["1"],
        "null": [None],
        "nested": [[1]],
        "object": [{}],
        "two": [2],
        "zero": [0],
        "zero_times_huge": [0, 2**40],
        "huge_times_zero": [2**40, 0],
        "above_dim": [2**40 + 1],
        "zero_above_dim": [0, 2**40 + 1],
        "int64": [2**63 - 1],
        "uint64": [2**64 - 1],
        "beyond": [2**64],
        "wraps_to_0": [2**32, 2**32],
        "wraps_to_1": [2**32 + 1, 2**32 - 1, 2**32 + 1],
        "wraps_32_bits": [2**16, 2**16],
        "product_2_31": [2**31],
        "rank_33": [1] * 33,
        "rank_10000": [1] * 10_000,
        "digits_4000": [10**4000],
    }.items():
        yield f"shape_{name}", request(tensor(shape=shape))
        if "zero" in name:
            yield (
                f"shape_{name}_for_bytes",
                request(tensor(shape=shape, datatype="BYTES", data=["x"])),
            )
        yield (
            f"shape_{name}_binary",
            request(tensor(shape=shape, data=..., parameters={"binary_data_size": 4})),
        )
    yield "shape_huge_without_elements", request(tensor(shape=[2**20], data=[]))


LIMITS = {
    "BOOL": (0, 1),
    "UINT8": (0, 2**8 - 1),
    "UINT16": (0, 2**16 - 1),
    "UINT32": (0, 2**32 - 1),
    "UINT64": (0, 2**64 - 1),
    "INT8": (-(2**7), 2**7 - 1),
    "INT16": (-(2**15), 2**15 - 1),
    "INT32": (-(2**31), 2**31 - 1),
    "INT64": (-(2**63), 2**63 - 1),
}
FLOATS = {"FP16": "1e5", "FP32": "1e39", "FP64": "1e309", "BF16": "1e39"}


def _elements() -> Iterator[tuple[str, str, bytes]]:
    """Return elements that do not fit, for each datatype: id, model, body."""
    for datatype, (least, most) in LIMITS.items():
        values: dict[str, Any] = {
            "below": least - 1,
            "above": most + 1,
            "far_below": -(2**64),
            "far_above": 2**65,
            "fraction": 1.5,
            "text": "1",
            "null": None,
            "list": [1, 1],
            "object": {},
        }
        if datatype == "BOOL":
            values |= {"text_true": "true", "two": 2}
        else:
            values["bool"] = True
        for kind, value in values.items():
            for size, data in {"": [value], "_of_many": [1] * 5000 + [value]}.items():
                body = request(tensor(datatype=datatype, shape=[len(data)], data=data))
                yield f"{datatype}_{kind}{size}", f"identity_{datatype.lower()}", body
    for datatype, above in FLOATS.items():
        for kind, text in {
            "above": above,
            "below": f"-{above}",
            "text": '"1.5"',
            "text_nan": '"NaN"',
            "nan": "NaN",
            "infinity": "Infinity",
            "null": "null",
            "bool": "true",
            "list": "[1, 1]",
            "object": "{}",
        }.items():
            for size, before in {"": [], "_of_many": ["1"] * 5000}.items():
                row = tensor(datatype=datatype, shape=[len(before) + 1], data="DATA")
                elements = f"[{','.join([*before, text])}]"
                body = request(row).replace(b'"DATA"', elements.encode())
                yield f"{datatype}_{kind}{size}", f"identity_{datatype.lower()}", body
    for kind, value in {
        "number": 1,
        "null": None,
        "bool": True,
        "list": ["a", "b"],
        "object": {},
        "bytes_list": [104, 105],
    }.items():
        body = request(tensor(datatype="BYTES", shape=[1], data=[value]))
        yield f"BYTES_{kind}", "identity_bytes", body
    for datatype in ("", "int32", "Int32", "FP128", "STRING", "INT32 ", "object", "i4,(9999,)f8"):
        yield f"datatype_{datatype!r}", "identity_int32", request(tensor(datatype=datatype))


def _data() -> Iterator[tuple[str, bytes]]:
    """Return data whose form and shape do not agree."""
    for name, shape, data in (
        ("too_few", [3], [1, 2]),
        ("too_many", [3], [1, 2, 3, 4]),
        ("ragged", [2, 2], [[1, 2], [3]]),
        ("ragged_sum_right", [2, 2], [[1, 2, 3], [4]]),
        ("mixed_depth", [2, 2], [[1, 2], 3, 4]),
        ("mixed_depth_late", [2, 2], [1, 2, [3, 4]]),
        ("too_deep", [2], [[1], [2]]),
        ("wrong_axes", [2, 3], [[1, 2], [3, 4], [5, 6]]),
        ("empty_lists", [2], [[], []]),
        ("empty_for_one", [1], []),
        ("scalar_for_one", [1], 1),
        ("object", [1], {"0": 1}),
        ("text", [1], "1"),
        ("base64", [1], "AQAAAA=="),
        ("nested_empty", [0], [[[]]]),
        ("ragged_large", [2, 5000], [[1] * 5001, [1] * 4999]),
        ("mixed_large", [2, 5000], [[1] * 5000, *([1] * 5000)]),
        ("deep_large", [20, 500], [[[1] * 500]] * 20),
        ("brackets_balance", [2, 2], [[[1, 2]], 3, 4]),
    ):
        yield f"data_{name}", request(tensor(shape=shape, data=data))
    yield "data_and_binary", request(tensor(parameters={"binary_data_size": 4}))


def _counts() -> Iterator[tuple[str, bytes]]:
    """Return too many of everything, harmful names, and reserved parameters of wrong types."""
    inputs = [tensor(name=f"I{n}") for n in range(257)]
    yield "inputs_257", request(*inputs)
    yield "inputs_30000_nulls", b'{"inputs": [' + b"null," * 30_000 + b"null]}"
    yield "inputs_same_name", request(ROW, ROW)
    yield "outputs_257", request(ROW, outputs=[{"name": f"O{n}"} for n in range(257)])
    yield (
        "outputs_same_name",
        request(ROW, outputs=[{"name": "OUTPUT0"}, {"name": "OUTPUT0", "parameters": {"a": 1}}]),
    )
    yield "parameters_65", request(ROW, parameters={f"p{n}": n for n in range(65)})
    yield "parameters_20000", request(ROW, parameters={f"p{n}": n for n in range(20_000)})
    yield "keys_20000", request(ROW, **{f"k{n}": n for n in range(20_000)})
    yield "tensor_keys_20000", request({**ROW, **{f"k{n}": n for n in range(20_000)}})
    yield "tensor_parameters_65", request(tensor(parameters={f"p{n}": n for n in range(65)}))
    for name, text in {
        "long": "n" * 1025,
        "long_utf8": "é" * 513,
        "control": "a\x01b",
        "newline": "a\nb",
        "crlf": "a\r\nX-Injected: 1",
        "nul": "a\0b",
        "escape": "\x1b[31mred",
        "c1": "a\x9bb",
        "delete": "a\x7f",
        "surrogate": "\ud800",
        "empty": "",
    }.items():
        yield f"name_{name}", request(tensor(name=text))
        yield f"output_name_{name}", request(ROW, outputs=[{"name": text}])
        if text:
            yield f"id_{name}", request(ROW, id=text)
            yield f"parameter_name_{name}", request(ROW, parameters={text: 1})
    wrong: dict[str, tuple[Any, ...]] = {
        "sequence_id": (-1, 1.5, True, None, [], {}, 2**64, "a\x01", "s" * 1025),
        "sequence_start": (1, "true", None, []),
        "sequence_end": (0, "x", None, {}),
        "priority": (-1, "1", True, 1.5, 2**64, None),
        "timeout": (-1, "1", True, 1.5, 2**64, None),
        "binary_data_output": (1, "true", None, []),
    }
    for key, values in wrong.items():
        for number, value in enumerate(values):
            yield f"parameter_{key}_{number}", request(ROW, parameters={key: value})
    for number, value in enumerate((-1, True, "4", 1.5, 2**64, None, 3, 5, 10**9)):
        parameters = {"binary_data_size": value}
        yield f"binary_data_size_{number}", request(tensor(data=..., parameters=parameters))
    for number, value in enumerate((1, "true", [], {})):
        outputs = [{"name": "OUTPUT0", "parameters": {"binary_data": value}}]
        yield f"binary_data_{number}", request(ROW, outputs=outputs)
    for number, value in enumerate((-1, True, "1", 1.5, 2**64)):
        outputs = [{"name": "OUTPUT0", "parameters": {"classification": value}}]
        yield f"classification_{number}", request(ROW, outputs=outputs)
    region = {"shared_memory_region": "../../etc/passwd", "shared_memory_byte_size": 4}
    yield "shared_memory", request(tensor(data=..., parameters=region))
    yield "shared_memory_output", request(ROW, outputs=[{"name": "OUTPUT0", "parameters": region}])
    yield "wrong_input_name", request(tensor(name="OTHER"))
    yield "wrong_output_name", request(ROW, outputs=[{"name": "OTHER"}])
    yield "two_inputs_for_one", request(ROW, tensor(name="OTHER"))
    yield "wrong_datatype", request(tensor(datatype="INT64"))


def cases() -> dict[str, tuple[str, bytes]]:
    """Return every case: id to model and body."""
    tables = (_texts(), _members(), _shapes(), _data(), _counts())
    found = {name: ("identity_int32", body) for table in tables for name, body in table}
    return found | {name: (model, body) for name, model, body in _elements()}
