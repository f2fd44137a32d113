"""Differences of the metadata of two servers."""

from __future__ import annotations

from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.migration.compare.metadata_differences import metadata_differences, model_identity

X = TensorMetadata("x", Datatype.FP32, (-1, 4))
Y = TensorMetadata("y", Datatype.INT64, (-1,))


def test_equal_models_have_no_difference() -> None:
    """Names, versions, platforms and unreported fields do not matter."""
    old = ModelMetadata(name="m", versions=("1",), platform="onnx", inputs=(X,), outputs=(Y,))
    new = ModelMetadata(name="n", versions=("2",), inputs=(X,), max_batch_size=8)
    bare = ModelMetadata(name="m", inputs=(TensorMetadata("x", None, None),), outputs=(Y,))
    assert list(metadata_differences(old, new)) == []
    assert list(metadata_differences(old, bare)) == []


def test_each_difference_is_reported() -> None:
    """Differences are missing, new or changed tensors, batch sizes and flags."""
    old = ModelMetadata(name="m", inputs=(X,), outputs=(Y,), max_batch_size=8, stateful=True)
    new = ModelMetadata(
        name="m",
        inputs=(TensorMetadata("x", Datatype.FP64, (-1, 5)),),
        outputs=(TensorMetadata("z", Datatype.INT64, (-1,)),),
        max_batch_size=4,
        decoupled=True,
    )
    assert list(metadata_differences(old, new)) == [
        "input 'x' was FP32, and is FP64",
        "input 'x' had shape [-1, 4], and has [-1, 5]",
        "output 'y' is missing",
        "output 'z' is new",
        "max_batch_size 8 became 4",
        "the model is no longer stateful",
        "the model is now decoupled",
    ]


def test_a_model_is_identified_by_its_versions_and_signature() -> None:
    """Other fields, such as its name, do not change its identity."""
    model = ModelMetadata(name="m", versions=("2", "1"), inputs=(X,), outputs=(Y,))
    found = model_identity(model)
    assert ["1", "2"] == found["versions"]
    assert found == model_identity(model.changed(name="n", versions=("1", "2"), labels={"y": ()}))
    others = [
        model.changed(versions=("1",)),
        model.changed(inputs=(X, Y), outputs=()),
        model.changed(inputs=(TensorMetadata("x", Datatype.FP32, (-1, 5)),)),
        model.changed(outputs=(TensorMetadata("y", None, (-1,)),)),
        model.changed(max_batch_size=8),
        model.changed(stateful=True),
        model.changed(decoupled=True),
    ]
    found_others = [str(model_identity(each)) for each in others]
    assert len({str(found), *found_others}) == 1 + len(others)


def test_a_new_model_without_a_batch_is_reported_first() -> None:
    """What the servers say of batches, or the first axes of the inputs, tell it."""
    words = "the old model takes batches, and the new one takes none: a call with a batch fails"
    single = TensorMetadata("x", Datatype.FP32, (4,))
    old = ModelMetadata(name="m", inputs=(X,))
    for before in (old, old.changed(max_batch_size=8)):
        for after in (old.changed(inputs=(single,)), ModelMetadata(name="m", inputs=(single,))):
            found = list(metadata_differences(before, after))
            assert [words, "input 'x' had shape [-1, 4], and has [4]"] == found[:2]
    unknown = ModelMetadata(name="m", inputs=(TensorMetadata("x", None, None),))
    variable = old.changed(max_batch_size=0)
    for after in (unknown, variable):
        assert words not in list(metadata_differences(old.changed(max_batch_size=8), after))
    assert [
        (
            "the old model takes batches, and the new one takes none (max_batch_size 0): a call of "
            "TensorRT v1 fails"
        ),
        "max_batch_size 8 became 0",
    ] == list(metadata_differences(old.changed(max_batch_size=8), variable))
