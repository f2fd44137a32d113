"""Rows of JSON without datatypes become the inputs of the model, or are refused with their place."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import GatewayError, InvalidRequest, MalformedMessage, TooLarge
from gateway.ir.limits import DEFAULT_LIMITS, MessageLimits
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.data import UntypedRules
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Shape, as_numpy
from gateway.ir.values.untyped import RowsForm
from gateway.policies.complete.untyped import typed_request
from gateway.wire.rows.read import RowsReader, read_rows_document

D = Datatype
RULES = UntypedRules()
PADDING = " " * 9000
"""Makes a document long: another parser reads it, and lists of numbers become arrays."""


def x(datatype: Datatype, *shape: int) -> TensorMetadata:
    return TensorMetadata("x", datatype, shape)


def typed(
    body: str,
    inputs: tuple[TensorMetadata, ...],
    rules: UntypedRules = RULES,
    limits: MessageLimits = DEFAULT_LIMITS,
    form: RowsForm | None = None,
) -> InferRequest:
    """Read a body by its only key, and complete it."""
    document = read_rows_document(memoryview(body.encode()), "the body", limits)
    (key,) = [each for each in document.members if each != "other"]
    reader = RowsReader(document, limits, rules)
    read = {
        "instances": reader.rows,
        "inputs": reader.columns,
        "dataframe_split": reader.split_table,
        "dataframe_records": reader.record_table,
    }
    declarations = {} if form is None else {"": form}
    metadata = ModelMetadata(name="m", inputs=inputs, declarations=declarations)
    return typed_request(InferRequest(model=ModelRef("m"), inputs=read[key](key)), metadata)


@dataclass(frozen=True)
class Case:
    name: str
    body: str
    inputs: tuple[TensorMetadata, ...]
    expected: list[tuple[str, Shape, Any]]


AB = (TensorMetadata("a", D.INT64, (-1,)), TensorMetadata("b", D.FP64, (-1, 1)))
CASES = [
    Case("plain_rows", '{"instances": [[1, 2], [3, 4]]}', (x(D.INT64, -1, 2),), [("x", (2, 2), [[1, 2], [3, 4]])]),
    Case("a_scalar", '{"inputs": 3}', (x(D.UINT8),), [("x", (), 3)]),
    Case("empty_columns", '{"inputs": []}', (x(D.FP32, -1),), [("x", (0,), [])]),
    Case("rows_of_nothing", '{"inputs": [[], []]}', (x(D.FP32, -1, -1),), [("x", (2, 0), [[], []])]),
    Case(
        "objects_are_stacked",
        '{"instances": [{"a": 1, "b": [0.5]}, {"b": [2], "a": 3}]}',
        AB,
        [("a", (2,), [1, 3]), ("b", (2, 1), [[0.5], [2.0]])],
    ),
    Case(
        "an_object_of_columns",
        '{"inputs": {"a": [1, 3], "b": [[0.5], [2]]}}',
        AB,
        [("a", (2,), [1, 3]), ("b", (2, 1), [[0.5], [2.0]])],
    ),
    Case(
        "a_table_by_column",
        '{"dataframe_split": {"columns": ["b", "a"], "data": [[0.5, 1], [2, 3]], "index": [7, 8]}}',
        AB,
        [("a", (2,), [1, 3]), ("b", (2, 1), [[0.5], [2.0]])],
    ),
    Case(
        "records_by_column",
        '{"dataframe_records": [{"a": 1, "b": 0.5}, {"b": 2, "a": 3}]}',
        AB,
        [("a", (2,), [1, 3]), ("b", (2, 1), [[0.5], [2.0]])],
    ),
    Case(
        "a_table_as_a_matrix",
        '{"dataframe_split": {"columns": ["p", "q"], "data": [[1, 0.5], [2, 4]]}}',
        (x(D.FP32, -1, 2),),
        [("x", (2, 2), [[1.0, 0.5], [2.0, 4.0]])],
    ),
    Case("texts", '{"instances": ["é", {"b64": "/w=="}]}', (x(D.BYTES, -1),), [("x", (2,), ["é".encode(), b"\xff"])]),
    Case("flags", '{"instances": [true, false]}', (x(D.BOOL, -1),), [("x", (2,), [True, False])]),
    Case("widest_unsigned", '{"instances": [18446744073709551615]}', (x(D.UINT64, -1),), [("x", (1,), [2**64 - 1])]),
    Case("least_signed", '{"instances": [-9223372036854775808]}', (x(D.INT64, -1),), [("x", (1,), [-(2**63)])]),
    Case("beyond_53_bits", '{"instances": [9007199254740993]}', (x(D.INT64, -1),), [("x", (1,), [2**53 + 1])]),
    Case("infinities", '{"instances": [Infinity, -Infinity]}', (x(D.FP16, -1),), [("x", (2,), [np.inf, -np.inf])]),
    Case("other_members", '{"instances": [1], "other": {"a": [[2]]}}', (x(D.INT8, -1),), [("x", (1,), [1])]),
]  # fmt: skip


@pytest.mark.parametrize("padding", ["", PADDING], ids=["short", "long"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_rows_become_inputs(case: Case, padding: str) -> None:
    """Each form gives the inputs of the model, whichever parser reads it."""
    call = typed(case.body + padding, case.inputs)
    found = [(each.name, each.shape, as_numpy(each).tolist()) for each in call.inputs]
    assert case.expected == found
    declared = {each.name: each.datatype for each in case.inputs}
    assert {each.name: each.datatype for each in call.inputs} == declared


REFUSED = [
    ('{"instances": [[1, 2], [3, 4.0]]}', x(D.INT64, -1, 2), "instances[1][1] is 4.0: expected an integer for INT64"),
    ('{"instances": [1, 1e2]}', x(D.INT64, -1), "instances[1] is 100.0: expected an integer"),
    ('{"instances": [1.5]}', x(D.INT32, -1), "instances[0] is 1.5: expected an integer"),
    ('{"instances": [256]}', x(D.UINT8, -1), "instances[0] is 256: expected a value in the range of UINT8"),
    ('{"instances": [-1]}', x(D.UINT64, -1), "instances[0] is -1: expected a value in the range of UINT64"),
    ('{"instances": [32768]}', x(D.INT16, -1), "instances[0] is 32768: expected a value in the range"),
    ('{"instances": [2147483648]}', x(D.INT32, -1), "instances[0] is 2147483648: expected a value in the range"),
    ('{"instances": [18446744073709551616]}', x(D.UINT64, -1), "instances[0] is 1.8446744073709552e+19: expected an integer"),
    ('{"instances": [0, 1e39]}', x(D.FP32, -1), "instances[1] is 1e+39: expected a value in the range of FP32"),
    ('{"instances": [65520]}', x(D.FP16, -1), "instances[0] is 65520: expected a value in the range of FP16"),
    ('{"instances": [1, 3.4e38]}', x(D.BF16, -1), "instances[1] is 3.4e+38: expected a value in the range of BF16"),
    ('{"instances": [1, true]}', x(D.FP32, -1), "instances[1] is true: expected a number for FP32"),
    ('{"instances": [true]}', x(D.INT8, -1), "instances[0] is true: expected an integer"),
    ('{"instances": [1]}', x(D.BOOL, -1), "instances[0] is 1: expected true or false for BOOL"),
    ('{"instances": [1, null]}', x(D.FP32, -1), "instances[1] is null: expected a number"),
    ('{"instances": [1, "2"]}', x(D.FP32, -1), "instances[1] is '2': expected a number"),
    ('{"instances": ["a", 1]}', x(D.BYTES, -1), "instances[1] is 1: expected a string"),
    ('{"instances": [{"b64": "*"}]}', x(D.BYTES, -1), "instances[0] is '*': expected base64 text"),
    ('{"instances": [[1, 2], [3]]}', x(D.FP32, -1, 2), "instances[1] is a list of 1: expected a list of 2"),
    ('{"instances": [[1, 2], 3]}', x(D.FP32, -1, 2), "instances[1] is 3: expected a list of 2"),
    ('{"instances": [[1, 2], [3, [4]]]}', x(D.FP32, -1, 2), "instances[1][1] is a list: expected an element"),
    ('{"instances": [[1, 2], [[3], 4]]}', x(D.FP32, -1, 2), "instances[1][0] is a list: expected an element"),
    ('{"instances": [1, {"x": 1}]}', x(D.FP32, -1), "instances[1] is an object: expected a number"),
    ('{"instances": [{"x": 1}, 1]}', x(D.FP32, -1), "instances[1] is 1: expected an object"),
    ('{"instances": [{"x": 1}, {"x": "2"}]}', x(D.FP32, -1), "instances[1].x is '2': expected a number"),
    ('{"instances": [{"x": [1, 2]}, {"x": [3, 4.5]}]}', x(D.INT8, -1, 2), "instances[1].x[1] is 4.5: expected an integer"),
    ('{"instances": [{"x": 1}, {"y": 1}]}', x(D.FP32, -1), "instances[1] lacks 'x', which instances[0] has"),
    ('{"instances": [{"x": 1}, {"x": 1, "y": 1}]}', x(D.FP32, -1), "instances[1] has 'y', which instances[0] lacks"),
    ('{"instances": [{"y": 1}]}', x(D.FP32, -1), "model 'm' has no input 'y'; its inputs are 'x'"),
    ('{"instances": []}', x(D.FP32, -1), "instances is an empty list"),
    ('{"instances": 1}', x(D.FP32, -1), "instances is 1: expected a list of rows"),
    ('{"inputs": null}', x(D.FP32, -1), "inputs is null"),
    ('{"inputs": {}}', x(D.FP32, -1), "inputs is an empty object"),
    ('{"inputs": [1, 2]}', x(D.FP32, -1, 2), "inputs has shape [2]: expected [-1, 2] for input 'x'"),
    ('{"inputs": {"x": [[1, 2, 3]]}}', x(D.FP32, -1, 2), "inputs.x has shape [1, 3]: expected [-1, 2]"),
    ('{"dataframe_split": {"columns": ["p", "q"], "data": [[1, 2], [16777217, 3]]}}', x(D.FP32, -1, 2), "dataframe_split.data[1][0] is 16777217: expected an integer that FP32 can hold"),
    ('{"dataframe_split": {"columns": ["p", "q"], "data": [[1, 2], ["a", 3]]}}', x(D.FP32, -1, 2), "dataframe_split.data[1][0] is 'a': expected a number"),
    ('{"dataframe_split": {"columns": ["p", "q"], "data": [[1, 2], [3]]}}', x(D.FP32, -1, 2), "dataframe_split.data[1] has 1 values: expected 2"),
    ('{"dataframe_split": {"columns": ["p", "p"], "data": []}}', x(D.FP32, -1, 2), "dataframe_split.columns has 'p' twice"),
    ('{"dataframe_records": [{"p": 1, "q": 2}, {"p": 3}]}', x(D.FP32, -1, 2), "dataframe_records[1].q is null: expected a number"),
]  # fmt: skip


@pytest.mark.parametrize("padding", ["", PADDING], ids=["short", "long"])
@pytest.mark.parametrize(
    ("body", "declared", "text"), REFUSED, ids=[str(at) for at in range(len(REFUSED))]
)
def test_what_does_not_fit_is_refused_with_its_place(
    body: str, declared: TensorMetadata, text: str, padding: str
) -> None:
    """Nothing is truncated, wrapped or guessed, and the error says where the value stands."""
    with pytest.raises(InvalidRequest, match=re.escape(text)):
        typed(body + padding, (declared,))


@pytest.mark.parametrize("body", ['{"instances": [1, 2]}', '{"inputs": 3}'])
def test_values_without_names_need_a_model_with_one_input(body: str) -> None:
    """The error names the inputs of the model."""
    with pytest.raises(InvalidRequest, match="expected objects with 'a', 'b'"):
        typed(body, AB)


def test_a_missing_input_is_refused() -> None:
    """The error names what the request has."""
    with pytest.raises(InvalidRequest, match="needs input 'b', the request has 'a'"):
        typed('{"inputs": {"a": [1]}}', AB)


def test_surplus_inputs_are_dropped_or_refused() -> None:
    """Strictly, they are refused."""
    body = '{"inputs": {"a": [1], "b": [[2]], "c": [3]}}'
    call = typed(body, AB, UntypedRules(drops_surplus=True))
    assert ["a", "b"] == [each.name for each in call.inputs]
    with pytest.raises(InvalidRequest, match="no input 'c'"):
        typed(body, AB)


@pytest.mark.parametrize("padding", ["", PADDING], ids=["short", "long"])
def test_null_is_nan_only_where_it_is_allowed(padding: str) -> None:
    """It never becomes an integer."""
    rules = UntypedRules(has_nulls=True)
    body = '{"inputs": [1, null]}' + padding
    (tensor,) = typed(body, (x(D.FP32, -1),), rules).inputs
    assert np.isnan(as_numpy(tensor)).tolist() == [False, True]
    with pytest.raises(InvalidRequest, match=re.escape("inputs[1] is null")):
        typed(body, (x(D.INT64, -1),), rules)


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        ('{"instances": [1e400]}', MalformedMessage, "not JSON"),
        ('{"instances": [{"a": 1, "a": 2}]}', MalformedMessage, "'a' (occurs )?twice"),
        ('{"instances": [1], "instances": [2]}', MalformedMessage, "'instances' (occurs )?twice"),
        ("[1]", MalformedMessage, "the body is a list of 1 items: expected an object"),
        ("", MalformedMessage, "not JSON"),
        ('{"instances": ' + "[" * 65 + "]" * 65 + "}", TooLarge, "nested too deep"),
        ('{"instances": ' + "[" * 40 + "1" + "]" * 40 + "}", TooLarge, "40 dimensions"),
        ('{"instances": ["' + "\\ud800" + '"]}', MalformedMessage, "not JSON"),
    ],
)
@pytest.mark.parametrize("padding", ["", PADDING], ids=["short", "long"])
def test_broken_documents_are_refused(
    body: str, error: type[GatewayError], text: str, padding: str
) -> None:
    """Only errors of the gateway are raised, whatever the bytes are."""
    with pytest.raises(error, match=text):
        typed(body + padding, (x(D.FP32, -1),))


def test_python_objects_are_bounded_before_they_are_made() -> None:
    """A long list of texts may have at most `bytes_elements` values."""
    limits = MessageLimits(bytes_elements=1000)
    body = json.dumps({"inputs": ["some text"] * 1001})
    with pytest.raises(TooLarge, match="1001 values in the message"):
        typed(body, (x(D.BYTES, -1),), limits=limits)


def test_declared_columns_are_put_in_order() -> None:
    """A missing column and an unknown one are refused by name."""
    form = RowsForm(columns=("q", "p"))
    body = '{"dataframe_split": {"columns": ["p", "q"], "data": [[1, 2]]}}'
    (tensor,) = typed(body, (x(D.FP32, -1, 2),), form=form).inputs
    assert [[2.0, 1.0]] == as_numpy(tensor).tolist()
    with pytest.raises(InvalidRequest, match="has no column 'r'"):
        typed(body, (x(D.FP32, -1, 2),), form=RowsForm(columns=("p", "r")))


@pytest.mark.parametrize(
    ("datatype", "values"), [(D.FP64, "[1, 2.5]"), (D.INT64, "[1, 2]"), (D.BYTES, '["1", "2"]')]
)
def test_declared_columns_are_stacked(datatype: Datatype, values: str) -> None:
    """Columns with names of their own are the matrix, as a table is."""
    body = f'{{"inputs": {{"p": {values}, "q": {values}}}}}'
    (tensor,) = typed(body, (x(datatype, -1, 2),), form=RowsForm(columns=("q", "p"))).inputs
    assert (tensor.name, tensor.datatype, tensor.shape) == ("x", datatype, (2, 2))
    assert as_numpy(tensor)[0].tolist() == as_numpy(tensor)[:, 0].tolist()[:1] * 2
    longer = body.replace(f'"q": {values}', '"q": ' + values.replace("]", ", " + values[1:]))
    with pytest.raises(InvalidRequest, match="the columns 'q', 'p' differ in length"):
        typed(longer, (x(datatype, -1, 2),), form=RowsForm(columns=("q", "p")))
    with pytest.raises(InvalidRequest, match=r"model 'm' (needs input 'x'|has no input 'p')"):
        typed(body, (x(datatype, -1, 2),), form=RowsForm(columns=("q", "r")))


def test_declared_binary_texts_are_base64() -> None:
    """They become the bytes that they encode."""
    body = '{"inputs": ["/wA="]}'
    (tensor,) = typed(body, (x(D.BYTES, -1),), form=RowsForm(binary=frozenset({"x"}))).inputs
    assert [b"\xff\x00"] == as_numpy(tensor).tolist()
