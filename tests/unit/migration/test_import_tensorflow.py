"""The `models.config` of TensorFlow Serving becomes a gateway before the same server."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gateway.config.load import load_text
from gateway.migration.importers.tensorflow_models import import_models

CONFIG = """
model_config_list {
  config {
    name: "half" base_path: "/models/half" model_platform: "tensorflow"
    model_version_policy { specific { versions: 123 } }
  }
  config {
    name: 'add_sub'
    base_path: "/models/add_sub"
    version_labels { key: 'stable' value: 1 }
    version_labels { key: 'canary' value: 3 }
    logging_config { sampling_config { sampling_rate: 0.1 } }
  }
}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "models.config"
    path.write_text(text)
    return path


def test_labels_and_a_route_are_imported(tmp_path: Path) -> None:
    """The server keeps its models on another port, and the gateway has its ports and labels."""
    found = import_models(written(tmp_path, CONFIG))
    assert 2 == found.models
    loaded = load_text(yaml.safe_dump(found.config)).config
    assert "tfs+grpc://127.0.0.1:18500" == str(loaded.upstreams["tensorflow"].url)
    assert "tfs+http://127.0.0.1:18501" == str(loaded.upstreams["tensorflow_http"].url)
    assert "127.0.0.1:8501" == str(loaded.listeners[0].http)
    assert {"stable": "1", "canary": "3"} == {
        key: str(value)
        for key, value in loaded.models["add_sub"].protocols["tfs"]["labels"].items()
    }


def test_what_has_no_equivalent_is_named_with_its_line(tmp_path: Path) -> None:
    """What the server keeps is not named."""
    found = import_models(written(tmp_path, CONFIG))
    assert ["12: 'logging_config' has no equivalent"] == [
        f"{each.line}: {each.text}" for each in found.unmapped
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [("models { }", "no model_config_list"), ("model_config_list {", "models.config: ")],
)
def test_other_files_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    """The error says what the file lacks."""
    with pytest.raises(ValueError, match=reason):
        import_models(written(tmp_path, text))
