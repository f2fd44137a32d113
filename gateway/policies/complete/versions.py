"""Versions for callers whose protocol has numbers only: which one is meant. Pure.

Such a caller is told 1 of a model that has no versions, and of versions that are no numbers.

Source: docs/protocols/tensorrt-v1.md, "12. Versions, ids and sequences".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PLACEHOLDER_VERSION: Final = "1"


def resolve_version(version: str, versions: Sequence[str]) -> str:
    """Return the version that a caller means by a number; "" for any.

    Args:
        version: As the caller has it.
        versions: Those that the model has.
    """
    if version != PLACEHOLDER_VERSION or version in versions:
        return version
    if not versions:
        return ""
    return next((one for one in versions if not one.isdecimal()), version)
