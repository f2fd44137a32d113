"""Metadata from YAML: alone, and merged with the metadata of a target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.app.build.models import build_models
from gateway.config.load import ConfigError, load_text
from gateway.ir.calls import ModelMetadataRequest, ServerLiveRequest
from gateway.ir.context import ModelRef
from gateway.ir.errors import (
    GatewayError,
    ModelNotFound,
    Unavailable,
    Unsupported,
    VersionNotFound,
)
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.policies.signatures import Signatures
from gateway.settings.signature import SignatureConfig, TensorConfig
from tests.fakes import ScriptedService

X = TensorConfig(name="x", datatype="FP32", shape=(-1, 2))
FOUND = ModelMetadata(
    name="m",
    versions=("3",),
    platform="p",
    inputs=(TensorMetadata("x", Datatype.INT32, (-1, 2)),),
    outputs=(TensorMetadata("y", Datatype.INT32, (-1, 2)),),
)
METADATA_REQUEST = ModelMetadataRequest(model=ModelRef("m"))


@pytest.mark.parametrize("error", [Unavailable("gone"), ModelNotFound("no"), Unsupported("no")])
async def test_a_complete_signature_needs_no_target(error: GatewayError) -> None:
    """A target without metadata, or without a reply within a second, is ignored."""
    inner = ScriptedService(error)
    signature = SignatureConfig(inputs=(X,), outputs=(), max_batch_size=4)
    found = await Signatures(inner, {"m": signature}, clock=lambda: 5.0)(METADATA_REQUEST)
    inputs = (TensorMetadata("x", Datatype.FP32, (-1, 2)),)
    assert ModelMetadata(name="m", inputs=inputs, max_batch_size=4) == found
    assert [6.0] == [call.context.deadline for call in inner.calls]


async def test_a_complete_signature_keeps_the_versions_of_the_target() -> None:
    """Versions and platform are the target's, tensors and batch size the signature's."""
    inner = ScriptedService(FOUND.changed(max_batch_size=9, decoupled=True))
    signature = SignatureConfig(inputs=(X,), outputs=())
    found = await Signatures(inner, {"m": signature})(METADATA_REQUEST)
    assert (("3",), "p", True, None) == (
        found.versions,
        found.platform,
        found.decoupled,
        found.max_batch_size,
    )
    assert ((TensorMetadata("x", Datatype.FP32, (-1, 2)),), ()) == (found.inputs, found.outputs)


async def test_a_signature_adds_no_versions() -> None:
    """A version that the target lacks stays unknown."""
    inner = ScriptedService(VersionNotFound("no version 999"))
    signatures = Signatures(inner, {"m": SignatureConfig(inputs=(X,), outputs=())})
    with pytest.raises(VersionNotFound):
        await signatures(ModelMetadataRequest(model=ModelRef("m", "999")))


@pytest.mark.parametrize(
    ("signature", "changed"),
    [
        ({"max_batch_size": 0}, {"max_batch_size": 0}),
        ({"stateful": True}, {"stateful": True}),
        ({"labels": {"y": ("a", "b")}}, {"labels": {"y": ("a", "b")}}),
        ({"inputs": (X,)}, {"inputs": (TensorMetadata("x", Datatype.FP32, (-1, 2)),)}),
        ({"outputs": ()}, {"outputs": ()}),
    ],
)
async def test_a_partial_signature_overrides_the_target(
    signature: dict[str, Any], changed: dict[str, Any]
) -> None:
    """Omitted parts are the target's."""
    inner = ScriptedService(FOUND)
    found = await Signatures(inner, {"m": SignatureConfig(**signature)})(METADATA_REQUEST)
    for name in (
        "versions",
        "platform",
        "inputs",
        "outputs",
        "max_batch_size",
        "labels",
        "stateful",
    ):
        assert changed.get(name, getattr(FOUND, name)) == getattr(found, name)


async def test_other_calls_are_passed_to_the_target() -> None:
    """Calls of other models and of other types are unchanged."""
    inner = ScriptedService(FOUND, True)
    service = Signatures(inner, {"other": SignatureConfig(max_batch_size=1)})
    assert await service(METADATA_REQUEST) is FOUND
    assert await service(ServerLiveRequest()) is True


MODEL = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
models:
  m:
    backend: python
    options: {callable: "gateway.backends.examples:simple"}
    signature: SIGNATURE
"""


async def test_a_signature_adds_labels_to_a_local_model() -> None:
    """A local model keeps its inputs and outputs, and gets labels and a batch size."""
    text = MODEL.replace("SIGNATURE", "{labels: {OUTPUT0: [zero, one]}, max_batch_size: 5}")
    models = build_models(load_text(text).config, Path())
    await models.load()
    try:
        found = await models.targets["m"].service(METADATA_REQUEST)
    finally:
        await models.close()
    assert ["INPUT0", "INPUT1"] == [tensor.name for tensor in found.inputs]
    assert ({"OUTPUT0": ("zero", "one")}, 5) == (found.labels, found.max_batch_size)


def test_a_partial_signature_of_a_local_model_is_rejected() -> None:
    """A local model needs both inputs and outputs, or neither."""
    text = MODEL.replace("SIGNATURE", "{inputs: []}")
    with pytest.raises(
        ValueError, match=r"in-process model 'm' has only .*inputs and outputs, or neither"
    ):
        build_models(load_text(text).config, Path())


def test_an_empty_signature_is_rejected() -> None:
    """A signature needs at least one entry."""
    with pytest.raises(ConfigError, match="a signature needs at least one"):
        load_text(MODEL.replace("SIGNATURE", "{}"))
