"""ModelConfigurationLayer: configurations from metadata, and batching from configurations."""

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
from gateway.ir.errors import ModelNotFound, NotFound, Unavailable, Unsupported
from gateway.ir.metadata import ModelConfiguration, ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
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
CONFIGURATION = ModelConfiguration({"name": "m", "max_batch_size": 8})


def target(configuration: Any, metadata: Any = METADATA) -> ScriptedService:
    """Return a target with *configuration* and *metadata*, which may be errors."""

    def respond(call: Call[Any]) -> Any:
        found = configuration if isinstance(call, ModelConfigRequest) else metadata
        if isinstance(found, Exception):
            raise found
        return found

    return ScriptedService(always=respond)


async def test_configuration_of_the_target_takes_precedence() -> None:
    """If the target has a configuration, no metadata are fetched."""
    service = target(CONFIGURATION)
    assert CONFIGURATION == await ModelConfigurationLayer(service)(ModelConfigRequest(model=M))
    assert [ModelConfigRequest] == [type(call) for call in service.calls]


@pytest.mark.parametrize("error", [Unsupported("no such question"), NotFound("no such path")])
async def test_configuration_is_derived_from_metadata(error: Exception) -> None:
    """If the maximum batch size is unknown, dimensions are whole and the maximum is 0."""
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


def test_dimensions_of_a_batching_model_exclude_the_batch() -> None:
    """The batch axis is left out, as in Triton's configurations."""
    document = configuration_of(METADATA.changed(max_batch_size=16)).document
    assert (16, [4]) == (document["max_batch_size"], document["input"][0]["dims"])


async def test_stateful_is_converted_both_ways() -> None:
    """Sequence batching in a configuration makes metadata stateful, and vice versa."""
    stateful = ModelConfiguration({"max_batch_size": 8, "sequence_batching": {"oldest": {}}})
    call = ModelMetadataRequest(model=M, context=BATCHING)
    found = [
        await ModelConfigurationLayer(target(configuration))(call)
        for configuration in (CONFIGURATION, stateful)
    ]
    assert [False, True] == [one.stateful for one in found]
    assert [False, True] == [configuration_of(one).stateful for one in found]


async def test_unknown_model_has_no_configuration() -> None:
    """The metadata call decides whether the model exists."""
    service = target(NotFound("no such path"), ModelNotFound("no model 'm'"))
    with pytest.raises(ModelNotFound):
        await ModelConfigurationLayer(service)(ModelConfigRequest(model=M))


async def test_maximum_batch_size_comes_from_the_configuration() -> None:
    """Metadata for a caller that needs batching contain the configuration as well."""
    found = await ModelConfigurationLayer(target(CONFIGURATION))(
        ModelMetadataRequest(model=M, context=BATCHING)
    )
    assert METADATA.changed(max_batch_size=8, configuration=CONFIGURATION) == found


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
async def test_configuration_is_fetched_only_if_needed(
    call: ModelMetadataRequest, metadata: ModelMetadata
) -> None:
    """Metadata that contain everything needed are passed on."""
    service = target(CONFIGURATION, metadata)
    assert metadata == await ModelConfigurationLayer(service)(call)
    assert [call] == service.calls


async def test_labelled_outputs_come_from_the_configuration() -> None:
    """Only outputs with a label file are labelled."""
    outputs = [{"name": "Y", "label_filename": "l.txt"}, {"name": "Z", "label_filename": ""}]
    configuration = ModelConfiguration({"name": "m", "max_batch_size": 8, "output": outputs})
    found = await ModelConfigurationLayer(target(configuration))(
        ModelMetadataRequest(model=M, context=BATCHING)
    )
    assert configuration is found.configuration
    assert frozenset({"Y"}) == configuration.labelled


async def test_stateful_comes_from_the_configuration() -> None:
    """A known maximum batch size is kept, but the configuration is still fetched."""
    configuration = ModelConfiguration({"name": "m", "max_batch_size": 8, "sequence_batching": {}})
    metadata = METADATA.changed(max_batch_size=4)
    found = await ModelConfigurationLayer(target(configuration, metadata))(
        ModelMetadataRequest(model=M, context=BATCHING)
    )
    assert metadata.changed(stateful=True, configuration=configuration) == found


async def test_decoupled_comes_from_the_configuration() -> None:
    """A model whose configuration has the transaction policy may reply any number of times."""
    configuration = ModelConfiguration({"model_transaction_policy": {"decoupled": True}})
    layer = ModelConfigurationLayer(target(configuration))
    assert (await layer(ModelMetadataRequest(model=M, context=BATCHING))).decoupled


async def test_metadata_are_unchanged_without_a_configuration() -> None:
    """If the target has no configuration, only the shapes show whether a model batches."""
    service = target(Unsupported("no such question"))
    found = await ModelConfigurationLayer(service)(ModelMetadataRequest(model=M, context=BATCHING))
    assert METADATA == found


async def test_unavailable_target_is_an_error() -> None:
    """An outage is not taken for a missing configuration."""
    service = target(Unavailable("connection refused"))
    with pytest.raises(Unavailable):
        await ModelConfigurationLayer(service)(ModelMetadataRequest(model=M, context=BATCHING))


async def test_other_calls_pass_through() -> None:
    """Calls other than metadata and configuration calls are unchanged."""
    service = ScriptedService(True)
    assert await ModelConfigurationLayer(service)(ModelReadyRequest(model=M))


def test_decoupled_model_has_a_transaction_policy() -> None:
    """Clients that stream look for the transaction policy."""
    document = configuration_of(METADATA.changed(decoupled=True)).document
    assert {"decoupled": True} == document["model_transaction_policy"]
