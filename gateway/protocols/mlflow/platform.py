"""The containers of SageMaker.

Source: docs/how-to/sagemaker.md.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.api.platform import Platform

_BASE_DIR: Final = "/opt/ml"


def _models(environment: Mapping[str, str], /) -> Path:
    """Return where the platform has unpacked the model archive."""
    return Path(environment.get("SAGEMAKER_BASE_DIR") or _BASE_DIR) / "model"


PLATFORM: Final = Platform(name="SageMaker", models=_models)
