"""`gateway import mlflow`: the signature of a model becomes that of an upstream's model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.migration.importers.mlflow_model import import_mlflow


def write(folder: Path, **signature: Any) -> Path:
    """Write a model with a signature, whose sides are JSON in YAML."""
    path = folder / "house"
    path.mkdir()
    texts = {side: json.dumps(entries) for side, entries in signature.items()}
    document = {"flavors": {"python_function": {}}, **({"signature": texts} if texts else {})}
    (path / "MLmodel").write_text(yaml.safe_dump(document))
    return path


def tensor(dtype: str, shape: list[int], **name: str) -> dict[str, Any]:
    return {"type": "tensor", "tensor-spec": {"dtype": dtype, "shape": shape}, **name}


def test_tensors_keep_datatype_and_shape(tmp_path: Path) -> None:
    """One without a name gets that of its side."""
    path = write(
        tmp_path,
        inputs=[tensor("uint8", [-1, 28, 28])],
        outputs=[tensor("float32", [-1, 10], name="scores")],
    )
    found = import_mlflow(path, "127.0.0.1:1", "127.0.0.1:2")
    assert found.config["models"] == {
        "house": {
            "signature": {
                "inputs": [{"name": "input", "datatype": "UINT8", "shape": [-1, 28, 28]}],
                "outputs": [{"name": "scores", "datatype": "FP32", "shape": [-1, 10]}],
            }
        }
    }
    assert found.config["upstreams"] == {"mlflow": {"url": "mlflow+http://127.0.0.1:5000"}}
    assert found.config["listeners"][0]["default_model"] == "house"
    assert found.unmapped == []


def test_columns_become_inputs(tmp_path: Path) -> None:
    """Binary ones are base64 text, and what has no datatype is named with its line."""
    path = write(
        tmp_path,
        inputs=[
            {"type": "long", "name": "rooms"},
            {"type": "binary", "name": "photo"},
            {"type": "double", "name": "area", "required": False},
            {"type": "array", "name": "tags"},
        ],
        params=[{"name": "scale"}],
    )
    found = import_mlflow(path / "MLmodel", "127.0.0.1:1", "127.0.0.1:2")
    model = found.config["models"]["house"]
    assert [each["name"] for each in model["signature"]["inputs"]] == ["rooms", "photo", "area"]
    assert model["protocols"] == {"mlflow": {"columns": "each", "binary": ["photo"]}}
    texts = [each.text for each in found.unmapped]
    assert any("'area' is optional" in text for text in texts)
    assert any("'tags' is a array" in text for text in texts)
    assert any(text.startswith("params") for text in texts)
    assert all(each.line > 1 for each in found.unmapped)


def test_a_model_without_signature_is_named(tmp_path: Path) -> None:
    """Its signature must be written by hand."""
    found = import_mlflow(write(tmp_path), "127.0.0.1:1", "127.0.0.1:2")
    assert "models" not in found.config
    assert "no signature" in found.unmapped[0].text


def test_a_broken_file_is_an_error(tmp_path: Path) -> None:
    """The error has file and line."""
    path = tmp_path / "MLmodel"
    path.write_text("signature: {inputs: '['}\n")
    with pytest.raises(ValueError, match=r"MLmodel:1: inputs is not JSON"):
        import_mlflow(path, "127.0.0.1:1", "127.0.0.1:2")
    for inputs in ('{"a": 1}', '["a"]', '[{"type": "tensor"}]', "7"):
        path.write_text(f"signature: {{inputs: '{inputs}'}}\n")
        with pytest.raises(ValueError, match=r"MLmodel:1: inputs is no signature of MLflow"):
            import_mlflow(path, "127.0.0.1:1", "127.0.0.1:2")
    path.write_text("- a\n")
    with pytest.raises(ValueError, match="expected a mapping"):
        import_mlflow(path, "127.0.0.1:1", "127.0.0.1:2")
