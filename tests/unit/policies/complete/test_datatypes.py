"""Substitute datatypes, sent by protocols without BOOL and BF16, become the declared ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gateway.ir.calls import Call, InferRequest, InferResponse, ModelMetadataRequest
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.errors import GatewayError, InvalidRequest, Unavailable, UpstreamProtocolError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype, bf16_of_fp32
from gateway.ir.tensors.tensor import RequestedOutput, Tensor, array_tensor, as_numpy, as_raw
from gateway.policies.complete.datatypes import (
    DatatypeRestorer,
    in_order,
    may_be_substitute,
    substitute_kind,
)
from gateway.policies.complete.policy import Complete
from tests.fakes import ScriptedService

M = ModelRef("m")
BOOL, BF16 = Datatype.BOOL, Datatype.BF16
DECLARED = (
    TensorMetadata("mask", BOOL, (-1,)),
    TensorMetadata("half", BF16, (-1,)),
    TensorMetadata("byte", Datatype.UINT8, (-1,)),
    TensorMetadata("unknown", None, (-1,)),
)
SUBSTITUTES = frozenset({Need.SUBSTITUTES})
IN_ORDER = frozenset({Need.OUTPUTS})
INPUTS = DatatypeRestorer("input", M, DECLARED, InvalidRequest)

BYTES = array_tensor("mask", np.array([0, 1, 1], np.uint8))
FLOATS = np.array([-0.0, 1.5, -np.inf, np.nan, 3.3895313892515355e38], np.float32)
HALVES = array_tensor("half", FLOATS)


def one(tensor: Tensor) -> Tensor:
    """Return *tensor* with its declared datatype."""
    (found,) = INPUTS.replace((tensor,))
    return found


def test_uint8_becomes_bool_without_a_copy() -> None:
    """UINT8 values of 0 and 1 are used as BOOL in place."""
    found = one(BYTES)
    assert array_tensor("mask", np.array([False, True, True])) == found
    assert np.shares_memory(as_numpy(found), as_numpy(BYTES))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_nonzero_bytes_become_true(dtype: npt.DTypeLike) -> None:
    """Bytes other than 0 become 1, the only true value of BOOL."""
    found = one(array_tensor("mask", np.array([0, 2, 127, -1]).astype(dtype)))
    assert b"\0\1\1\1" == bytes(as_raw(found))


def test_fp32_becomes_bf16_exactly() -> None:
    """FP32 values with zero low bits become BF16, signed zeros, infinities and NaN included."""
    found = one(HALVES)
    assert (BF16, HALVES.shape) == (found.datatype, found.shape)
    assert np.array_equal(bf16_of_fp32(FLOATS), as_numpy(found))


@pytest.mark.parametrize("value", [0.1, 1 + 2**-8, 1e-45, np.uint32(0x7FC00001).view(np.float32)])
def test_value_that_bf16_cannot_hold_is_rejected(value: float) -> None:
    """No value is rounded, and no NaN loses bits; the error names the first such element."""
    values = np.array([1.0, value, 0.3], np.float32)
    with pytest.raises(InvalidRequest, match=r"^input 'half' of model 'm' .*: element 1 is .*BF16"):
        INPUTS.replace((array_tensor("half", values),))


def test_empty_tensors_change_their_datatype() -> None:
    """Tensors without elements are converted like others."""
    empty = (np.zeros((0, 2), np.uint8), np.zeros((2, 0), np.float32))
    mask, half = INPUTS.replace((array_tensor("mask", empty[0]), array_tensor("half", empty[1])))
    assert ((BOOL, (0, 2)), (BF16, (2, 0))) == (
        (mask.datatype, mask.shape),
        (half.datatype, half.shape),
    )


@pytest.mark.parametrize(
    "tensor",
    [
        array_tensor("byte", np.array([1], np.uint8)),
        array_tensor("unknown", np.array([1], np.uint8)),
        array_tensor("nobody", np.array([1], np.uint8)),
        array_tensor("mask", np.array([1.0], np.float32)),
        array_tensor("half", np.array([1.0], np.float64)),
        array_tensor("half", np.array([1], np.uint8)),
    ],
    ids=lambda tensor: f"{tensor.name}-{tensor.datatype.name}",
)
def test_other_tensors_are_unchanged(tensor: Tensor) -> None:
    """Tensors that are no substitutes stay the same, and so does the tuple."""
    tensors = (tensor,)
    assert INPUTS.replace(tensors) is tensors


def test_unnamed_tensors_match_by_position() -> None:
    """The second unnamed tensor is the second tensor that the model declares."""
    mask, half, more = INPUTS.replace(
        (
            array_tensor("", np.array([1], np.uint8)),
            array_tensor("", np.array([1.0], np.float32)),
            array_tensor("", np.array([1], np.uint8)),
        )
    )
    assert [BOOL, BF16, Datatype.UINT8] == [mask.datatype, half.datatype, more.datatype]


def test_only_some_datatypes_are_substitutes() -> None:
    """Tensors that cannot be substitutes need no metadata."""
    assert (True, False) == (
        may_be_substitute((BYTES,)),
        may_be_substitute((array_tensor("x", np.zeros(1, np.int32)),)),
    )


def test_integers_are_substitutes_in_protocols_that_widen() -> None:
    """INT32 may be a substitute only if the protocol widens datatypes."""
    integer = array_tensor("x", np.zeros(1, np.int32))
    assert (False, True) == (
        may_be_substitute((integer,)),
        may_be_substitute((integer,), Need.WIDENED),
    )
    assert [None, Need.SUBSTITUTES, Need.WIDENED] == [
        substitute_kind(frozenset(needs)) for needs in ((), (Need.SUBSTITUTES,), (Need.WIDENED,))
    ]


WIDENED = DatatypeRestorer(
    "input",
    M,
    tuple(
        TensorMetadata(datatype.value, datatype, None)
        for datatype in (BOOL, BF16, Datatype.UINT16, Datatype.UINT32, Datatype.UINT64)
    ),
    InvalidRequest,
    is_widened=True,
)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("BOOL", np.array([0, 1], np.uint8)),
        ("BF16", np.array([1.5, -np.inf], np.float32)),
        ("UINT16", np.array([0, 65535], np.int32)),
        ("UINT16", np.array([0, 65535], np.int64)),
        ("UINT16", np.array([255], np.uint8)),
        ("UINT32", np.array([[0], [2**32 - 1]], np.int64)),
        ("UINT64", np.array([2**63 - 1], np.int64)),
        ("UINT64", np.zeros((0, 2), np.int32)),
    ],
)
def test_widened_datatypes_are_restored(name: str, values: npt.NDArray[Any]) -> None:
    """Every value of the declared datatype is restored, in its shape."""
    (found,) = WIDENED.replace((array_tensor(name, values),))
    assert (name, values.shape) == (str(found.datatype and found.datatype.value), found.shape)
    if name != "BF16":
        assert values.tolist() == as_numpy(found).tolist()


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("BOOL", np.array([0, 2], np.uint8), "is BOOL, sent as UINT8: element 1 is 2"),
        ("UINT16", np.array([65536], np.int32), "element 0 is 65536; expected .* from 0 to 65535"),
        ("UINT16", np.array([0, -1], np.int8), "sent as INT8: element 1 is -1"),
        ("UINT32", np.array([2**32], np.int64), "element 0 is 4294967296"),
        ("UINT64", np.array([-(2**63)], np.int64), "element 0 is -9223372036854775808"),
        ("BF16", np.array([0.1], np.float32), "cannot represent exactly"),
    ],
)
def test_value_outside_the_declared_datatype_is_rejected(
    name: str, values: npt.NDArray[Any], message: str
) -> None:
    """No value is wrapped or rounded; the error names the first such element."""
    with pytest.raises(InvalidRequest, match=message):
        WIDENED.replace((array_tensor(name, values),))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("BOOL", np.array([1], np.int8)),
        ("UINT32", np.array([1.0], np.float32)),
        ("BF16", np.array([1.0], np.float64)),
    ],
)
def test_other_kinds_of_numbers_are_not_restored(name: str, values: npt.NDArray[Any]) -> None:
    """Datatypes that no protocol widens to are unchanged, and the model rejects them."""
    tensors = (array_tensor(name, values),)
    assert WIDENED.replace(tensors) is tensors


def test_tensors_follow_the_order_of_the_names() -> None:
    """Named tensors come in the order of the names; the others follow in their own order."""
    a, b, c, d = (array_tensor(name, np.zeros(1, np.int32)) for name in "abcd")
    assert (b, d, c, a) == in_order((c, a, d, b), ["b", "d"])
    tensors = (b, d, a)
    assert in_order(tensors, ["b", "d"]) is tensors


class Model:
    """Returns metadata, and replies with *outputs*."""

    def __init__(self, *outputs: Tensor, metadata: GatewayError | None = None) -> None:
        self._outputs = outputs
        self._failure = metadata
        self.metadata_calls = 0
        self.service = ScriptedService(always=self._respond)

    def _respond(self, call: Call[Any]) -> Any:
        if isinstance(call, ModelMetadataRequest):
            self.metadata_calls += 1
            if self._failure is not None:
                raise self._failure
            return ModelMetadata(name="m", inputs=DECLARED, outputs=DECLARED)
        return InferResponse(model=M, outputs=self._outputs)

    def sent(self) -> InferRequest:
        """Return the inference that arrived."""
        (found,) = [call for call in self.service.calls if isinstance(call, InferRequest)]
        return found


def request(*inputs: Tensor, needs: frozenset[Need] = frozenset(), **fields: Any) -> InferRequest:
    """Return a request of a caller whose codec has *needs*."""
    return InferRequest(model=M, inputs=inputs, context=Context(needs=needs), **fields)


async def test_substitutes_in_a_request_are_restored() -> None:
    """The next codec gets BOOL and BF16 from a caller that sends substitutes."""
    model = Model()
    await Complete(model.service, frozenset())(request(BYTES, HALVES, needs=SUBSTITUTES))
    assert [BOOL, BF16] == [tensor.datatype for tensor in model.sent().inputs]


async def test_request_of_a_protocol_with_bool_is_unchanged() -> None:
    """UINT8 of a caller that can send BOOL stays UINT8, and no metadata are fetched."""
    model = Model()
    call = request(BYTES, HALVES)
    await Complete(model.service, SUBSTITUTES)(call)
    assert model.sent() is call
    assert 0 == model.metadata_calls


async def test_substitutes_in_a_reply_are_restored() -> None:
    """The caller gets BOOL and BF16 from a target that sends substitutes."""
    model = Model(BYTES, HALVES)
    reply = await Complete(model.service, SUBSTITUTES)(request())
    assert [BOOL, BF16] == [tensor.datatype for tensor in reply.outputs]


async def test_substitutes_are_unchanged_if_both_sides_use_them() -> None:
    """Between two ends of one protocol nothing is restored, and no metadata are fetched."""
    model = Model(BYTES, HALVES)
    call = request(BYTES, HALVES, needs=SUBSTITUTES)
    reply = await Complete(model.service, SUBSTITUTES)(call)
    assert model.sent() is call
    assert (BYTES, HALVES) == reply.outputs
    assert 0 == model.metadata_calls


async def test_unavailable_metadata_are_not_fetched_for_every_call() -> None:
    """Restoring datatypes is optional, so a failure to fetch the metadata is cached."""
    model = Model(metadata=Unavailable("no metadata"))
    complete = Complete(model.service, frozenset())
    for _ in range(3):
        await complete(request(BYTES, needs=SUBSTITUTES))
    assert 1 == model.metadata_calls


async def test_unnamed_outputs_match_the_requested_outputs() -> None:
    """An output without a name is the requested output at its position."""
    model = Model(array_tensor("", np.array([1.0], np.float32)))
    reply = await Complete(model.service, SUBSTITUTES)(request(outputs=(RequestedOutput("half"),)))
    assert [BF16] == [tensor.datatype for tensor in reply.outputs]


async def test_reply_value_that_bf16_cannot_hold_is_an_upstream_error() -> None:
    """An output value outside of the declared datatype is an UpstreamProtocolError."""
    model = Model(array_tensor("half", np.array([0.1], np.float32)))
    with pytest.raises(UpstreamProtocolError, match=r"^output 'half' of model 'm' is BF16"):
        await Complete(model.service, SUBSTITUTES)(request())


async def test_datatypes_are_unchanged_without_metadata() -> None:
    """If the metadata are unavailable, requests and replies keep their datatypes."""
    model = Model(BYTES, metadata=Unavailable("no metadata"))
    call = request(BYTES, needs=SUBSTITUTES)
    await Complete(model.service, frozenset())(call)
    assert model.sent() is call
    model = Model(BYTES, metadata=Unavailable("no metadata"))
    reply = await Complete(model.service, SUBSTITUTES)(request())
    assert (BYTES,) == reply.outputs
    assert 1 == model.metadata_calls


async def test_positional_outputs_are_in_the_models_order() -> None:
    """A caller that reads outputs by position gets them in the model's order."""
    reply = await Complete(Model(HALVES, BYTES).service, frozenset())(request(needs=IN_ORDER))
    assert ["mask", "half"] == [tensor.name for tensor in reply.outputs]


async def test_requested_outputs_are_in_the_requested_order() -> None:
    """The order of requested outputs needs no metadata."""
    model = Model(BYTES, HALVES)
    requested_outputs = (RequestedOutput("half"), RequestedOutput("mask"))
    reply = await Complete(model.service, frozenset())(
        request(needs=IN_ORDER, outputs=requested_outputs)
    )
    assert (0, ["half", "mask"]) == (
        model.metadata_calls,
        [tensor.name for tensor in reply.outputs],
    )


async def test_single_output_needs_no_metadata() -> None:
    """The order of a single output is known without metadata."""
    model = Model(BYTES)
    await Complete(model.service, frozenset())(request(needs=IN_ORDER))
    assert 0 == model.metadata_calls


async def test_outputs_of_unknown_order_are_rejected() -> None:
    """A caller that reads outputs by position gets none in an unknown order."""
    model = Model(BYTES, HALVES, metadata=Unavailable("no metadata"))
    with pytest.raises(Unavailable, match=r"outputs without names depend on their order"):
        await Complete(model.service, frozenset())(request(needs=IN_ORDER))
