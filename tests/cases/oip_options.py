"""Options of an Open Inference listener that serves everything that is modelled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EVERYTHING: Mapping[str, Any] = {
    "model_configuration": True,
    "statistics": "target",
    "repository_index": True,
    "model_control": True,
    "model_files": True,
    "model_config": True,
    "trace": True,
    "logging": "target",
}
