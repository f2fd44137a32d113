"""Describe: configuration made of metadata, and whether a model batches told by configuration."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import (
    Call,
    ModelConfigRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
)
from gateway.ir.context import Context, ModelRef, Need
from gateway.ir.datatypes import Datatype
from gateway.ir.errors import ModelNotFound, NotFound, Unavailable, Unsupported
from gateway.ir.metadata import ModelConfiguration, ModelMetadata, TensorMetadata
from gateway.policies.model_config import ModelConfigurationLayer, configuration_of
from tests.fakes import ScriptedService

M = ModelRef("m")
METADATA = ModelMetadata(
    name="m",
    platform="p",
    inputs=(TensorMetadata("X", Datatype.FP32, (-1, 4)),),
    outputs=(TensorMetadata("Y", Datatype.BYTES, (-1, 1)), TensorMetadata("Z", None, None)),
)
BATCHING = Context(needs=frozenset({Need.BATCHING}))
TOLD = ModelConfiguration({"name": "m", "max_batch_size": 8})


def target(configuration: Any, metadata: Any = METADATA) -> ScriptedService:
    """Return a target that answers these two questions, or fails them."""

    def answer(call: Call[Any]) -> Any:
        found = configuration if isinstance(call, ModelConfigRequest) else metadata
        if isinstance(found, Exception):
            raise found
        return found

    return ScriptedService(always=answer)


async def test_the_targets_own_configuration_comes_first() -> None:
    """A target that has a configuration is not asked for more."""
    service = target(TOLD)
    assert TOLD == await ModelConfigurationLayer(service)(ModelConfigRequest(model=M))
    assert [ModelConfigRequest] == [type(call) for call in service.calls]


@pytest.mark.parametrize("error", [Unsupported("no such question"), NotFound("no such path")])
async def test_configuration_is_made_of_metadata(error: Exception) -> None:
    """Where it is not known how much a model batches, dimensions are whole and the size is 0."""
    found = await ModelConfigurationLayer(target(error))(ModelConfigRequest(model=M))
    expected = {
        "name": "m",
        "platform": "p",
        "max_batch_size": 0,
        "input": [{"name": "X", "data_type": "TYPE_FP32", "dims": [-1, 4]}],
        "output": [
            {"name": "Y", "data_type": "TYPE_STRING", "dims": [-1, 1]},
            {"name": "Z", "data_type": "TYPE_INVALID", "dims": []},
        ],
    }
    assert expected == found.document


def test_dimensions_of_a_model_that_batches_are_those_of_one_item() -> None:
    """The batch axis is left out, as Triton's configurations leave it out."""
    document = configuration_of(METADATA.changed(max_batch_size=16)).document
    assert (16, [4]) == (document["max_batch_size"], document["input"][0]["dims"])


async def test_whether_a_model_is_stateful_is_told_both_ways() -> None:
    """A configuration with sequence batching makes metadata that say so, and the other way round."""
    stateful = ModelConfiguration({"max_batch_size": 8, "sequence_batching": {"oldest": {}}})
    question = ModelMetadataRequest(model=M, context=BATCHING)
    found = [
        await ModelConfigurationLayer(target(configuration))(question)
        for configuration in (TOLD, stateful)
    ]
    assert [False, True] == [one.stateful for one in found]
    assert [False, True] == [configuration_of(one).stateful for one in found]


async def test_a_model_that_is_not_there_has_no_configuration() -> None:
    """The metadata question decides whether the model is known at all."""
    service = target(NotFound("no such path"), ModelNotFound("no model 'm'"))
    with pytest.raises(ModelNotFound):
        await ModelConfigurationLayer(service)(ModelConfigRequest(model=M))


async def test_batching_is_told_by_the_configuration() -> None:
    """Who needs to know whether a model batches gets the size from its configuration."""
    found = await ModelConfigurationLayer(target(TOLD))(
        ModelMetadataRequest(model=M, context=BATCHING)
    )
    assert METADATA.changed(max_batch_size=8, configuration=TOLD) == found


@pytest.mark.parametrize(
    ("call", "metadata"),
    [
        (ModelMetadataRequest(model=M), METADATA),
        (
            ModelMetadataRequest(model=M, context=BATCHING),
            METADATA.changed(max_batch_size=0, stateful=True),
        ),
    ],
    ids=["not_needed", "known"],
)
async def test_nothing_more_is_asked_than_is_needed(
    call: ModelMetadataRequest, metadata: ModelMetadata
) -> None:
    """Metadata that say enough are handed on."""
    service = target(TOLD, metadata)
    assert metadata == await ModelConfigurationLayer(service)(call)
    assert [call] == service.calls


async def test_the_configuration_says_which_outputs_have_labels() -> None:
    """An output with a file of labels is named, others are not."""
    outputs = [{"name": "Y", "label_filename": "l.txt"}, {"name": "Z", "label_filename": ""}]
    configuration = ModelConfiguration({"name": "m", "max_batch_size": 8, "output": outputs})
    found = await ModelConfigurationLayer(target(configuration))(
        ModelMetadataRequest(model=M, context=BATCHING)
    )
    assert configuration is found.configuration
    assert frozenset({"Y"}) == configuration.labelled


async def test_the_configuration_says_whether_a_model_has_sequences() -> None:
    """A known largest batch stays, and sequences are looked up all the same."""
    configuration = ModelConfiguration({"name": "m", "max_batch_size": 8, "sequence_batching": {}})
    metadata = METADATA.changed(max_batch_size=4)
    found = await ModelConfigurationLayer(target(configuration, metadata))(
        ModelMetadataRequest(model=M, context=BATCHING)
    )
    assert metadata.changed(stateful=True, configuration=configuration) == found


async def test_a_target_without_configuration_leaves_batching_to_the_shapes() -> None:
    """The answer is as it was: shapes have to tell."""
    service = target(Unsupported("no such question"))
    found = await ModelConfigurationLayer(service)(ModelMetadataRequest(model=M, context=BATCHING))
    assert METADATA == found


async def test_a_target_that_is_away_is_no_target_without_configuration() -> None:
    """An outage is told, not taken for an answer."""
    service = target(Unavailable("connection refused"))
    with pytest.raises(Unavailable):
        await ModelConfigurationLayer(service)(ModelMetadataRequest(model=M, context=BATCHING))


async def test_other_calls_pass() -> None:
    """Nothing else is looked at."""
    service = ScriptedService(True)
    assert await ModelConfigurationLayer(service)(ModelReadyRequest(model=M))


def test_a_decoupled_model_says_so() -> None:
    """Clients that look for streams find them in the transaction policy."""
    document = configuration_of(METADATA.changed(decoupled=True)).document
    assert {"decoupled": True} == document["model_transaction_policy"]
