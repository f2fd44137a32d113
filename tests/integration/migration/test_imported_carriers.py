"""Imported configurations of servers that stay: their clients can call on every carrier."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from gateway.cli.commands import command_line
from tests.integration.asking_kit import running
from tests.integration.migration.digits_kit import demo_text
from tests.integration.migration.test_sidecar_records import CARRIERS, address, infer

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]

_INPUT = '[{"name": "X", "type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 64]}}]'
_MODELS = '{"model_config_list": [{"config": {"name": "digits", "base_path": "/models/digits"}}]}'
_DEPLOYMENT = """
kind: SeldonDeployment
metadata: {name: digits}
spec: {predictors: [{name: main, graph: {name: digits}}]}
"""
_SERVICE = """
kind: InferenceService
metadata: {name: digits}
spec: {predictor: {model: {protocolVersion: grpc-v2}}}
"""
# A file of each server, and the protocols that its clients speak.
FILES = {
    "mlflow": ("MLmodel", f"signature: {{inputs: '{_INPUT}'}}", ["mlflow"]),
    "tfs": ("models.config", 'model_config_list { config { name: "digits" } }', ["tfs"]),
    "torchserve": ("config.properties", 'models={"digits": {"1.0": {}}}', ["torchserve"]),
    "ovms": ("config.json", _MODELS, ["tfs", "oip"]),
    "seldon": ("deployment.yaml", _DEPLOYMENT, ["seldon"]),
    "kserve": ("service.yaml", _SERVICE, ["tfs", "oip"]),
}


@pytest.mark.parametrize("name", FILES)
async def test_clients_can_call_on_every_carrier(tmp_path: Path, name: str) -> None:
    """The file needs other addresses, and nothing else, for each carrier that it opens."""
    file, text, protocols = FILES[name]
    folder = tmp_path / "digits"
    folder.mkdir()
    (folder / file).write_text(text)
    out = tmp_path / "gateway.yaml"
    arguments = ["import", name, str(folder / file), "-o", str(out)]
    done = CliRunner().invoke(command_line(["import"]), arguments)
    assert done.exit_code == 0, done.output
    document = yaml.safe_load(out.read_text())
    (listener,) = document["listeners"]
    keys = [
        key
        for key in CARRIERS
        if key.partition(".")[0] in protocols and key.partition(".")[2] in listener
    ]
    async with running(demo_text()) as server:
        for upstream in document["upstreams"].values():
            scheme, _, _ = upstream["url"].partition("://")
            upstream["url"] = address(server, scheme.replace("+", "."))
        listener.update({"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"})
        document |= {"admin": {"address": "off"}, "lifecycle": {"pre_stop": "0s", "drain": "1s"}}
        async with running(yaml.safe_dump(document)) as gateway:
            for key in keys:
                await infer(gateway, key)
    assert keys
