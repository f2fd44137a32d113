"""Tests of Classify: classes from whole outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.ir.calls import (
    InferRequest,
    InferResponse,
    ModelLoadRequest,
    ModelMetadataRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef, Need, Origin
from gateway.ir.errors import InvalidRequest, TooLarge, Unsupported, UpstreamProtocolError
from gateway.ir.metadata import ModelConfiguration, ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.ir.tensors.tensor import (
    RequestedOutput,
    Tensor,
    array_tensor,
    as_items,
    items_tensor,
    raw_tensor,
)
from gateway.policies.classify import Classify, classes
from tests.fakes import FakeStream, ScriptedService

M = ModelRef("m")
LABELS = {"o": ("zero", "one", "", "three")}


def metadata(max_batch_size: int | None) -> ModelMetadata:
    tensors = (TensorMetadata("o", Datatype.FP32, (-1, 4)),)
    return ModelMetadata(
        name="m", inputs=tensors, outputs=tensors, max_batch_size=max_batch_size, labels=LABELS
    )


def service(output: Tensor, max_batch_size: int | None, batch_size: int | None) -> ScriptedService:
    def respond(call: Any) -> Any:
        if isinstance(call, ModelMetadataRequest):
            return metadata(max_batch_size)
        return InferResponse(model=M, outputs=(output,), batch_size=batch_size)

    return ScriptedService(always=respond)


CALL = InferRequest(model=M, outputs=(RequestedOutput("o", 2),))
VALUES = np.array([[1, 4, 3, 2], [5.5, 0, np.nan, 5.5]], "<f4")


async def test_each_item_of_a_batch_has_its_top_classes() -> None:
    """High values come first, equal ones by index and NaN last, with labels if known."""
    inner = service(array_tensor("o", VALUES), 8, None)
    reply = await Classify(inner)(CALL)
    assert reply.outputs[0].shape == (2, 2)
    assert as_items(reply.outputs[0]) == [b"4.0:1:one", b"3.0:2", b"5.5:0:zero", b"5.5:3:three"]
    infer = next(call for call in inner.calls if isinstance(call, InferRequest))
    assert infer.outputs == (RequestedOutput("o"),)


async def test_separate_batch_size_stays_separate() -> None:
    """If shapes are of one item, so is the shape of the classes."""
    output = Tensor("o", Datatype.FP32, (4,), array_tensor("o", VALUES).data)
    reply = await Classify(service(output, 8, 2))(CALL)
    assert (reply.batch_size, reply.outputs[0].shape) == (2, (2,))
    assert len(as_items(reply.outputs[0])) == 4


async def test_model_without_batching_has_one_list_of_classes() -> None:
    """Without a batch axis the whole output is one list of values."""
    reply = await Classify(service(array_tensor("o", VALUES[:1]), 0, None))(CALL)
    assert reply.outputs[0].shape == (2,)
    assert as_items(reply.outputs[0]) == [b"4.0:1:one", b"3.0:2"]


async def test_empty_batch_has_no_classes() -> None:
    """The classes of an empty batch have the shape [0, 0]."""
    reply = await Classify(service(array_tensor("o", VALUES[:0]), 8, None))(CALL)
    assert reply.outputs[0].shape == (0, 0)


async def test_huge_batch_without_values_takes_no_time() -> None:
    """A short request may name a batch of 4,294,967,295 items that have no values."""
    size = (1 << 32) - 1
    output = raw_tensor("o", Datatype.FP32, (size, 0), memoryview(b""))
    reply = await Classify(service(output, 8, None))(CALL)
    assert reply.outputs[0].shape == (size, 0)
    items = raw_tensor("o", Datatype.FP32, (0,), memoryview(b""))
    assert (await Classify(service(items, 8, size))(CALL)).outputs[0].shape == (0,)


async def test_calls_without_classes_are_unchanged() -> None:
    """Without requested classes, no metadata are fetched and the reply is unchanged."""
    output = array_tensor("o", VALUES)
    inner = service(output, 8, None)
    reply = await Classify(inner)(InferRequest(model=M, outputs=(RequestedOutput("o"),)))
    assert reply.outputs == (output,)
    assert len(inner.calls) == 1


async def test_streams_are_classified() -> None:
    """Each reply of a stream gets its classes."""

    async def items() -> Any:
        for _ in range(2):
            yield InferResponse(model=M, outputs=(array_tensor("o", VALUES),))

    def respond(call: Any) -> Any:
        return metadata(8) if isinstance(call, ModelMetadataRequest) else items()

    stream = await Classify(ScriptedService(always=respond))(
        StreamInferRequest(model=M, request=CALL)
    )
    shapes = [item.outputs[0].shape async for item in stream]
    assert shapes == [(2, 2), (2, 2)]


def test_large_integers_are_not_rounded() -> None:
    """Integers are ranked and written exactly; a count above their number returns all."""
    values = array_tensor("o", np.array([2**64 - 1, 2**64 - 2, 0], np.uint64))
    found = classes(values, 9, 1, ())
    assert found == [b"18446744073709551615:0", b"18446744073709551614:1", b"0:2"]


@pytest.mark.parametrize("datatype", [Datatype.BOOL, Datatype.FP16])
def test_other_datatypes_are_rejected(datatype: Datatype) -> None:
    """Only integers, FP32 and FP64 can be classified."""
    output = array_tensor("o", np.zeros(2, datatype.numpy_dtype))
    with pytest.raises(InvalidRequest, match=datatype.name):
        classes(output, 1, 1, ())


def test_bytes_and_unknown_datatypes_are_rejected() -> None:
    """The error names BYTES, or an unknown datatype."""
    with pytest.raises(InvalidRequest, match="BYTES"):
        classes(items_tensor("o", (1,), [b"a"]), 1, 1, ())
    untyped = Tensor("o", None, (1,), items_tensor("o", (1,), [b"a"]).data)
    with pytest.raises(InvalidRequest, match="unknown"):
        classes(untyped, 1, 1, ())


def test_output_must_be_divisible_by_the_batch_size() -> None:
    """An output that the batch size does not divide is the target's error."""
    with pytest.raises(UpstreamProtocolError, match="3 elements"):
        classes(array_tensor("o", np.zeros(3, "<i4")), 1, 2, ())


class Target:
    """A target that computes classes itself, or raises *refusal* when they are requested."""

    def __init__(self, refusal: Exception | None = None, labels: Any = None) -> None:
        self._refusal = refusal
        self.labels = {} if labels is None else labels
        self.calls: list[Any] = []

    async def __call__(self, call: Any, /) -> Any:
        if isinstance(call, ModelMetadataRequest):
            return metadata(8).changed(labels=self.labels)
        if isinstance(call, ModelLoadRequest):
            return None
        self.calls.append(call)
        request = call.request if isinstance(call, StreamInferRequest) else call
        output = array_tensor("o", VALUES)
        if isinstance(request, InferRequest) and request.outputs[0].classes:
            if self._refusal is not None:
                raise self._refusal
            output = items_tensor("o", (2, 1), [b"theirs", b"too"])
        reply = InferResponse(model=M, outputs=(output,))
        return FakeStream([reply]) if isinstance(call, StreamInferRequest) else reply


async def first(result: Any) -> InferResponse:
    """Return a reply, or the first one of a stream."""
    found = result if isinstance(result, InferResponse) else await anext(aiter(result))
    assert isinstance(found, InferResponse)
    return found


STREAM = StreamInferRequest(model=M, request=CALL)
BOTH = pytest.mark.parametrize("call", [CALL, STREAM], ids=["one", "stream"])


@BOTH
async def test_target_that_computes_classes_gets_the_request(call: Any) -> None:
    """The classes and labels of the target are returned unchanged."""
    target = Target()
    reply = await first(await Classify(target, by_target=None)(call))
    assert [b"theirs", b"too"] == as_items(reply.outputs[0])
    assert [call] == target.calls


@BOTH
async def test_classes_are_computed_if_the_codec_rejects_them(call: Any) -> None:
    """After an Unsupported of the codec, the call is sent again without classes."""
    target = Target(Unsupported("no classes in this dialect"))
    reply = await first(await Classify(target, by_target=None)(call))
    assert [b"4.0:1", b"3.0:2", b"5.5:0", b"5.5:3"] == as_items(reply.outputs[0])
    assert 2 == len(target.calls)


async def test_rejection_by_the_server_is_final() -> None:
    """An error of the server itself is raised, and the call is not sent again."""
    target = Target(Unsupported("decoupled", origin=Origin("c", "wire")))
    with pytest.raises(Unsupported, match="decoupled"):
        await Classify(target, by_target=None)(CALL)
    assert [CALL] == target.calls


@pytest.mark.parametrize(
    ("call", "labels"),
    [
        (CALL, {"o": ("a", "b", "c", "d")}),
        (CALL.with_context(needs=frozenset({Need.BATCHING})), {}),
    ],
    ids=["labels", "numbers"],
)
async def test_gateway_computes_classes_for_labels_or_numbers(
    call: InferRequest, labels: Any
) -> None:
    """Labels from YAML and protocols with numeric values need classes of the gateway."""
    target = Target(labels=labels)
    await Classify(target, by_target=None)(call)
    assert [0] == [call.outputs[0].classes for call in target.calls]


class WithoutMetadata(Target):
    """A target that has no metadata."""

    async def __call__(self, call: Any, /) -> Any:
        if isinstance(call, ModelMetadataRequest):
            raise Unsupported("no metadata")
        return await super().__call__(call)


@pytest.mark.parametrize("by_target", [None, True])
@pytest.mark.parametrize("datatype", [Datatype.BYTES, Datatype.BOOL])
@BOTH
async def test_classes_of_bytes_or_bool_are_never_requested(
    call: Any, datatype: Datatype, by_target: bool | None
) -> None:
    """Triton before 2.60 terminates on such a request (server 8267)."""

    class Textual(Target):
        async def __call__(self, call: Any, /) -> Any:
            if isinstance(call, ModelMetadataRequest):
                return ModelMetadata(name="m", outputs=(TensorMetadata("o", datatype, (-1,)),))
            return await super().__call__(call)

    target = Textual()
    with pytest.raises(InvalidRequest, match=f"output 'o' is {datatype.name}"):
        await first(await Classify(target, by_target=by_target)(call))
    assert [] == target.calls


@BOTH
async def test_plain_output_is_requested_without_metadata(call: Any) -> None:
    """An unknown datatype may be BYTES, so the gateway computes the classes."""
    target = WithoutMetadata()
    reply = await first(await Classify(target, by_target=None)(call))
    assert [b"5.5:4", b"5.5:7"] == as_items(reply.outputs[0])
    assert 1 == len(target.calls)


async def test_plain_output_is_requested_if_it_is_undeclared() -> None:
    """The datatype of an undeclared output may be BYTES."""
    target = Target()
    call = InferRequest(model=M, outputs=(RequestedOutput("other", 2),))
    await Classify(target, by_target=None)(call)
    assert [0] == [call.outputs[0].classes for call in target.calls]


@pytest.mark.parametrize(("labelled", "requested_classes"), [("o", 2), ("other", 0)])
async def test_target_with_labels_computes_classes_for_all_callers(
    labelled: str, requested_classes: int
) -> None:
    """Without labels, callers with numeric values get classes of the gateway."""

    def respond(call: Any) -> Any:
        if isinstance(call, ModelMetadataRequest):
            plain_metadata = metadata(8).changed(labels={})
            needs_configuration = Need.BATCHING in call.context.needs
            output = {"name": labelled, "label_filename": "labels.txt"}
            own = ModelConfiguration({"name": "m", "output": [output]})
            return (
                plain_metadata.changed(configuration=own) if needs_configuration else plain_metadata
            )
        return InferResponse(model=M, outputs=(array_tensor("o", VALUES),))

    target = ScriptedService(always=respond)
    call = CALL.with_context(needs=frozenset({Need.BATCHING}))
    await Classify(target, by_target=None)(call)
    assert [requested_classes] == [
        call.outputs[0].classes for call in target.calls if isinstance(call, InferRequest)
    ]


@pytest.mark.parametrize(
    ("shape", "max_batch_size", "labelled", "rows", "requested_classes"),
    [
        ((-1, 4), 8, False, 2, 2),
        ((-1, 4), 0, False, 2, 0),
        ((4, -1), 0, False, 2, 0),
        (None, 0, False, 2, 0),
        ((2, 4), 0, False, 2, 2),
        ((-1, 4), 0, True, 2, 2),
        ((-1, 4), 0, True, 0, 0),
    ],
    ids=["batch", "variable", "inner", "unknown", "fixed", "labels", "labels of nothing"],
)
@BOTH
async def test_classes_are_not_requested_if_the_output_may_be_empty(
    call: Any,
    shape: tuple[int, ...] | None,
    max_batch_size: int,
    labelled: bool,
    rows: int,
    requested_classes: int,
) -> None:
    """A variable shape may be empty; with labels it is empty only if an input is."""

    class Fragile(Target):
        async def __call__(self, call: Any, /) -> Any:
            if not isinstance(call, ModelMetadataRequest):
                return await super().__call__(call)
            output = {"name": "o", "label_filename": "labels.txt"} if labelled else {"name": "o"}
            return ModelMetadata(
                name="m",
                outputs=(TensorMetadata("o", Datatype.FP32, shape),),
                max_batch_size=max_batch_size,
                configuration=ModelConfiguration({"name": "m", "output": [output]}),
            )

    tensor = array_tensor("i", np.zeros((rows, 4), "<f4"))
    if isinstance(call, StreamInferRequest):
        call = call.changed(request=call.request.changed(inputs=(tensor,)))
    else:
        call = call.changed(inputs=(tensor,))
    target = Fragile()
    await first(await Classify(target, by_target=None, ends_at_empty=lambda: True)(call))
    requests = [getattr(one, "request", one) for one in target.calls]
    assert [requested_classes] == [request.outputs[0].classes for request in requests]


async def test_values_are_written_exactly() -> None:
    """FP32 values are written with all their digits."""
    values = np.array([[0.1, 123456792]], "<f4")
    assert [b"123456792.0:1", b"0.10000000149011612:0"] == classes(
        array_tensor("o", values), 2, 1, ()
    )


async def test_load_invalidates_the_labels() -> None:
    """After a load the labels are fetched again."""
    target = Target(labels={"o": ("old",) * 4})
    classify = Classify(target)
    await classify(CALL)
    target.labels = {"o": ("new",) * 4}
    await classify(ModelLoadRequest(model=M))
    reply = await classify(CALL)
    assert b"4.0:1:new" == as_items(reply.outputs[0])[0]


@pytest.mark.parametrize("count", [1, 3, 7, 2000, 4000])
@pytest.mark.parametrize("size", [5, 1024, 1025, 3000])
def test_top_classes_equal_those_of_a_full_sort(size: int, count: int) -> None:
    """Equal values are ranked by index, also where some of them are cut off."""
    for seed in range(3):
        values = np.random.default_rng(seed).integers(-4, 4, size).astype("<f4")
        values[::7] = np.nan
        values[3] = -np.inf
        scores = np.where(np.isnan(values), -np.inf, values)
        order = sorted(range(size), key=lambda index: (-scores[index], index))[:count]
        expected = [f"{values[index].item()!r}:{index}".encode() for index in order]
        assert expected == classes(array_tensor("o", values), count, 1, ())


def test_unsigned_integers_are_ranked() -> None:
    """Values above the signed range rank highest."""
    values = np.arange(2000, dtype="<u8") + np.uint64(2**63)
    assert [f"{2**63 + 1999}:1999".encode()] == classes(array_tensor("o", values), 1, 1, ())


def test_items_of_a_large_batch_are_ranked_separately() -> None:
    """Each of 50,000 items has its own top class."""
    values = np.tile(np.arange(4, dtype="<i4"), 50_000)
    found = classes(array_tensor("o", values), 1, 50_000, ())
    assert [b"3:3"] * 50_000 == found


def test_number_of_classes_in_a_batch_is_limited() -> None:
    """The limit covers the classes of all items, because the response would be huge."""
    output = array_tensor("o", np.zeros(101_000, "<f4"))
    with pytest.raises(TooLarge, match="1 classes for each of 101000 items, at most 100000"):
        classes(output, 1, 101_000, ())
