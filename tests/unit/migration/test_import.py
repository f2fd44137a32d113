"""The import of Triton's model repositories, and the text format of their configurations."""

from __future__ import annotations

from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from shutil import copytree

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from gateway.cli.commands import command_line
from gateway.config.load import load_text
from gateway.migration.importers.text_format import MalformedText, parse_fields
from gateway.migration.importers.triton_repository import import_repository

DIGITS = """
name: "digits"  # a comment
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ 64 ] } ]
output [
  { name: "label" data_type: TYPE_INT64 dims: [ 1 ] reshape { shape: [] } },
  { name: "probabilities" data_type: TYPE_FP32 dims: [ 10 ] label_filename: "labels.txt" }
]
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 100
  preserve_ordering: true
}
instance_group [ { count: 2 kind: KIND_CPU } ]
response_cache { enable: true }
optimization { cuda { graphs: true } }
"""

TORCH = """
platform: "pytorch_libtorch"
input { name: "INPUT__0" data_type: TYPE_STRING dims: -1 }
output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 2, 3 ] }
version_policy: { specific { versions: [ 1, 3 ] } }
"""


def repository(directory: Path, **configs: str) -> Path:
    for name, text in configs.items():
        for version in ("1", "2", "3"):
            (directory / name / version).mkdir(parents=True)
        (directory / name / "config.pbtxt").write_text(text)
    return directory


RAGGED = """
backend: "onnxruntime"
input [
  { name: "a" data_type: TYPE_FP32 dims: [ 3, 8, 8 ] format: FORMAT_NCHW allow_ragged_batch: true },
  { name: "b" data_type: TYPE_FP32 dims: [ 1 ] optional: true is_shape_tensor: true },
  { name: "c" data_type: TYPE_FP32 dims: [ 1 ] format: FORMAT_NONE allow_ragged_batch: false }
]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 1 ] is_non_linear_format_io: true
           reshape { shape: [] } } ]
"""


def test_keys_of_tensors_without_an_equivalent_are_named(tmp_path: Path) -> None:
    """A key with its default value says nothing."""
    found = import_repository(repository(tmp_path, m=RAGGED))
    assert [
        "'input.format' of 'a' has no equivalent",
        "'input.allow_ragged_batch' of 'a' has no equivalent",
        "'input.optional' of 'b' has no equivalent",
        "'input.is_shape_tensor' of 'b' has no equivalent",
        "'output.is_non_linear_format_io' of 'y' has no equivalent",
        "'output.reshape' of 'y' has no equivalent",
    ] == [each.text for each in found.unmapped]


def test_settings_with_an_equivalent_are_mapped(tmp_path: Path) -> None:
    """Other settings are reported."""
    found = import_repository(repository(tmp_path, digits=DIGITS))
    assert found.models == {
        "digits": {
            "path": str(tmp_path / "digits"),
            "backend": "onnx",
            "batching": {"max_batch_size": 8, "max_delay": "100us", "preferred_sizes": [4, 8]},
            "cache": {},
            "options": {
                "versions": ["3"],
                "max_batch_size": 8,
                "labels": {"probabilities": "labels.txt"},
                "instances": 2,
                "device": "cpu",
            },
        }
    }
    file = tmp_path / "digits" / "config.pbtxt"
    assert [str(each) for each in found.unmapped] == [
        f"{file}:7: 'output.reshape' of 'label' has no equivalent",
        f"{file}:13: 'dynamic_batching.preserve_ordering' has no equivalent",
        f"{file}:17: 'optimization' has no equivalent",
    ]


def test_a_torch_model_gets_a_signature(tmp_path: Path) -> None:
    """TorchScript has no names, so the configuration provides them."""
    found = import_repository(repository(tmp_path, net=TORCH))
    assert found.unmapped == []
    assert found.models["net"]["options"] == {"versions": ["1", "3"]}
    assert found.models["net"]["signature"] == {
        "inputs": [{"name": "INPUT__0", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [{"name": "OUTPUT__0", "datatype": "FP32", "shape": [2, 3]}],
        "max_batch_size": 0,
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('platform: "tensorrt_plan"', "platform 'tensorrt_plan' has no equivalent"),
        ("", "no backend and no model file that is known"),
        ('backend: "onnxruntime" max_batch_size: many', "line 1: max_batch_size is 'many'"),
        ("input {", "line 1: 'input' is not closed by '}'"),
    ],
)
def test_unsupported_models_are_reported(tmp_path: Path, text: str, reason: str) -> None:
    """Each is omitted with file, line and reason."""
    found = import_repository(repository(tmp_path, bad=text))
    assert found.models == {}
    assert reason in str(found.unmapped[0])


def import_command(*arguments: str) -> Result:
    return CliRunner().invoke(command_line(["import"]), ["import", *arguments])


def test_the_demo_repository_becomes_a_valid_configuration(tmp_path: Path) -> None:
    """A repository without config.pbtxt is imported by its files, and passes `validate`."""
    source = tmp_path / "models"
    copytree(str(files("gateway.cli.demo")) + "/models", source)
    out = tmp_path / "gateway.yaml"
    result = import_command("triton", str(source), "-o", str(out), "--strict")
    assert result.exit_code == 0, result.output
    models = load_text(out.read_text()).config.models
    assert {name: model.backend for name, model in models.items()} == {
        "digits": "onnx",
        "language": "onnx",
    }
    printed = import_command("trtis", str(source))
    assert yaml.safe_load(printed.stdout) == yaml.safe_load(out.read_text())


def test_strict_fails_for_settings_without_an_equivalent(tmp_path: Path) -> None:
    """Without --strict the setting is only reported."""
    source = repository(tmp_path / "models", digits=DIGITS)
    out = ("-o", str(tmp_path / "gateway.yaml"))
    assert import_command("triton", str(source), *out).exit_code == 0
    result = import_command("triton", str(source), *out, "--strict")
    assert (result.exit_code, "'optimization' has no equivalent" in result.stderr) == (1, True)
    (tmp_path / "empty").mkdir()
    assert import_command("triton", str(tmp_path / "empty")).exit_code == 1


SUM = """
backend: "onnxruntime"
max_batch_size: 4
"""
ENSEMBLE = """
name: "twice"
platform: "ensemble"
max_batch_size: 4
input [ { name: "A" data_type: TYPE_INT32 dims: [ 16 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 16 ] } ]
ensemble_scheduling {
  step [
    {
      model_name: "sum.v1" model_version: -1
      input_map { key: "INPUT0" value: "A" }
      input_map { key: "INPUT1" value: "A" }
      output_map { key: "OUTPUT0" value: "middle" }
    },
    {
      model_name: "sum.v1" model_version: 3 model_namespace: "x"
      input_map [ { key: "INPUT0" value: "middle" }, { key: "INPUT1" value: "A" } ]
      output_map { key: "OUTPUT0" value: "OUT" }
    }
  ]
}
"""


def test_labels_of_an_ensemble_are_named(tmp_path: Path) -> None:
    """A pipeline has the labels of its steps, and none of its own."""
    labelled = ENSEMBLE.replace('name: "OUT"', 'name: "OUT" label_filename: "labels.txt"')
    found = import_repository(repository(tmp_path, **{"sum.v1": SUM, "twice": labelled}))
    assert "'output.label_filename' of 'OUT' has no equivalent" == found.unmapped[0].text


def test_an_ensemble_becomes_a_pipeline(tmp_path: Path) -> None:
    """Its tensors are replaced by the steps that produce them; the file passes `validate`."""
    configs = {"sum.v1": SUM, "twice": ENSEMBLE}
    found = import_repository(repository(tmp_path, **configs))
    assert found.pipelines == {
        "twice": {
            "steps": {
                "sum-v1": {
                    "model": "sum.v1",
                    "inputs": {"INPUT0": "request.A", "INPUT1": "request.A"},
                },
                "sum-v1-2": {
                    "model": "sum.v1",
                    "version": "3",
                    "inputs": {"INPUT0": "sum-v1.OUTPUT0", "INPUT1": "request.A"},
                },
            },
            "outputs": {"OUT": "sum-v1-2.OUTPUT0"},
            "signature": {
                "inputs": [{"name": "A", "datatype": "INT32", "shape": [-1, 16]}],
                "outputs": [{"name": "OUT", "datatype": "INT32", "shape": [-1, 16]}],
                "max_batch_size": 4,
            },
        }
    }
    file = tmp_path / "twice" / "config.pbtxt"
    assert [str(each) for each in found.unmapped] == [
        f"{file}:16: 'ensemble_scheduling.step.model_namespace' has no equivalent"
    ]
    result = import_command("triton", str(tmp_path), "-o", str(tmp_path / "gateway.yaml"))
    assert result.exit_code == 0, result.output
    config = load_text((tmp_path / "gateway.yaml").read_text()).config
    assert list(config.pipelines["twice"].steps) == ["sum-v1", "sum-v1-2"]


def test_ensembles_without_their_models_are_omitted(tmp_path: Path) -> None:
    """An ensemble of such an ensemble is omitted, too; the missing model is reported."""
    outer = ENSEMBLE.replace('"twice"', '"outer"').replace("sum.v1", "twice")
    found = import_repository(repository(tmp_path, twice=ENSEMBLE, outer=outer))
    assert (found.models, found.pipelines) == ({}, {})
    omissions = [str(each) for each in found.unmapped if "left out" in str(each)]
    assert omissions == [
        f"{tmp_path}/twice/config.pbtxt:1: ensemble left out: its model 'sum.v1' is not imported",
        f"{tmp_path}/outer/config.pbtxt:1: ensemble left out: its model 'twice' is not imported",
    ]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            'value: "middle" }, {',
            'value: "other" }, {',
            "no input and no step makes tensor 'other'",
        ),
        ('value: "OUT"', 'value: "A"', "line 18: tensor 'A' has two sources"),
    ],
)
def test_an_ensemble_with_unconnected_tensors_is_omitted(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    """The reason names the tensor and the line."""
    configs = {"sum.v1": SUM, "twice": ENSEMBLE.replace(old, new)}
    found = import_repository(repository(tmp_path, **configs))
    assert found.pipelines == {}
    assert reason in str(found.unmapped[-1])


def test_text_format_has_lists_nesting_and_strings() -> None:
    """Both brackets and quotes, adjacent strings, comments and optional colons are parsed."""
    root = parse_fields("a: 'x' \"y\\n\" # c\nb < c { d: [1, -2.5e3] } >\ne: true")
    assert root.text("a") == "xy\n"
    (b,) = root.all("b")
    assert (b.line, b.all("c")[0].values("d"), root.text("e")) == (2, ["1", "-2.5e3"], "true")


@pytest.mark.parametrize(
    "text", ["a", "a:", "a: [", "a {", "}", "a: }", ": 1", 'a: "', "a" + "{a" * 40]
)
def test_malformed_text_raises_an_error_with_the_line(text: str) -> None:
    """The text ends early or has an unexpected character."""
    with pytest.raises(MalformedText, match="line 1"):
        parse_fields(text)


@given(st.text(alphabet='ab1:{}[]<>"\\\n ,#.-', max_size=60))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    """No text raises another error."""
    with suppress(MalformedText):
        parse_fields(text)
