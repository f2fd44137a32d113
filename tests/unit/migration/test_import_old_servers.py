"""The import of GraphPipe's command lines and of grps's configurations."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from gateway.cli.commands import command_line
from gateway.config.load import load_text
from gateway.migration.importers.graphpipe_command import import_graphpipe
from gateway.migration.importers.grps_config import import_grps

MODEL = str(files("gateway.cli.demo") / "models" / "digits" / "1" / "model.onnx")

INFERENCE = """
models:
  - name: scorer
    version: 1.0.0
    device: cuda:1
    inferer_type: torch
    inferer_path: ./data/scorer.pt
    inferer_args:
      customized_op_paths: [/op.so]
    converter_type: customized
    batching: {type: dynamic, max_batch_size: 8, batch_timeout_us: 500}
  - name: tagger
    version: 2
    inferer_type: tensorflow
    inferer_path: ./data/tagger
    batching: {type: dynamic, max_batch_size: 8, batch_timeout_us: 500}
dag:
  nodes:
    - {name: node-1, type: model, model: scorer-1.0.0}
"""

SERVER = """
interface:
  framework: http+brpc
  host: 127.0.0.1
  port: 7080, 7081
  customized_predict_http:
    path: /custom
    streaming_ctrl: {ctrl_mode: body_param, ctrl_key: stream}
max_connections: 1000
max_concurrency: 32
log:
  log_dir: ./logs
"""


def command(*arguments: str) -> Result:
    return CliRunner().invoke(command_line(["import"]), ["import", *arguments])


def conf(directory: Path, inference: str = INFERENCE, server: str = SERVER) -> Path:
    (directory / "inference.yml").write_text(inference)
    (directory / "server.yml").write_text(server)
    return directory


def valid(config: dict[str, Any]) -> dict[str, Any]:
    load_text(yaml.safe_dump(config))
    return config


def test_an_onnx_model_of_graphpipe_runs_in_the_gateway() -> None:
    """Variables, long and short flags are parsed, with and without an equals sign."""
    found = import_graphpipe(
        ["GP_CACHE=1", "/usr/bin/graphpipe-onnx", "-m", "/m/iris.onnx", "--engine_count=2",
         "--disable-cuda", "--value_inputs", "v.json", "-l", ":9000", "-v"]
    )  # fmt: skip
    assert valid(found.config) == {
        "version": "1",
        "listeners": [
            {
                "name": "graphpipe",
                "http": "0.0.0.0:9000",
                "protocols": ["graphpipe"],
                "default_model": "iris",
            }
        ],
        "models": {
            "iris": {
                "backend": "onnx",
                "path": "/m/iris.onnx",
                "options": {"instances": 2, "device": "cpu"},
                "cache": {},
            }
        },
        "telemetry": {"log": {"level": "debug"}},
    }
    assert found.unmapped == []


def test_a_tensorflow_model_stays_at_its_server() -> None:
    """The gateway gets its address, and the server another one; tensor names get an index."""
    found = import_graphpipe(["graphpipe-tf", "--model", "m.pb", "-ia,b:1", "--cache-dir", "x"])
    config = valid(found.config)
    assert config["listeners"][0]["http"] == "127.0.0.1:9000"
    assert config["upstreams"] == {
        "m": {"url": "graphpipe+http://127.0.0.1:19000/", "options": {"inputs": ["a:0", "b:1"]}}
    }
    assert "models" not in config
    assert [str(each) for each in found.unmapped] == [
        (
            "command line:2: '--model': no backend runs it; start its server with "
            "--listen 127.0.0.1:19000, behind the gateway"
        ),
        "command line:5: the cache of the gateway is in memory",
    ]


def test_the_batcher_becomes_batching_of_an_upstream() -> None:
    """graphpipe-batcher becomes a listener, an upstream and a batch queue."""
    found = import_graphpipe(
        ["graphpipe-batcher", "--target-url", "http://tf:9000", "--inputs", "x", "--outputs", "y",
         "--batch-size", "32", "--workers", "2"]
    )  # fmt: skip
    config = valid(found.config)
    assert config["upstreams"]["model"] == {
        "url": "graphpipe+http://tf:9000/",
        "options": {"inputs": ["x"], "outputs": ["y"]},
    }
    assert config["models"]["model"] == {
        "batching": {"max_batch_size": 32, "max_delay": "250ms", "in_flight": 2}
    }


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "the program is ''; expected one of graphpipe-tf"),
        (("tf_serving", "--port", "1"), "the program is 'tf_serving'"),
        (("graphpipe-tf", "--port", "1"), "word 2 is '--port'; expected a flag"),
        (("graphpipe-tf", "m.pb"), "word 2 is 'm.pb'"),
        (("graphpipe-tf", "--model"), "--model has no value"),
        (("graphpipe-tf", "--listen", "9000x"), "--listen is '9000x'; expected HOST:PORT"),
        (("graphpipe-onnx", "-m", "m.onnx", "--engine_count", "x"), "--engine_count is 'x'"),
        (("graphpipe-batcher", "--target-url", "tf"), "--target-url is 'tf'"),
    ],
)
def test_a_malformed_command_line_is_a_usage_error(words: tuple[str, ...], text: str) -> None:
    """Each error has the word and the expected form."""
    with pytest.raises(ValueError, match=text):
        import_graphpipe(words)
    assert command("graphpipe", "--", *(words or ("",))).exit_code == 2


def test_grps_settings_are_mapped(tmp_path: Path) -> None:
    """Models, keys, ports, batching, streams and limits have equivalents."""
    config = valid(import_grps(conf(tmp_path)).config)
    assert config == {
        "version": "1",
        "listeners": [
            {
                "name": "main",
                "http": "127.0.0.1:7080",
                "streams": [{"protocol": "grps", "address": "127.0.0.1:7081"}],
                "limits": {"requests_in_flight": 1000},
                "options": {
                    "grps": {
                        "streaming": {"mode": "body_param", "key": "stream"},
                        "default_model": "scorer",
                        "models": {"scorer-1.0.0": "scorer"},
                    }
                },
            }
        ],
        "upstreams": {
            "old": {
                "url": "grps+http://127.0.0.1:17080",
                "options": {"keys": {"tagger/2": "tagger-2"}},
            }
        },
        "models": {
            "scorer": {
                "backend": "torch",
                "path": str((tmp_path / ".." / "data" / "scorer.pt").resolve()),
                "options": {"device": "cuda", "max_batch_size": 8},
                "batching": {"max_batch_size": 8, "max_delay": "500us"},
            }
        },
        "policies": {"in_flight": 32},
    }


def test_grps_settings_without_an_equivalent_are_reported(tmp_path: Path) -> None:
    """Each has the line of its key in the file."""
    found = import_grps(conf(tmp_path)).unmapped
    lines = [f"{Path(each.file).name}:{each.line} {each.text.split(':')[0]}" for each in found]
    assert lines == [
        "server.yml:7 'customized_predict_http.path'",
        "inference.yml:5 'device",
        "inference.yml:3 model 'scorer' needs its inputs and outputs in 'signature'",
        "inference.yml:10 'converter_type",
        "inference.yml:8 'inferer_args' has no equivalent",
        "inference.yml:14 'inferer_type",
        "server.yml:11 'log'",
    ]


def test_the_dag_of_a_remaining_server_is_its_default(tmp_path: Path) -> None:
    """A request without a model is sent to the server without a key."""
    inference = INFERENCE.replace("scorer-1.0.0", "tagger-2")
    config = valid(import_grps(conf(tmp_path, inference)).config)
    assert config["listeners"][0]["options"]["grps"]["default_model"] == "default"
    assert config["upstreams"]["old"]["options"]["keys"]["default"] == ""


def test_a_dag_of_local_models_is_reported(tmp_path: Path) -> None:
    """The configuration has no names for tensors between nodes, so no pipeline is made."""
    node = "    - {name: node-2, type: model, model: scorer-1.0.0}\n"
    server = "interface: {framework: http+grpc}\n"
    found = import_grps(conf(tmp_path, INFERENCE + node, server))
    assert found.unmapped[-1].text.startswith("'dag' with 2 nodes")
    assert found.config["listeners"][0]["grpc"] == "0.0.0.0:7081"


@pytest.mark.parametrize(
    ("inference", "server", "text"),
    [
        ("models: [", SERVER, "inference.yml:1:"),
        ("[]", SERVER, "inference.yml:1: expected a mapping"),
        (INFERENCE, "interface: {port: x}", "interface.port is 'x'; expected numbers"),
    ],
)
def test_malformed_grps_files_are_usage_errors(
    tmp_path: Path, inference: str, server: str, text: str
) -> None:
    """Each error has the file or the key."""
    result = command("grps", str(conf(tmp_path, inference, server)))
    assert (result.exit_code, text in result.output) == (2, True), result.output


def test_the_command_writes_a_valid_file(tmp_path: Path) -> None:
    """The file passes `validate`; --strict fails for settings without an equivalent."""
    out = tmp_path / "gateway.yaml"
    result = command("graphpipe", "-o", str(out), "--", "graphpipe-onnx", "-m", MODEL)
    assert (result.exit_code, result.stdout) == (0, f"1 model written to {out}\n")
    checked = CliRunner().invoke(command_line(["validate"]), ["validate", str(out)])
    assert checked.exit_code == 0, checked.output
    assert command("grps", "--strict", str(conf(tmp_path))).exit_code == 1
    assert command("grps", str(tmp_path / "nothing")).exit_code == 2
    assert command("triton", "a", "b").exit_code == 2
