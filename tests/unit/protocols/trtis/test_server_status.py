"""Tests of ServerStatus and ModelConfig made from metadata of any server."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.errors import Unsupported
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.ir.metadata import (
    ModelConfiguration,
    ModelMetadata,
    ModelState,
    ModelStatus,
    RepositoryEntry,
    ServerStatus,
    TensorMetadata,
)
from gateway.ir.tensors.datatypes import Datatype
from gateway.protocols.trtis.options import TrtisOptions
from gateway.protocols.trtis.server_status import read_model, write_config, write_status
from gateway.schema import tensorrt_v1_pb2 as pb

OPTIONS = TrtisOptions(max_batch_size=32)


def model(
    datatype: Datatype | None = Datatype.FP32,
    shape: tuple[int, ...] | None = (-1, 3),
    **changes: Any,
) -> ModelMetadata:
    tensors = (TensorMetadata("x", datatype, shape),)
    return ModelMetadata(**{"name": "m", "inputs": tensors, "outputs": tensors, **changes})


@pytest.mark.parametrize(
    ("metadata", "most", "dims", "reshaped"),
    [
        (model(max_batch_size=8), 8, [3], False),
        (model(max_batch_size=0), 0, [-1, 3], False),
        (model(), 32, [3], False),
        (model(shape=(2, 3)), 0, [2, 3], False),
        (model(shape=(-1,), max_batch_size=4), 4, [1], True),
        (model(shape=(), max_batch_size=0), 0, [1], True),
        (model(shape=(-1, -1, 2)), 32, [-1, 2], False),
    ],
)
def test_batch_axis_is_removed_from_dims(
    metadata: ModelMetadata, most: int, dims: list[int], reshaped: bool
) -> None:
    """A client adds the batch axis itself; a scalar has dims [1] and a reshape."""
    config = write_config(metadata, OPTIONS.max_batch_size)
    assert config.max_batch_size == most
    for tensor in (config.input[0], config.output[0]):
        assert list(tensor.dims) == dims
        assert tensor.HasField("reshape") is reshaped
        assert tensor.data_type == pb.TYPE_FP32
    assert config.platform == "custom"


@pytest.mark.parametrize("datatype", [one for one in Datatype if one is not Datatype.BF16])
def test_metadata_of_every_datatype_is_preserved(datatype: Datatype) -> None:
    """An encoded status is decoded as the same metadata."""
    metadata = model(datatype, max_batch_size=8, platform="onnx", versions=("1", "2"))
    status = write_status(ServerStatus(is_ready=True, models=(ModelStatus(metadata),)), OPTIONS)
    assert metadata == read_model("m", status.model_status["m"], DEFAULT_LIMITS)


@pytest.mark.parametrize("stateful", [False, True])
def test_stateful_model_has_sequence_batching(stateful: bool) -> None:
    """Tools look for sequence_batching to know how to call a model."""
    config = write_config(model(stateful=stateful), 1)
    assert stateful is config.HasField("sequence_batching")
    found = read_model("m", pb.ModelStatus(config=config), DEFAULT_LIMITS)
    assert stateful is found.stateful


def test_bytes_is_encoded_as_type_string() -> None:
    """The tensor of a configuration has TYPE_STRING."""
    assert write_config(model(Datatype.BYTES), 1).input[0].data_type == pb.TYPE_STRING


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        (model(Datatype.BF16), "'x' is BF16, which TensorRT v1 cannot represent"),
        (model(None), "'x' has no datatype or shape"),
        (model(shape=None), "'x' has no datatype or shape"),
        (model(shape=(), max_batch_size=2), "'x' has no datatype or shape"),
        (model(shape=(-1, 1 << 63)), "'m' cannot be described in TensorRT v1: Value out of range"),
        (model(max_batch_size=1 << 31), "'m' cannot be described in TensorRT v1: Value out of"),
    ],
)
def test_unrepresentable_model_is_omitted_or_rejected(metadata: ModelMetadata, text: str) -> None:
    """The list of all models omits it; a request for it alone is an error."""
    good = ModelStatus(model(name="good"))
    status = ServerStatus(is_ready=True, models=(ModelStatus(metadata), good))
    assert list(write_status(status, OPTIONS).model_status) == ["good"]
    with pytest.raises(Unsupported, match=text):
        write_status(
            ServerStatus(is_ready=True, models=(ModelStatus(metadata),)), OPTIONS, only=True
        )


def test_versions_and_states_are_encoded() -> None:
    """Each version has its state from the index; without an index, a model is ready."""
    entries = (
        RepositoryEntry("m", "1", ModelState.READY),
        RepositoryEntry("m", "2", ModelState.UNAVAILABLE, "broken"),
    )
    listed = ModelStatus(model(versions=("1", "2")), entries)
    (found,) = write_status(
        ServerStatus(is_ready=True, models=(listed,)), OPTIONS
    ).model_status.values()
    assert found.version_status[1].ready_state == pb.MODEL_READY
    assert found.version_status[2].ready_state == pb.MODEL_UNAVAILABLE
    assert found.version_status[2].ready_state_reason.message == "broken"
    for versions in ((), ("main",)):
        bare = ServerStatus(is_ready=True, models=(ModelStatus(model(versions=versions)),))
        (model_status,) = write_status(bare, OPTIONS).model_status.values()
        assert {1: pb.MODEL_READY} == {
            number: one.ready_state for number, one in model_status.version_status.items()
        }


def test_the_first_version_without_a_number_is_1() -> None:
    """Only the first of several such versions is encoded, with its own state."""
    entries = (
        RepositoryEntry("m", "blue", ModelState.LOADING),
        RepositoryEntry("m", "green", ModelState.READY),
    )
    status = ServerStatus(
        is_ready=True, models=(ModelStatus(model(versions=("blue", "green", "7")), entries),)
    )
    version_status = write_status(status, OPTIONS).model_status["m"].version_status
    assert {1: pb.MODEL_LOADING, 7: pb.MODEL_READY} == {
        number: version.ready_state for number, version in version_status.items()
    }


def test_status_describes_the_server() -> None:
    """Id, version, uptime and readiness are in every status."""
    found = write_status(ServerStatus(is_ready=False, uptime_s=1.5), OPTIONS)
    assert (found.id, found.version) == ("inference:0", "1.11.0")
    assert found.uptime_ns == 1_500_000_000
    assert found.ready_state == pb.SERVER_INITIALIZING


OWN = ModelConfiguration(
    {
        "name": "inside",
        "platform": "",
        "backend": "python",
        "max_batch_size": 4,
        "version_policy": {"specific": {"versions": [1, 3]}},
        "input": [
            {"name": "X", "data_type": "TYPE_FP32", "dims": [4, 2], "reshape": {"shape": [8]}}
        ],
        "output": [
            {"name": "Y", "data_type": "TYPE_FP32", "dims": [4], "label_filename": "labels.txt"}
        ],
        "instance_group": [{"name": "g", "kind": "KIND_CPU", "count": 2, "passive": False}],
        "optimization": {"priority": "PRIORITY_MAX", "eager_batching": True},
        "sequence_batching": {
            "oldest": {"max_candidate_sequences": 3},
            "control_input": [
                {
                    "name": "START",
                    "control": [{"kind": "CONTROL_SEQUENCE_START", "int32_false_true": [0, 1]}],
                }
            ],
        },
        "parameters": {"k": {"string_value": "v"}},
        "model_warmup": [{"name": "w", "batch_size": 1}],
    }
)


def test_configuration_of_the_server_is_encoded() -> None:
    """Scheduler, policies and tensors are the server's; members that v1 lacks are omitted."""
    config = write_config(
        ModelMetadata(
            name="m",
            platform="python",
            max_batch_size=4,
            inputs=(TensorMetadata("X", Datatype.FP32, (-1, 4, 2)),),
            outputs=(TensorMetadata("Y", Datatype.FP32, (-1, 4)),),
            stateful=True,
            configuration=OWN,
        ),
        128,
    )
    assert ("m", "python", 4) == (config.name, config.platform, config.max_batch_size)
    assert [1, 3] == list(config.version_policy.specific.versions)
    (tensor,) = config.input
    assert [4, 2] == list(tensor.dims)
    assert [8] == list(tensor.reshape.shape)
    assert pb.TYPE_FP32 == tensor.data_type
    assert ["labels.txt"] == [output.label_filename for output in config.output]
    assert [("g", 2)] == [(group.name, group.count) for group in config.instance_group]
    assert pb.ModelOptimizationPolicy.PRIORITY_MAX == config.optimization.priority
    assert 3 == config.sequence_batching.oldest.max_candidate_sequences
    assert ["START"] == [control.name for control in config.sequence_batching.control_input]
    assert ("v", "w") == (config.parameters["k"].string_value, config.model_warmup[0].name)


def test_dynamic_batching_is_encoded() -> None:
    """Clients can read the scheduler's settings."""
    own = ModelConfiguration({"dynamic_batching": {"preferred_batch_size": [4, 8]}})
    config = write_config(ModelMetadata(name="m", max_batch_size=8, configuration=own), 128)
    assert "dynamic_batching" == config.WhichOneof("scheduling_choice")
    assert [4, 8] == list(config.dynamic_batching.preferred_batch_size)


def test_unrepresentable_configuration_is_replaced_by_metadata() -> None:
    """A number that is too large for its field does not prevent the status."""
    own = ModelConfiguration({"dynamic_batching": {"priority_levels": 1 << 40}})
    config = write_config(ModelMetadata(name="m", max_batch_size=8, configuration=own), 128)
    assert "m" == config.name
    assert 8 == config.max_batch_size
    assert config.WhichOneof("scheduling_choice") is None


def test_unloaded_versions_are_listed_with_loaded_ones() -> None:
    """A version that the index lists as unavailable stays in the status, with its reason."""
    entries = (
        RepositoryEntry("m", "1", ModelState.UNAVAILABLE, "unloaded"),
        RepositoryEntry("m", "3", ModelState.READY),
    )
    model = ModelStatus(ModelMetadata(name="m", versions=("3",)), entries)
    status = write_status(ServerStatus(is_ready=True, models=(model,)), TrtisOptions())
    versions = status.model_status["m"].version_status
    assert {1: pb.MODEL_UNAVAILABLE, 3: pb.MODEL_READY} == {
        number: version.ready_state for number, version in versions.items()
    }
    assert "unloaded" == versions[1].ready_state_reason.message
