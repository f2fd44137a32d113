"""An imported ensemble replies as its model does."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from shutil import copytree

import numpy as np
import yaml

from gateway.migration.importers.triton_repository import import_repository
from tests.integration.asking_kit import ask, running, urls

ENSEMBLE = """
name: "scan"
platform: "ensemble"
input [ { name: "PIXELS" data_type: TYPE_FP32 dims: [ -1, 64 ] } ]
output [ { name: "DIGIT" data_type: TYPE_INT64 dims: [ -1 ] } ]
ensemble_scheduling {
  step [ {
    model_name: "digits" model_version: -1
    input_map { key: "X" value: "PIXELS" }
    output_map { key: "label" value: "DIGIT" }
  } ]
}
"""
HEAD = """
version: 1
listeners: [{http: "127.0.0.1:0", grpc: "127.0.0.1:0"}]
admin: {address: null, metrics: null}
lifecycle: {pre_stop: 0s, drain: 1s}
"""


async def test_imported_ensemble_replies_as_its_model(tmp_path: Path) -> None:
    """Its tensors have the names that its clients use."""
    source = tmp_path / "models"
    copytree(str(files("gateway.cli.demo")) + "/models", source)
    (source / "scan").mkdir()
    (source / "scan" / "config.pbtxt").write_text(ENSEMBLE)
    found = import_repository(source)
    assert found.unmapped == []
    text = HEAD + yaml.safe_dump({"models": found.models, "pipelines": found.pipelines})
    pixels = np.arange(128, dtype=np.float32).reshape(2, 64) % 17
    async with running(text) as gateway:
        for url in (urls(gateway, "scan")["oip.http"], urls(gateway, "scan")["oip.grpc"]):
            ensemble = await ask(url, "scan", {"PIXELS": pixels})
            model = await ask(url, "digits", {"X": pixels})
            assert ensemble["DIGIT"].tolist() == model["label"].tolist()
