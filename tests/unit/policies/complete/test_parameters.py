"""Flat members: inputs if the model declares them, otherwise parameters."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import InferRequest, InferResponse
from gateway.ir.context import ModelRef
from gateway.ir.errors import InvalidRequest, Unsupported, UpstreamProtocolError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import RequestedOutput, as_items, as_numpy
from gateway.ir.values.nearest import DecimalMembers, loads_to_odd, renamed_members
from gateway.policies.complete.parameters import split_flat_members, split_reply_members

M = ModelRef("m")


def split_members(members: dict[str, Any], *inputs: TensorMetadata) -> InferRequest:
    call = InferRequest(model=M, flat_members=members, parameters={"kept": 1})
    return split_flat_members(call, ModelMetadata(name="m", inputs=inputs, outputs=()))


def declared(datatype: Datatype | None, shape: tuple[int, ...] | None) -> TensorMetadata:
    return TensorMetadata("x", datatype, shape)


def test_undeclared_members_become_parameters() -> None:
    """Declared members become inputs, and no flat member remains."""
    call = split_members({"x": "a", "y": 2}, declared(Datatype.BYTES, (1,)))
    assert ["x"] == [tensor.name for tensor in call.inputs]
    assert ({"kept": 1, "y": 2}, {}) == (dict(call.parameters), dict(call.flat_members))


def test_decimals_are_rounded_once_under_another_name() -> None:
    """A layer that renames members keeps what reads their decimals again."""
    half = "1.000000059604644775390625"
    read = partial(loads_to_odd, f'{{"y":{half}01,"z":{half}}}')
    members = renamed_members(
        DecimalMembers({"y": float(half), "z": float(half)}, read), {"y": "x"}
    )
    call = split_members(members, declared(Datatype.FP32, (1,)))
    assert [np.nextafter(np.float32(1), np.float32(2))] == as_numpy(call.inputs[0]).tolist()
    assert float(half) == call.parameters["z"]


@pytest.mark.parametrize(
    ("shape", "count", "expected"),
    [
        ((1,), 1, (1,)),
        ((), 1, ()),
        ((-1,), 3, (3,)),
        ((-1, 1), 1, (1, 1)),
        ((-1, 1), 3, (3, 1)),
        ((-1, -1), 3, (1, 3)),
        ((-1, 2, -1, 3), 12, (1, 2, 2, 3)),
        ((-1,), 0, (0,)),
        (None, 2, (2,)),
        ((2, 2), 4, (2, 2)),
    ],
)
def test_shapes_are_deduced(
    shape: tuple[int, ...] | None, count: int, expected: tuple[int, ...]
) -> None:
    """Variable dimensions are 1, except the last one, which takes the remaining values."""
    (tensor,) = split_members({"x": (1,) * count}, declared(Datatype.INT32, shape)).inputs
    assert expected == tensor.shape


@pytest.mark.parametrize(("shape", "count"), [((2,), 1), ((-1, 2), 3), ((), 2), ((0,), 1)])
def test_values_must_fill_the_shape(shape: tuple[int, ...], count: int) -> None:
    """The error names the input and the number of values."""
    with pytest.raises(InvalidRequest, match=f"input 'x' .*which does not match {count} values"):
        split_members({"x": (1,) * count}, declared(Datatype.INT32, shape))


@pytest.mark.parametrize(
    ("datatype", "values", "expected"),
    [
        (Datatype.INT8, (-128, 127), [-128, 127]),
        (Datatype.UINT64, (0, (1 << 64) - 1), [0, (1 << 64) - 1]),
        (Datatype.INT64, (-(1 << 63), (1 << 53) + 1), [-(1 << 63), (1 << 53) + 1]),
        (Datatype.FP32, (1, 0.5), [1.0, 0.5]),
        (Datatype.FP16, (1.5, -2), [1.5, -2.0]),
        (Datatype.FP64, (1e300,), [1e300]),
        (Datatype.BOOL, (True, False), [True, False]),
    ],
)
def test_values_take_the_datatype_of_their_input(
    datatype: Datatype, values: tuple[Any, ...], expected: list[Any]
) -> None:
    """Values are converted exactly, up to the limits of each datatype."""
    (tensor,) = split_members({"x": values}, declared(datatype, (-1,))).inputs
    assert datatype is tensor.datatype
    assert np.array_equal(np.array(expected, datatype.numpy_dtype), as_numpy(tensor))


def test_text_is_utf8() -> None:
    """Strings become UTF-8 elements of a BYTES input."""
    (tensor,) = split_members({"x": ("größe", "")}, declared(Datatype.BYTES, (-1,))).inputs
    assert ["größe".encode(), b""] == as_items(tensor)


@pytest.mark.parametrize(
    ("datatype", "value", "text"),
    [
        (Datatype.INT8, 128, "is INT8, and 128 is out of its range"),
        (Datatype.UINT8, -1, "-1 is out of its range"),
        (Datatype.FP16, 1e6, "is FP16, and 1000000.0 is out of its range"),
        (Datatype.FP32, 10**60, "is out of its range"),
        (Datatype.INT32, 1.0, "has the value 1.0; expected an integer"),
        (Datatype.INT32, True, "has the value True; expected an integer"),
        (Datatype.FP32, "1", "has the value '1'; expected a number"),
        (Datatype.BOOL, 1, "has the value 1; expected true or false"),
        (Datatype.BYTES, 5, "has the value 5; expected a string"),
        (Datatype.BYTES, "\ud800", "text that is not valid Unicode"),
        (Datatype.BF16, 1.0, "is BF16, which JSON values cannot represent"),
        (None, 1.0, "has an unknown datatype"),
    ],
)
def test_values_outside_the_datatype_are_rejected(
    datatype: Datatype | None, value: Any, text: str
) -> None:
    """No value is rounded, wrapped or guessed."""
    with pytest.raises(InvalidRequest, match=f"input 'x' of model 'm' .*{text}"):
        split_members({"x": value}, declared(datatype, (1,)))


def test_list_cannot_be_a_parameter() -> None:
    """The error names the input that the model lacks."""
    with pytest.raises(
        InvalidRequest, match="'m' has no input 'y', and a parameter cannot be a list"
    ):
        split_members({"y": (1, 2)}, declared(Datatype.INT32, (1,)))


def test_model_without_declared_inputs_needs_configuration() -> None:
    """The error names the setting that declares inputs and outputs."""
    with pytest.raises(
        Unsupported, match=r"expected a declaration of its inputs and outputs \(models: NAME"
    ):
        split_members({"x": "a"})


def split_reply(
    members: dict[str, Any], *requested: str, outputs: tuple[TensorMetadata, ...]
) -> InferResponse:
    call = InferRequest(model=M, outputs=tuple(map(RequestedOutput, requested)))
    reply = InferResponse(model=M, outputs=(), parameters={"kept": 1}, flat_members=members)
    return split_reply_members(call, reply, ModelMetadata(name="m", outputs=outputs))


Y = TensorMetadata("Y", Datatype.FP32, (-1, 2))
Z = TensorMetadata("Z", Datatype.BYTES, (1,))


def test_declared_members_of_a_reply_become_outputs() -> None:
    """Outputs have the declared datatype and shape; other members are parameters."""
    found = split_reply({"Y": (1, 2.5, float("nan"), 3), "Z": "a", "k": 7}, outputs=(Y, Z))
    first, second = found.outputs
    assert ((2, 2), Datatype.FP32) == (first.shape, first.datatype)
    assert ["1.0", "2.5", "nan", "3.0"] == [str(each) for each in as_numpy(first).reshape(-1)]
    assert [b"a"] == as_items(second)
    assert ({"kept": 1, "k": 7}, {}) == (found.parameters, found.flat_members)


def test_reply_text_may_contain_a_cut_character() -> None:
    """The bytes of a cut character are kept in outputs and replaced in parameters."""
    found = split_reply({"Z": "a\udce2\udc82", "k": "b\udce2"}, outputs=(Y, Z))
    assert [b"a\xe2\x82"] == as_items(found.outputs[0])
    assert "b\ufffd" == found.parameters["k"]


def test_reply_outputs_have_the_requested_or_declared_order() -> None:
    """The order of the JSON members does not matter."""
    members = {"Z": "a", "Y": (1, 2)}
    for requested in ((), ("Y", "Z"), ("Z", "Y")):
        found = split_reply(members, *requested, outputs=(Y, Z)).outputs
        assert (requested or ("Y", "Z")) == tuple(output.name for output in found)


def test_only_requested_outputs_of_a_reply_are_kept() -> None:
    """Servers of the generate extension send all outputs."""
    assert ["Z"] == [
        o.name for o in split_reply({"Y": (1, 2), "Z": "a"}, "Z", outputs=(Y, Z)).outputs
    ]


@pytest.mark.parametrize(
    ("members", "requested", "why"),
    [
        ({"Y": (1, 2, 3)}, (), "output 'Y' of model 'm' has shape"),
        ({"Z": 5}, (), "output 'Z' of model 'm' has the value 5"),
        ({"other": (1, 2)}, (), "has no output 'other'"),
        ({"Z": "a"}, ("Y",), "lacks output 'Y'"),
    ],
)
def test_reply_that_contradicts_the_metadata_is_an_upstream_error(
    members: dict[str, Any], requested: tuple[str, ...], why: str
) -> None:
    """Missing, unknown or malformed outputs are an UpstreamProtocolError."""
    with pytest.raises(UpstreamProtocolError, match=why):
        split_reply(members, *requested, outputs=(Y, Z))
