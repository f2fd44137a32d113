"""Finds the configuration file of a container whose platform starts it with `serve` alone.

Source: docs/how-to/sagemaker.md, docs/how-to/vertex.md.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.cli.output import WRONG_USAGE, fail

CONFIG: Final = "GATEWAY_CONFIG"
BASE_DIR: Final = "SAGEMAKER_BASE_DIR"
STORAGE: Final = "AIP_STORAGE_URI"
NAME: Final = "gateway.yaml"

_BASE_DIR: Final = "/opt/ml"
_OWN: Final = Path("/etc/gateway") / NAME


def found_config(environment: Mapping[str, str]) -> Path:
    """Return the configuration file that the environment names, or else the first that exists.

    It fails if there is none.
    """
    named = environment.get(CONFIG)
    if named:
        return Path(named)
    folder = Path(environment.get(BASE_DIR) or _BASE_DIR) / "model"
    candidates = [folder / NAME, _OWN]
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        fail(
            "no configuration: expected exactly one of CONFIG.yaml, --upstream URL and --demo, or "
            f"a file in {CONFIG}, which is not set, or one of "
            f"{', '.join(map(str, candidates))}{_storage_note(environment.get(STORAGE))}",
            WRONG_USAGE,
        )
    return found


def _storage_note(storage: str | None) -> str:
    """Return what to do with artefacts that Vertex AI only names."""
    if not storage:
        return ""
    return (
        f"; {STORAGE} is {storage}, which the gateway does not fetch: put the artefacts into the "
        "image, or copy them with a start command"
    )
