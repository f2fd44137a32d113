"""What MLflow 3.17.2 does with odd values, each observed at the real server, and what we do."""

from __future__ import annotations

import math
from typing import Any, Final, cast

import pytest

from gateway.ir.calls import InferRequest
from gateway.ir.errors import InvalidRequest
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import as_items, as_numpy
from gateway.ir.values.untyped import RowsForm
from gateway.policies.complete.untyped import quickly_typed, typed_request
from gateway.protocols.mlflow.http.codec import HttpCodec
from tests.unit.protocols.mlflow.models import answers, post

D = Datatype
JSON: Final = ("Content-Type", "application/json")
CSV: Final = ("Content-Type", "text/csv")
NAN: Final = math.nan
# The signatures of the real models: columns, and tensors with and without names.
SIGNATURES: Final[dict[str, list[tuple[str, Datatype, tuple[int, ...]]]]] = {
    "frame": [("a", D.FP64, (-1,)), ("b", D.INT64, (-1,)), ("s", D.BYTES, (-1,))],
    "ab": [("a", D.FP64, (-1,)), ("b", D.FP64, (-1,))],
    "col": [("a", D.FP64, (-1,))],
    "ints": [("i", D.INT32, (-1,)), ("l", D.INT64, (-1,))],
    "flt": [("f", D.FP32, (-1,))],
    "bin": [("x", D.BYTES, (-1,))],
    "mat": [("input", D.FP32, (-1, 2))],
    "imat": [("input", D.INT32, (-1, 2))],
    "one1": [("x", D.FP64, (-1, 1))],
    "two": [("x", D.FP64, (-1,)), ("y", D.INT64, (-1, 2))],
}
SPLIT: Final = '{"dataframe_split": {"columns": [%s], "data": [[%s]]}}'
RECORDS: Final = '{"dataframe_records": [%s]}'
ABS: Final = {"a": [1], "b": [1], "s": [b"x"]}
TAKEN: Final[list[tuple[str, str, dict[str, Any]]]] = [
    ("frame", RECORDS % '{"a": null, "b": 1.0, "s": "x"}', {**ABS, "a": [NAN]}),
    ("frame", SPLIT % ('"a", "b", "s"', 'null, 1.0, "x"'), {**ABS, "a": [NAN]}),
    ("frame", "a,b,s\n1,2.0,x\n,3,y\n", {"a": [1, NAN], "b": [2, 3], "s": [b"x", b"y"]}),
    ("frame", '{"inputs": {"a": 1, "b": 1, "s": "x"}}', ABS),
    ("frame", '{"instances": [{"a": 1, "b": 1, "s": "x"}]}', ABS),
    ("ab", '{"inputs": [{"a": 1, "b": 0.5}]}', {"a": [1], "b": [0.5]}),
    ("ab", '{"inputs": [{"a": 1, "b": 0.5}, {"b": null}]}', {"a": [1, NAN], "b": [0.5, NAN]}),
    ("ab", '{"inputs": {"a": [1, null], "b": [1, 2]}}', {"a": [1, NAN], "b": [1, 2]}),
    ("ab", '{"instances": [{"a": 1, "b": null}]}', {"a": [1], "b": [NAN]}),
    ("col", '{"dataframe_split": {"columns": ["a"], "data": [1, 2]}}', {"a": [1, 2]}),
    ("col", SPLIT % ('"a"', "1], [2"), {"a": [1, 2]}),
    ("col", RECORDS % '{"a": 1, "other": 2}', {"a": [1]}),
    ("col", "a\n1\n2\n", {"a": [1, 2]}),
    ("ints", RECORDS % '{"i": 1.0, "l": 2.0}', {"i": [1], "l": [2]}),
    ("ints", SPLIT % ('"i", "l"', "1.0, 2"), {"i": [1], "l": [2]}),
    ("ints", "i,l\n1.0,2e1\n", {"i": [1], "l": [20]}),
    ("ints", "i,l\n1,9007199254740993.0\n", {"i": [1], "l": [9007199254740993]}),
    ("ints", '{"inputs": {"i": [1.0], "l": [2.0]}}', {"i": [1], "l": [2]}),
    ("ints", RECORDS % '{"i": 1e2, "l": 9007199254740993}', {"i": [100], "l": [2**53 + 1]}),
    ("flt", RECORDS % '{"f": null}', {"f": [NAN]}),
    ("bin", RECORDS % '{"x": "aGVs\\nbG8="}', {"x": [b"hello"]}),
    ("mat", '{"inputs": [[1, null]]}', {"input": [[1, NAN]]}),
    ("mat", '{"instances": [[1, null]]}', {"input": [[1, NAN]]}),
    ("mat", SPLIT % ('"a", "b"', "1, null"), {"input": [[1, NAN]]}),
    ("imat", '{"inputs": [[1.0, 2.0]]}', {"input": [[1, 2]]}),
    ("imat", SPLIT % ('"a", "b"', "1.0, 2"), {"input": [[1, 2]]}),
    ("one1", RECORDS % '{"x": [1]}, {"x": [2]}', {"x": [[1], [2]]}),
    ("one1", SPLIT % ('"x"', "1], [2"), {"x": [[1], [2]]}),
    ("two", RECORDS % '{"x": 1, "y": [1.0, 2]}', {"x": [1], "y": [[1, 2]]}),
    ("two", '{"inputs": {"x": [1], "y": [[1.0, 2]]}}', {"x": [1], "y": [[1, 2]]}),
]
REFUSED: Final = [
    ("frame", RECORDS % '{"a": 1, "b": null, "s": "x"}', "[0].b is null"),
    ("frame", "a,b,s\n1,2.5,x\n", "line 2, column 'b' is '2.5': expected an integer"),
    ("frame", "a,b,s\n1,,x\n", "line 2, column 'b' is null: expected an integer"),
    ("frame", "a,b,s\nabc,1,x\n", "line 2, column 'a' is 'abc': expected a number"),
    ("ab", RECORDS % '{"a": [1], "b": 2}', "has shape [1, 1]: expected [-1]"),
    ("col", RECORDS % '{"q": 1}', "expected a column of its name"),
    ("mat", SPLIT % ('"a", "b"', "1, [2]"), "data[0][1] is a list"),
    ("mat", RECORDS % '{"a": 1, "b": 2}, {"a": 1, "b": [2]}', "[1].b is a list"),
    ("mat", RECORDS % '{"a": [1], "b": [2]}', "[0].a is a list"),
    ("one1", '{"inputs": {"x": [1, 2]}}', "has shape [2]: expected [-1, 1]"),
    # The server cuts these.
    ("ints", RECORDS % '{"i": 1.5, "l": 2.0}', "[0].i is 1.5: expected an integer"),
    ("imat", '{"inputs": [[1.5, 2.0]]}', "inputs[0][0] is 1.5: expected an integer"),
    # No double is exact there.
    ("ints", "i,l\n1,9007199254740991.4\n", "line 2, column 'l' is '9007199254740991.4'"),
    ("ints", "i,l\n1,1e999999999\n", "line 2, column 'l' is '1e999999999'"),
]


def typed(signature: str, body: str) -> dict[str, Any]:
    """Return the inputs of a request to a model with this signature."""
    codec = HttpCodec(options={"default_model": "m"})
    inputs = tuple([TensorMetadata(*each) for each in SIGNATURES[signature]])
    form = RowsForm(binary=frozenset({"x"}) if signature == "bin" else frozenset())
    metadata = ModelMetadata(name="m", inputs=inputs, declarations={"mlflow": form})
    call = codec.decode_call(post(body, JSON if body.startswith("{") else CSV))
    inference = cast("InferRequest", call)
    found = quickly_typed(inference, metadata) or typed_request(inference, metadata)
    return {
        tensor.name: [bytes(each) for each in as_items(tensor)]
        if tensor.datatype is Datatype.BYTES
        else as_numpy(tensor).tolist()
        for tensor in found.inputs
    }


@pytest.mark.parametrize(("signature", "body", "expected"), TAKEN)
def test_takes_what_the_server_takes_exactly(
    signature: str, body: str, expected: dict[str, Any]
) -> None:
    """Nothing is lost, so the values are those of the server."""
    assert _equal(expected, typed(signature, body)), typed(signature, body)


def _equal(expected: Any, found: Any) -> bool:
    """Return whether values are equal, NaN to NaN."""
    if isinstance(expected, dict):
        return expected.keys() == found.keys() and all(_equal(expected[k], found[k]) for k in found)
    if isinstance(expected, list):
        return len(expected) == len(found) and all(map(_equal, expected, found))
    is_nan = isinstance(expected, float) and math.isnan(expected)
    return math.isnan(found) if is_nan else bool(expected == found)


@pytest.mark.parametrize(("signature", "body", "text"), REFUSED)
def test_refuses_what_is_not_exact_with_its_place(signature: str, body: str, text: str) -> None:
    """The server refuses it, too, or changes it silently."""
    with pytest.raises(InvalidRequest) as caught:
        typed(signature, body)
    assert text in caught.value.message


async def test_a_slash_at_the_end_of_a_path_is_a_redirection() -> None:
    """The server's framework responds with 307, which clients follow."""
    for path in ("/invocations/", "/ping/", "/version//"):
        (response,) = await answers("nan", post('{"inputs": [1]}', JSON, path=path))
        assert (307, path.rstrip("/")) == (response.status, response.headers.get("location"))
    (response,) = await answers("nan", post("{}", JSON, path="/nope/"))
    assert response.status == 404
