"""Completing tensors from metadata."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np
import pytest

from gateway.ir.context import ModelRef, Need
from gateway.ir.errors import InvalidRequest, InvalidTensor, UpstreamProtocolError
from gateway.ir.metadata import TensorMetadata
from gateway.ir.tensors.data import ArrayData, ItemsData, RawData
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import Tensor, items_tensor, raw_tensor
from gateway.policies.complete.policy import is_incomplete
from gateway.policies.complete.tensors import (
    ALL_NEEDS,
    TensorCompleter,
    is_raw_binary_request,
)

INT32, FP32, BYTES = Datatype.INT32, Datatype.FP32, Datatype.BYTES
A = TensorMetadata("A", INT32, (-1, 2))
B = TensorMetadata("B", FP32, (3,))
T = TensorMetadata("T", BYTES, (-1,))
EIGHT = bytes(range(8))
NAMES, DATATYPES, SHAPES = (frozenset({need}) for need in (Need.NAMES, Need.DATATYPES, Need.SHAPES))


def raw(
    data: bytes,
    name: str = "",
    datatype: Datatype | None = None,
    shape: tuple[int, ...] | None = None,
) -> Tensor:
    return Tensor(name, datatype, shape, RawData(memoryview(data)))


def whole(name: str, datatype: Datatype, shape: tuple[int, ...], data: bytes) -> Tensor:
    return raw_tensor(name, datatype, shape, memoryview(data))


@dataclass(frozen=True)
class Case:
    name: str
    declared: tuple[TensorMetadata, ...]
    tensors: tuple[Tensor, ...]
    expected: tuple[Tensor, ...]
    needs: frozenset[Need] = ALL_NEEDS
    batches: bool = False


CASES = [
    Case("nothing_but_bytes", (A,), (raw(EIGHT),), (whole("A", INT32, (1, 2), EIGHT),)),
    Case(
        "bare_whatever_is_needed", (A,), (raw(EIGHT),), (whole("A", INT32, (1, 2), EIGHT),), NAMES
    ),
    Case("bare_two_rows", (A,), (raw(EIGHT * 2),), (whole("A", INT32, (2, 2), EIGHT * 2),)),
    Case(
        "bare_batch_is_one",
        (TensorMetadata("A", INT32, (-1, -1)),),
        (raw(EIGHT * 2),),
        (whole("A", INT32, (1, 4), EIGHT * 2),),
        batches=True,
    ),
    Case("bare_empty", (A,), (raw(b""),), (whole("A", INT32, (0, 2), b""),)),
    Case(
        "bare_fixed",
        (TensorMetadata("A", INT32, (2,)),),
        (raw(EIGHT),),
        (whole("A", INT32, (2,), EIGHT),),
    ),
    Case(
        "bare_scalar",
        (TensorMetadata("A", Datatype.INT64, ()),),
        (raw(EIGHT),),
        (whole("A", Datatype.INT64, (), EIGHT),),
        batches=True,
    ),
    Case(
        "bare_zero_dimension",
        (TensorMetadata("A", INT32, (-1, 0)),),
        (raw(b""),),
        (whole("A", INT32, (0, 0), b""),),
    ),
    Case("bare_text", (T,), (raw(b"hello"),), (items_tensor("T", (1,), [b"hello"]),)),
    Case(
        "bare_text_batched",
        (TensorMetadata("T", BYTES, (-1, 1)),),
        (raw(b"hello"),),
        (items_tensor("T", (1, 1), [b"hello"]),),
        batches=True,
    ),
    Case(
        "bare_text_of_unknown_shape",
        (TensorMetadata("T", BYTES, None),),
        (raw(b""),),
        (items_tensor("T", (1,), [b""]),),
    ),
    Case(
        "names_by_position",
        (A, B),
        (raw(EIGHT, "", INT32, (1, 2)), raw(bytes(12), "", FP32, (3,))),
        (whole("A", INT32, (1, 2), EIGHT), whole("B", FP32, (3,), bytes(12))),
    ),
    Case(
        "places_count_the_named_too",
        (A, B),
        (raw(EIGHT, "A", INT32, (1, 2)), raw(bytes(12), "", FP32, (3,))),
        (whole("A", INT32, (1, 2), EIGHT), whole("B", FP32, (3,), bytes(12))),
    ),
    Case(
        "only_what_is_needed",
        (A,),
        (raw(EIGHT, "A"),),
        (raw(EIGHT, "A", INT32),),
        DATATYPES,
    ),
    Case(
        "names_are_not_needed",
        (A, B),
        (raw(EIGHT, "", INT32), raw(bytes(12), "", FP32)),
        (raw(EIGHT, "", INT32, (1, 2)), raw(bytes(12), "", FP32, (3,))),
        SHAPES,
    ),
    Case(
        "datatype_and_shape_by_name",
        (A, B),
        (raw(bytes(12), "B"), raw(EIGHT, "A")),
        (whole("B", FP32, (3,), bytes(12)), whole("A", INT32, (1, 2), EIGHT)),
    ),
    Case(
        "datatype_for_a_shape",
        (A,),
        (raw(EIGHT, "A", None, (1, 2)),),
        (whole("A", INT32, (1, 2), EIGHT),),
    ),
    Case(
        "shape_of_an_array",
        (A,),
        (Tensor("A", INT32, None, ArrayData(np.zeros((5, 2), np.int32))),),
        (Tensor("A", INT32, (5, 2), ArrayData(np.zeros((5, 2), np.int32))),),
    ),
    Case(
        "shape_of_prefixed_text",
        (T,),
        (raw(b"\x01\0\0\0a\0\0\0\0", "T"),),
        (items_tensor("T", (2,), [b"a", b""]),),
    ),
    Case(
        "shape_of_text_items",
        (T,),
        (Tensor("T", BYTES, None, ItemsData([b"a", b"b"])),),
        (items_tensor("T", (2,), [b"a", b"b"]),),
    ),
    Case(
        "one_element_of_two_variable_dimensions",
        (TensorMetadata("T", BYTES, (-1, 1, -1)),),
        (Tensor("", BYTES, None, ItemsData([b"a"])),),
        (items_tensor("T", (1, 1, 1), [b"a"]),),
    ),
    Case(
        "one_text_of_no_declared_shape",
        (TensorMetadata("T", BYTES, None),),
        (Tensor("", BYTES, None, ItemsData([b"a"])),),
        (items_tensor("T", (1,), [b"a"]),),
    ),
    Case(
        "whole_tensors_stay",
        (A,),
        (whole("A", INT32, (1, 2), EIGHT),),
        (whole("A", INT32, (1, 2), EIGHT),),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_missing_parts_are_filled_in(case: Case) -> None:
    """Missing names, datatypes and shapes come from the metadata; the data are not copied."""
    filling = TensorCompleter("input", ModelRef("m"), case.declared, case.batches, InvalidRequest)
    found = filling.complete(case.tensors, case.needs)
    assert case.expected == found
    for tensor, completed in zip(case.tensors, found, strict=True):
        if completed.data is not tensor.data:  # raw bytes became one element
            assert isinstance(tensor.data, RawData)
            assert isinstance(completed.data, ItemsData)
            (item,) = completed.data.items
            assert item is tensor.data.view


@dataclass(frozen=True)
class Misfit:
    name: str
    declared: tuple[TensorMetadata, ...]
    tensors: tuple[Tensor, ...]
    message: str
    batches: bool = False
    kind: str = "input"
    needs: frozenset[Need] = field(default=ALL_NEEDS)


MISFITS = [
    Misfit(
        "too_many",
        (A,),
        (raw(EIGHT, "", INT32, (1, 2)), raw(b"", "", INT32, (0, 2))),
        "model 'm version 2' has 1 inputs, the message has 2",
    ),
    Misfit(
        "unknown_name",
        (A, B),
        (raw(EIGHT, "C"),),
        "model 'm version 2' has no input 'C'; its inputs are 'A', 'B'",
    ),
    Misfit(
        "no_outputs",
        (),
        (raw(EIGHT, "C"),),
        "model 'm version 2' has no output 'C'; its outputs are none",
        kind="output",
    ),
    Misfit(
        "datatype_not_told",
        (TensorMetadata("A", None, (1,)),),
        (raw(EIGHT, "A"),),
        "model 'm version 2' declares no datatype for input 'A'",
    ),
    Misfit(
        "shape_not_told",
        (TensorMetadata("A", INT32, None),),
        (raw(EIGHT, "A"),),
        "model 'm version 2' declares no shape for input 'A'",
    ),
    Misfit(
        "odd_bytes",
        (A,),
        (raw(b"123456789"),),
        "model 'm version 2' has input 'A' of INT32, and 9 bytes are not a multiple of 4",
    ),
    Misfit(
        "does_not_fill",
        (A,),
        (raw(bytes(12)),),
        "model 'm version 2' has input 'A' of shape [-1, 2], which does not match 3 elements",
    ),
    Misfit(
        "place_that_is_named_elsewhere",
        (A, T),
        (raw(b"", "", FP32, (0,)), raw(EIGHT, "A", INT32, (1, 2))),
        "model 'm version 2' has input 'A' at position 0, where the message has an unnamed "
        "one, but the message also has one with this name",
    ),
    Misfit(
        "more_than_batch_one",
        (A,),
        (raw(bytes(16)),),
        "model 'm version 2' has input 'A' of shape [-1, 2] with batch size 1, "
        "which does not match 4 elements",
        batches=True,
    ),
    Misfit(
        "elements_for_a_zero_dimension",
        (TensorMetadata("A", INT32, (-1, 0)),),
        (raw(EIGHT),),
        "model 'm version 2' has input 'A' of shape [-1, 0], which does not match 2 elements",
    ),
    Misfit(
        "two_variable_dimensions",
        (TensorMetadata("A", INT32, (-1, -1)),),
        (raw(EIGHT),),
        "model 'm version 2' has input 'A' of shape [-1, -1]; data without a shape allows "
        "one variable dimension",
    ),
    Misfit(
        "one_element_for_two_variable_dimensions",
        (TensorMetadata("A", INT32, (-1, -1)),),
        (raw(bytes(4)),),
        "model 'm version 2' has input 'A' of shape [-1, -1]; data without a shape allows "
        "one variable dimension",
    ),
    Misfit(
        "text_for_two_variable_dimensions",
        (TensorMetadata("T", BYTES, (-1, -1)),),
        (raw(b"hello"),),
        "model 'm version 2' has input 'T' of shape [-1, -1]; raw bytes can only be one BYTES "
        "element",
    ),
    Misfit(
        "text_for_a_variable_dimension_beside_the_batch",
        (TensorMetadata("T", BYTES, (-1, -1)),),
        (raw(b"hello"),),
        "model 'm version 2' has input 'T' of shape [-1, -1]; raw bytes can only be one BYTES "
        "element",
        batches=True,
    ),
    Misfit(
        "text_for_many_elements",
        (TensorMetadata("T", BYTES, (4,)),),
        (raw(b"hello"),),
        "model 'm version 2' has input 'T' of shape [4]; raw bytes can only be one BYTES element",
    ),
    Misfit(
        "shape_given_does_not_fit_the_bytes",
        (A,),
        (raw(EIGHT, "A", None, (3, 2)),),
        "model 'm version 2' has input 'A' of INT32: the data has 2 elements, shape [3, 2] needs 6",
    ),
]


@pytest.mark.parametrize("case", MISFITS, ids=lambda case: case.name)
@pytest.mark.parametrize("failure", [InvalidRequest, UpstreamProtocolError])
def test_error_describes_the_mismatch(
    case: Misfit, failure: type[InvalidRequest | UpstreamProtocolError]
) -> None:
    """The error has the class of the side at fault, and names the found and the expected."""
    filling = TensorCompleter(case.kind, ModelRef("m", "2"), case.declared, case.batches, failure)
    with pytest.raises(failure, match=f"^{re.escape(case.message)}$"):
        filling.complete(case.tensors, case.needs)


def test_malformed_bytes_input_is_rejected() -> None:
    """Wrong length prefixes are found while elements are counted."""
    with pytest.raises(InvalidTensor, match="hold only 0 complete BYTES elements"):
        TensorCompleter("input", ModelRef("m"), (T,), False, InvalidRequest).complete(
            (raw(b"\xff\0\0\0a", "T"),), ALL_NEEDS
        )


@pytest.mark.parametrize("shape", [None, (1,)])
def test_malformed_bytes_output_is_an_upstream_error(shape: tuple[int, ...] | None) -> None:
    """A client with a valid request does not get an error about its request."""
    completer = TensorCompleter("output", ModelRef("m"), (T,), False, UpstreamProtocolError)
    with pytest.raises(UpstreamProtocolError, match="hold only 0 complete BYTES elements"):
        completer.complete((raw(b"\xff\0\0\0a", "T", None, shape),), ALL_NEEDS)


@pytest.mark.parametrize(
    ("tensor", "needs", "expected"),
    [
        (raw(EIGHT, "A", INT32, (2,)), ALL_NEEDS, False),
        (raw(EIGHT, "", INT32, (2,)), ALL_NEEDS, True),
        (raw(EIGHT, "", INT32, (2,)), DATATYPES | SHAPES, False),
        (raw(EIGHT, "A", None, (2,)), DATATYPES, True),
        (raw(EIGHT, "A", None, (2,)), NAMES | SHAPES, False),
        (raw(EIGHT, "A", INT32), SHAPES, True),
        (raw(EIGHT, "A", INT32), NAMES | DATATYPES, False),
    ],
)
def test_only_needed_parts_count_as_missing(
    tensor: Tensor, needs: frozenset[Need], expected: bool
) -> None:
    """A tensor is incomplete only if a needed part is absent."""
    assert expected == is_incomplete([tensor], needs)


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        ([raw(EIGHT)], True),
        ([raw(EIGHT), raw(EIGHT)], False),
        ([raw(EIGHT, "A")], False),
        ([raw(EIGHT, "", INT32)], False),
        ([raw(EIGHT, "", None, (2,))], False),
        ([], False),
    ],
)
def test_raw_binary_request_is_a_single_bare_tensor(tensors: list[Tensor], expected: bool) -> None:
    """Only a single tensor without name, datatype and shape is a raw binary request."""
    assert expected == is_raw_binary_request(tensors)
