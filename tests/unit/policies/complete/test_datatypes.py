"""Stand-ins: what a protocol without BOOL and BF16 sends becomes what the model declares."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from gateway.ir.calls import Call, InferRequest, InferResponse, ModelMetadataRequest
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.datatypes import Datatype, bf16_of_fp32
from gateway.ir.errors import GatewayError, InvalidRequest, Unavailable, UpstreamProtocolError
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensor import RequestedOutput, Tensor, array_tensor, as_numpy, as_raw
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
    """Return the one tensor in its place."""
    (found,) = INPUTS.replace((tensor,))
    return found


def test_bytes_become_truths_without_a_copy() -> None:
    """UINT8 of 0 and 1 is BOOL as it lies."""
    found = one(BYTES)
    assert array_tensor("mask", np.array([False, True, True])) == found
    assert np.shares_memory(as_numpy(found), as_numpy(BYTES))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_every_byte_but_zero_is_true(dtype: npt.DTypeLike) -> None:
    """Other bytes become 1, for a truth value is 0 or 1 to whoever comes next."""
    found = one(array_tensor("mask", np.array([0, 2, 127, -1]).astype(dtype)))
    assert b"\0\1\1\1" == bytes(as_raw(found))


def test_floats_become_halves_with_all_their_bits() -> None:
    """FP32 whose lower halves are zero is BF16, signed zeros, infinities and NaN included."""
    found = one(HALVES)
    assert (BF16, HALVES.shape) == (found.datatype, found.shape)
    assert np.array_equal(bf16_of_fp32(FLOATS), as_numpy(found))


@pytest.mark.parametrize("value", [0.1, 1 + 2**-8, 1e-45, np.uint32(0x7FC00001).view(np.float32)])
def test_what_bf16_cannot_hold_is_refused(value: float) -> None:
    """No value is rounded, and no NaN loses its bits: the error names the first that would."""
    values = np.array([1.0, value, 0.3], np.float32)
    with pytest.raises(InvalidRequest, match=r"^input 'half' of model 'm' .*: element 1 is .*BF16"):
        INPUTS.replace((array_tensor("half", values),))


def test_no_elements_stand_in_too() -> None:
    """Tensors without elements change their datatype as others do."""
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
def test_nothing_else_changes(tensor: Tensor) -> None:
    """What is no stand-in for what is declared stays, and the tuple is the same one."""
    tensors = (tensor,)
    assert INPUTS.replace(tensors) is tensors


def test_tensors_without_names_go_by_place() -> None:
    """The second tensor without a name is the second that the model declares."""
    mask, half, more = INPUTS.replace(
        (
            array_tensor("", np.array([1], np.uint8)),
            array_tensor("", np.array([1.0], np.float32)),
            array_tensor("", np.array([1], np.uint8)),
        )
    )
    assert [BOOL, BF16, Datatype.UINT8] == [mask.datatype, half.datatype, more.datatype]


def test_only_some_datatypes_can_stand_in() -> None:
    """What can mean nothing else needs no metadata."""
    assert (True, False) == (
        may_be_substitute((BYTES,)),
        may_be_substitute((array_tensor("x", np.zeros(1, np.int32)),)),
    )


def test_integers_may_stand_in_where_the_protocol_widens() -> None:
    """Only there is an INT32 looked up."""
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
def test_what_was_widened_is_taken_back(name: str, values: npt.NDArray[Any]) -> None:
    """Every value that the declared datatype has comes back, in its shape."""
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
def test_what_cannot_have_been_widened_is_refused(
    name: str, values: npt.NDArray[Any], message: str
) -> None:
    """Nothing is wrapped or rounded: the error names input, datatypes, place and value."""
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
def test_no_other_kind_of_number_was_widened(name: str, values: npt.NDArray[Any]) -> None:
    """Integers are no floats and floats no integers: they stay, and the model refuses them."""
    tensors = (array_tensor(name, values),)
    assert WIDENED.replace(tensors) is tensors


def test_order_is_that_of_the_names_and_others_follow() -> None:
    """Tensors go where their names stand; those that are not named keep their order behind."""
    a, b, c, d = (array_tensor(name, np.zeros(1, np.int32)) for name in "abcd")
    assert (b, d, c, a) == in_order((c, a, d, b), ["b", "d"])
    tensors = (b, d, a)
    assert in_order(tensors, ["b", "d"]) is tensors


class Model:
    """Answers metadata, and inferences with *outputs*."""

    def __init__(self, *outputs: Tensor, metadata: GatewayError | None = None) -> None:
        self._outputs = outputs
        self._failure = metadata
        self.questions = 0
        self.service = ScriptedService(always=self._answer)

    def _answer(self, call: Call[Any]) -> Any:
        if isinstance(call, ModelMetadataRequest):
            self.questions += 1
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


async def test_requests_of_a_protocol_with_stand_ins_get_what_was_meant() -> None:
    """The next codec is given BOOL and BF16."""
    model = Model()
    await Complete(model.service, frozenset())(request(BYTES, HALVES, needs=SUBSTITUTES))
    assert [BOOL, BF16] == [tensor.datatype for tensor in model.sent().inputs]


async def test_requests_of_other_protocols_are_let_be() -> None:
    """UINT8 of a caller that has BOOL is UINT8, and nobody is asked."""
    model = Model()
    call = request(BYTES, HALVES)
    await Complete(model.service, SUBSTITUTES)(call)
    assert model.sent() is call
    assert 0 == model.questions


async def test_answers_of_a_protocol_with_stand_ins_get_what_was_meant() -> None:
    """The caller is given BOOL and BF16."""
    model = Model(BYTES, HALVES)
    reply = await Complete(model.service, SUBSTITUTES)(request())
    assert [BOOL, BF16] == [tensor.datatype for tensor in reply.outputs]


async def test_stand_ins_that_would_be_written_again_are_let_be() -> None:
    """Between two ends of one protocol nothing is taken back, and nobody is asked."""
    model = Model(BYTES, HALVES)
    call = request(BYTES, HALVES, needs=SUBSTITUTES)
    reply = await Complete(model.service, SUBSTITUTES)(call)
    assert model.sent() is call
    assert (BYTES, HALVES) == reply.outputs
    assert 0 == model.questions


async def test_who_does_not_tell_is_not_asked_for_every_request() -> None:
    """Stand-ins can be done without: a failure is remembered, for a while."""
    model = Model(metadata=Unavailable("no metadata"))
    complete = Complete(model.service, frozenset())
    for _ in range(3):
        await complete(request(BYTES, needs=SUBSTITUTES))
    assert 1 == model.questions


async def test_answers_without_names_go_by_what_was_asked() -> None:
    """An output without a name is the one that was asked for at its place."""
    model = Model(array_tensor("", np.array([1.0], np.float32)))
    reply = await Complete(model.service, SUBSTITUTES)(request(outputs=(RequestedOutput("half"),)))
    assert [BF16] == [tensor.datatype for tensor in reply.outputs]


async def test_answers_that_bf16_cannot_hold_are_the_upstreams_fault() -> None:
    """What an upstream answers beyond the datatype that is declared cannot be used."""
    model = Model(array_tensor("half", np.array([0.1], np.float32)))
    with pytest.raises(UpstreamProtocolError, match=r"^output 'half' of model 'm' is BF16"):
        await Complete(model.service, SUBSTITUTES)(request())


async def test_without_metadata_tensors_are_what_they_say() -> None:
    """A model that does not tell its datatypes gets and gives what is there."""
    model = Model(BYTES, metadata=Unavailable("no metadata"))
    call = request(BYTES, needs=SUBSTITUTES)
    await Complete(model.service, frozenset())(call)
    assert model.sent() is call
    model = Model(BYTES, metadata=Unavailable("no metadata"))
    reply = await Complete(model.service, SUBSTITUTES)(request())
    assert (BYTES,) == reply.outputs
    assert 1 == model.questions


async def test_outputs_that_go_by_place_come_in_the_models_order() -> None:
    """However a server orders its outputs, a caller that counts them finds the model's order."""
    reply = await Complete(Model(HALVES, BYTES).service, frozenset())(request(needs=IN_ORDER))
    assert ["mask", "half"] == [tensor.name for tensor in reply.outputs]


async def test_outputs_asked_for_come_in_the_order_asked() -> None:
    """Then nobody has to be asked for the model's."""
    model = Model(BYTES, HALVES)
    requested_outputs = (RequestedOutput("half"), RequestedOutput("mask"))
    reply = await Complete(model.service, frozenset())(
        request(needs=IN_ORDER, outputs=requested_outputs)
    )
    assert (0, ["half", "mask"]) == (model.questions, [tensor.name for tensor in reply.outputs])


async def test_one_output_has_no_order() -> None:
    """A single output needs no metadata."""
    model = Model(BYTES)
    await Complete(model.service, frozenset())(request(needs=IN_ORDER))
    assert 0 == model.questions


async def test_outputs_of_unknown_order_are_refused() -> None:
    """Outputs that would be taken for one another are not given out."""
    model = Model(BYTES, HALVES, metadata=Unavailable("no metadata"))
    with pytest.raises(Unavailable, match=r"outputs without names depend on their order"):
        await Complete(model.service, frozenset())(request(needs=IN_ORDER))
