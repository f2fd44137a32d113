"""Finds the configuration file of a container whose platform starts it with `serve` alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.cli.output import WRONG_USAGE, fail
from gateway.registry import platforms, protocol_names

CONFIG: Final = "GATEWAY_CONFIG"
NAME: Final = "gateway.yaml"

_OWN: Final = Path("/etc/gateway") / NAME


def found_config(environment: Mapping[str, str]) -> Path:
    """Return the configuration file that the environment names, or else the first that exists.

    It fails if there is none.
    """
    named = environment.get(CONFIG)
    if named:
        return Path(named)
    folders = [each.models(environment) for each in platforms(protocol_names())]
    candidates = [folder / NAME for folder in folders if folder is not None] + [_OWN]
    found = next((path for path in candidates if path.is_file()), None)
    if found is None:
        fail(
            "no configuration: expected exactly one of CONFIG.yaml, --upstream URL and --demo, or "
            f"a file in {CONFIG}, which is not set, or one of "
            f"{', '.join(map(str, candidates))}{_storage_note(environment)}",
            WRONG_USAGE,
        )
    return found


def _storage_note(environment: Mapping[str, str]) -> str:
    """Return what to do with artefacts that a platform only names."""
    found = platforms(protocol_names())
    missing = {each.storage: each.missing_models(environment) for each in found}
    return "".join(
        f"; {variable} is {storage}, which the gateway does not fetch: put the artefacts into the "
        "image, or copy them with a start command"
        for variable, storage in missing.items()
        if storage
    )
