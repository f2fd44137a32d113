"""The rules of grps's JSON: the union of both servers' rules, and an error for each violation."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from gateway.ir.errors import GatewayError, InvalidRequest, InvalidTensor, TooLarge, Unsupported
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, array_tensor, as_items, as_numpy, items_tensor
from gateway.protocols.grps.custom.json_path import json_value, names_in, render
from gateway.protocols.grps.json.elements import read_array
from gateway.protocols.grps.json.message import read_request, read_response, write_json
from gateway.protocols.grps.messages import ContentFormat, GrpsMessage, GrpsStatus

# These documents have no number that is read a second time.
NO_TEXT = memoryview(b"")


def tensor_of(**members: Any) -> Tensor:
    """Return the one tensor of a request."""
    document = {"gtensors": {"tensors": [members]}}
    return read_request(document, DEFAULT_LIMITS, NO_TEXT).tensors[0]


def text_of(tensor: Tensor) -> str:
    return str(as_numpy(tensor).tolist())


@pytest.mark.parametrize(
    ("dtype", "member", "elements", "found"),
    [
        ("DT_UINT8", "flat_uint8", [0, 255], [0, 255]),
        ("DT_INT8", "flatInt8", [-128, "127"], [-128, 127]),
        (3, "flat_int16", [1.0, "-2"], [1, -2]),
        ("4", "flat_int32", ["7", "8"], [7, 8]),
        ("DT_INT64", "flat_int64", ["9223372036854775807", -1], [2**63 - 1, -1]),
        ("DT_INT64", "flat_int64", ["1", "-2"], [1, -2]),
        ("DT_FLOAT16", "flat_half", [1, 0.5], [1.0, 0.5]),
        ("DT_FLOAT32", "flat_float", [1, "2.5", "-1e2"], [1.0, 2.5, -100.0]),
        ("DT_FLOAT32", "flat_float32", ["NaN", "-infinity"], [float("nan"), float("-inf")]),
        ("DT_FLOAT64", "flat_double", [1e308, 3], [1e308, 3.0]),
    ],
)
def test_numbers_are_read_in_every_spelling(
    dtype: Any, member: str, elements: list[Any], found: list[Any]
) -> None:
    """Digits in text, integral floats and words are numbers; names have two spellings."""
    tensor = tensor_of(dtype=dtype, shape=[len(elements)], **{member: elements})
    assert str(found) == text_of(tensor)


@pytest.mark.parametrize(
    ("dtype", "elements", "text"),
    [
        ("DT_UINT8", [256], "256 at index 0, out of the range of DT_UINT8"),
        ("DT_UINT8", [0, -1], "-1 at index 1"),
        ("DT_INT32", [2**31], "out of the range"),
        ("DT_INT32", [1.5], "1.5 at index 0: expected an integer"),
        ("DT_INT32", [True], "true at index 0"),
        ("DT_INT32", [None], "null at index 0"),
        ("DT_INT32", ["1_0"], "'1_0' at index 0"),
        ("DT_INT32", ["1-2"], "'1-2' at index 0"),
        ("DT_INT32", [[1]], "a list at index 0"),
        ("DT_INT64", [2**63], "an integer of 64 bits"),
        ("DT_INT64", ["9223372036854775808"], "an integer of 64 bits"),
        ("DT_FLOAT32", ["x"], "'x' at index 0: expected a number"),
        ("DT_FLOAT32", ["1e999"], "'1e999' at index 0"),
        ("DT_FLOAT32", [{"a": 1}], "an object at index 0"),
        ("DT_FLOAT32", [1e39], "out of the range of DT_FLOAT32"),
        ("DT_FLOAT16", [65520.0], "out of the range of DT_FLOAT16"),
        ("DT_FLOAT64", [10**400], "an integer beyond float"),
        ("DT_FLOAT64", [10**400, "1"], "at index 0: expected a number"),
        ("DT_STRING", [1], "1 at index 0: expected a string"),
    ],
)
def test_error_names_the_invalid_element(dtype: str, elements: list[Any], text: str) -> None:
    """The error has value and index; no element is rounded, wrapped or guessed."""
    member = f"flat_{dtype.removeprefix('DT_').lower()}"
    with pytest.raises(InvalidTensor, match=text):
        tensor_of(name="x", dtype=dtype, shape=[len(elements)], **{member: elements})


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"dtype": "dt_int8"}, "has dtype dt_int8"),
        ({"dtype": 99}, "has dtype 99"),
        ({"dtype": 1.5}, "expected a name or number"),
        ({}, "has dtype 0"),
        ({"dtype": 1, "shape": 5}, "has shape 5: expected a list"),
        ({"dtype": 1, "shape": [-1]}, "a dimension of tensor '' is -1"),
        ({"dtype": 1, "shape": [2**32]}, "integer from 0 to 4294967295"),
        ({"dtype": 1, "name": 7}, "name of a tensor is 7"),
        ({"dtype": 1, "flat_uint8": 5}, "5 in flat_uint8: expected a list"),
        ({"dtype": 1, "shape": [1], "flat_int8": [1]}, "data in flat_int8"),
        ({"dtype": 8, "shape": [1], "flat_double": [1], "flat_float64": [1]}, "twice"),
        ({"dtype": 1, "shape": [2], "flat_uint8": [1]}, "1 elements in flat_uint8"),
    ],
)
def test_inconsistent_tensors_are_rejected(members: dict[str, Any], text: str) -> None:
    """Every member is checked before it is used."""
    with pytest.raises(InvalidRequest, match=text):
        tensor_of(**members)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({"gtensors": 5}, "gtensors is 5: expected an object"),
        ({"gtensors": {"tensors": 5}}, "gtensors.tensors is 5"),
        ({"gtensors": {"tensors": [5]}}, "gtensors has 5"),
        ({"str_data": 5}, "str_data is 5: expected a string"),
        ({"str_data": False}, "str_data is false"),
        ({"str_data": "x", "model": 5}, "model is 5"),
        ({"gmap": []}, "gmap is a list"),
        ({"gmap": {"s_s": 5}}, "gmap.s_s is 5"),
        ({"gmap": {"s_s": {"a": 5}}}, "gmap.s_s.a is 5: expected a string"),
        ({"gmap": {"s_s": {}, "sS": {"a": "b"}, "s_i32": {"a": 2**31}}}, "integer from"),
        ({"gmap": {"s_s": {"a": "b"}, "sS": {"a": "b"}}}, "two spellings"),
        ({"gmap": {"s_b": {"a": "!"}}}, "expected base64"),
        ({"gmap": {"s_b": {"a": {}}}}, "an object: expected base64"),
        ({"gmap": {"s_f": {"a": 1e39}}}, "out of the range of float"),
        ({"gmap": {"s_d": {"a": "x"}}}, "expected a number"),
    ],
)
def test_members_of_the_wrong_type_are_rejected(document: dict[str, Any], text: str) -> None:
    """Members are checked at the top and in maps."""
    with pytest.raises(InvalidRequest, match=text):
        read_request(document, DEFAULT_LIMITS, NO_TEXT)


def test_nulls_and_unknown_members_are_ignored() -> None:
    """Both servers ignore them; an empty list of another member is no data."""
    absent: dict[str, Any] = {"name": None, "shape": None, "flat_int8": [], "x": 1}
    tensors = {"tensors": [{"dtype": 1, "flat_uint8": [3], **absent}]}
    document = {"gtensors": tensors, "str_data": None, "unknown": {"a": [1]}}
    assert "3" == text_of(read_request(document, DEFAULT_LIMITS, NO_TEXT).tensors[0])
    maps = {"s_s": {"a": "b"}, "s_t": {"k": 1}, "s_b": None}
    found = read_request({"gmap": maps}, DEFAULT_LIMITS, NO_TEXT)
    assert {"s_s": {"a": "b"}} == dict(found.entries)


def test_base64_is_read_in_both_alphabets() -> None:
    """Base64 may be standard or URL-safe, padded or not."""
    values = {"a": "-_8=", "b": "+/8", "c": ""}
    found = read_request({"gmap": {"s_b": values}}, DEFAULT_LIMITS, NO_TEXT).entries["s_b"]
    assert {"a": b"\xfb\xff", "b": b"\xfb\xff", "c": b""} == found


def test_texts_have_a_limit() -> None:
    """A string that is too long is rejected with its index."""
    document = {
        "gtensors": {"tensors": [{"dtype": 9, "shape": [2], "flat_string": ["a", "b" * 9]}]}
    }
    with pytest.raises(TooLarge, match="at index 1"):
        read_request(document, MessageLimits(bytes_element_size=5), NO_TEXT)
    found = read_request(document, DEFAULT_LIMITS, NO_TEXT).tensors[0]
    assert [b"a", b"b" * 9] == list(as_items(found))
    with pytest.raises(TooLarge, match="dimensions"):
        tensor_of(dtype=1, shape=[1] * 40)


@pytest.mark.parametrize(
    ("value", "shape", "found"),
    [
        (5, (), "5.0"),
        ([], (0,), "[]"),
        ([[]], (1, 0), "[[]]"),
        ([True, 2], (2,), "[1.0, 2.0]"),
        ([1e300], (1,), "[inf]"),
    ],
)
def test_ndarrays_are_read_as_numpy_does(value: Any, shape: tuple[int, ...], found: str) -> None:
    """Scalars, empty lists and booleans are read; values over float32 become infinity."""
    array = read_array(value, DEFAULT_LIMITS, None)
    assert ("float32", shape, found) == (array.dtype.name, array.shape, str(array.tolist()))


@pytest.mark.parametrize("value", [[1, [2]], [[1], 2], [[1], [2, 3]], ["1"], [None], [10**400]])
def test_invalid_ndarrays_are_rejected(value: Any) -> None:
    """Ragged lists and elements that are not numbers are invalid."""
    with pytest.raises(InvalidTensor):
        read_array(value, DEFAULT_LIMITS, None)


def test_statuses_of_servers_are_read_leniently() -> None:
    """Invalid members of a Status count as absent."""
    found = [
        read_response({"status": status}, DEFAULT_LIMITS, NO_TEXT).status
        for status in ({"code": "x", "msg": 5, "status": "ODD"}, {"code": 5, "status": 7}, "no")
    ]
    assert [GrpsStatus(), GrpsStatus(5, "", 7), None] == found


def test_unusual_statuses_are_written_as_json() -> None:
    """A flag without a name is its number, a lone surrogate is a question mark."""
    document = orjson.loads(write_json(GrpsMessage(status=GrpsStatus(1, "a\ud800", 7))))
    assert {"code": 1, "msg": "a?", "status": 7} == document["status"]


def gtensors(*tensors: Tensor) -> GrpsMessage:
    return GrpsMessage(form=ContentFormat.GTENSORS, tensors=tensors)


@pytest.mark.parametrize(
    "message",
    [
        GrpsMessage(form=ContentFormat.STR_DATA, text="\ud800"),
        gtensors(Tensor("x", None, None, items_tensor("", (0,), []).data)),
        gtensors(array_tensor("x", np.empty((0, 1 << 33), np.float32))),
    ],
)
def test_message_without_a_json_form_is_unsupported(message: GrpsMessage) -> None:
    """The codec raises no other error."""
    with pytest.raises(Unsupported):
        write_json(message)


def test_unaligned_elements_are_written() -> None:
    """A view at an odd offset of a message is copied, not rejected."""
    array = np.frombuffer(b"\x00" + np.float32(1.5).tobytes(), np.uint8)[1:].view("<f4")
    document = orjson.loads(write_json(gtensors(array_tensor("x", array))))
    assert [1.5] == document["gtensors"]["tensors"][0]["flat_float32"]


@pytest.mark.parametrize(
    ("tensor", "found"),
    [
        (items_tensor("x", (), [b"a"]), "a"),
        (items_tensor("x", (2, 2), [b"a", b"b", b"c", b"\xff"]), [["a", "b"], ["c", "/w=="]]),
        (items_tensor("x", (0, 2), []), []),
        (array_tensor("x", np.array([[True]])), [[True]]),
        (array_tensor("x", np.array([0x3FC0], np.uint16), Datatype.BF16), [1.5]),
        (array_tensor("x", np.array([np.nan, 0.5])), ["NaN", 0.5]),
        (array_tensor("x", np.array(np.inf)), "Infinity"),
        (array_tensor("x", np.array(2.5)), 2.5),
    ],
)
def test_tensors_are_plain_json(tensor: Tensor, found: Any) -> None:
    """Lists are nested like the shape; values without a JSON form are text."""
    assert found == orjson.loads(
        orjson.dumps(json_value(tensor), option=orjson.OPT_SERIALIZE_NUMPY)
    )


def test_templates_are_filled() -> None:
    """Keys and plain values stay; booleans in a longer text are those of JSON."""
    template = {"a": ["${x}", 1, None], "b": "is ${x[0]}, ${y}"}
    assert {"a": [[True], 1, None], "b": "is true, z"} == render(template, {"x": [True], "y": "z"})
    assert ({"x", "y"}, set()) == (names_in(template), names_in(5))
    with pytest.raises(GatewayError, match="no element"):
        render("${x[9]}", {"x": [1]})
    with pytest.raises(GatewayError, match="no datatype"):
        json_value(Tensor("x", None, None, items_tensor("", (0,), []).data))


@pytest.mark.parametrize("count", [100, 131_073, 300_000])
def test_many_numbers_are_read_and_written_in_pieces(count: int) -> None:
    """Number and order of the elements are kept; NaN is written as a word."""
    flat = [index % 1000 for index in range(count)]
    tensor = tensor_of(name="x", dtype="DT_INT64", shape=[count], flat_int64=flat)
    assert flat == as_numpy(tensor).tolist()
    values = np.arange(count, dtype="<f4")
    values[-1] = np.nan
    ranks = np.arange(count, dtype="<i8")
    message = gtensors(array_tensor("x", values), array_tensor("y", ranks))
    first, second = orjson.loads(write_json(message))["gtensors"]["tensors"]
    assert [*range(count - 1), "NaN"] == first["flat_float32"]
    assert list(map(str, range(count))) == second["flat_int64"]


@pytest.mark.parametrize("shape", [(300_000,), (3, 100_000), (300_000, 1), (1, 1, 300_000)])
def test_a_large_array_is_written_nested(shape: tuple[int, ...]) -> None:
    """The nesting is the shape, whichever axis is the long one."""
    array = np.arange(300_000, dtype="<f4").reshape(shape)
    message = GrpsMessage(form=ContentFormat.NDARRAY, tensors=(array_tensor("", array),))
    assert array.tolist() == orjson.loads(write_json(message))["ndarray"]


@pytest.mark.parametrize("form", ["gtensors", "ndarray"])
@pytest.mark.parametrize("last", [0.5, np.nan])
def test_the_largest_fp32_has_all_its_digits_in_a_large_list(form: str, last: float) -> None:
    """A Python server rejects its shortest text, in pieces of a long list as well."""
    values = np.full(300_000, 0.1, np.float32)
    values[[0, 200_000]] = np.finfo(np.float32).max, np.finfo(np.float32).min
    values[-1] = last
    message = GrpsMessage(form=ContentFormat(form), tensors=(array_tensor("", values),))
    text = write_json(message)
    assert 1 == text.count(b"[3.4028234663852886e38,0.1,")
    assert 1 == text.count(b",-3.4028234663852886e38,")
    assert b"3.4028235e" not in text


def test_texts_of_all_tensors_count_together() -> None:
    """The limit on BYTES elements is that of the message."""
    tensor = {"dtype": "DT_STRING", "shape": [3], "flat_string": ["a", "b", "c"]}
    document = {"gtensors": {"tensors": [{"name": name, **tensor} for name in ("x", "y")]}}
    assert 2 == len(read_request(document, MessageLimits(bytes_elements=6), NO_TEXT).tensors)
    with pytest.raises(TooLarge, match="6 in all tensors") as caught:
        read_request(document, MessageLimits(bytes_elements=5), NO_TEXT)
    assert "bytes_elements" == caught.value.limit
