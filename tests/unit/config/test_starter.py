"""The text of `gateway init`: it is valid, and so are its examples."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from gateway.cli.serving.sidecar import load_mapping, sidecar_config
from gateway.config.load import LoadedConfig, load_text
from gateway.config.starter import FoundServer, starter_text
from gateway.ir.metadata import ModelMetadata, TensorMetadata
from gateway.ir.tensors.datatypes import Datatype
from gateway.registry import EXTENSIONS

DIGITS = ModelMetadata(
    name="digits",
    versions=("1", "2"),
    inputs=(TensorMetadata("X", Datatype.FP32, (-1, 64)),),
    outputs=(TensorMetadata("label", Datatype.INT64, (-1,)), TensorMetadata("p", None, None)),
)


def with_examples(text: str) -> LoadedConfig:
    """Return the configuration with all examples uncommented."""
    lines = [
        line if re.match(r"\s*# \S", line) else re.sub(r"^(\s*)#", r"\1", line)
        for line in text.splitlines()
    ]
    return load_text("\n".join(lines))


def sidecar(*servers: FoundServer) -> str:
    config = sidecar_config(["oip+grpc://triton:8001"])
    return starter_text(config, dict(zip(config["upstreams"], servers, strict=False)))


def test_server_metadata_becomes_comments() -> None:
    """Name, version, models, versions and tensors are written."""
    text = sidecar(FoundServer("triton 2.51.0", (DIGITS,)))
    assert "  # upstream: triton 2.51.0, 1 model\n" in text
    assert "  # - digits (versions 1, 2): X FP32[-1, 64] -> label INT64[-1], p ?\n" in text
    assert load_text(text).config.upstreams["upstream"].all_urls[0].host == "triton"


@pytest.mark.parametrize(
    "server",
    [
        None,
        FoundServer(),
        FoundServer("x", (DIGITS,)),
        FoundServer("x", (), ("tagger",)),
        FoundServer("x", (), ("a b: {c}", "-")),
    ],
    ids=str,
)
def test_the_text_and_all_examples_are_valid(server: FoundServer | None) -> None:
    """The file loads without its comment signs, too."""
    text = sidecar(*([] if server is None else [server]))
    assert load_text(text).config.routes == ()
    config = with_examples(text).config
    assert len(config.routes) == 1
    assert ("stock" in config.model_fields_set) == ("migration" in EXTENSIONS)
    assert bool(config.models) == bool(server and server.untold)


def test_local_models_need_no_server() -> None:
    """The example route targets the model."""
    config: dict[str, Any] = {
        "listeners": [{"http": "127.0.0.1:8000"}],
        "models": {"digits": {"backend": "onnx", "path": "/m"}},
    }
    found = with_examples(starter_text(config, {})).config
    assert found.routes[0].targets[0].model == "digits"


def test_server_names_cannot_inject_keys() -> None:
    """A line break in a name of a server stays in the comment."""
    hostile = ModelMetadata(name="x\nadmin: {remote_changes: true}\n#", inputs=DIGITS.inputs)
    text = sidecar(FoundServer("y\nworkers: 9", (hostile,)))
    config = load_text(text).config
    assert (config.workers, config.admin) == (1, None)


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"default_model": "m"},
        {"grpc": "off", "http": "127.0.0.1:1"},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "upstreams",
    [
        ["oip+grpc://h:1"],
        ["oip+http://h:1", "trtis+http://h:2"],
        ["grps+grpc://h:1"],
        ["graphpipe+http://h:1"],
    ],
    ids=lambda each: each[0],
)
def test_a_written_file_has_each_key_of_the_sidecar(
    upstreams: list[str], flags: dict[str, str]
) -> None:
    """`init --from` serves what `serve --upstream` serves, with its timeouts, too."""
    expected = sidecar_config(upstreams, **flags)  # type: ignore[arg-type]  # a flag each
    text = starter_text(expected, {})
    found = load_text(text).config
    assert load_mapping(expected, "flags").config == found
    assert 0 == len(expected.keys() - yaml.safe_load(text).keys())
