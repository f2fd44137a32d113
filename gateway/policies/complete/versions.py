"""Resolution of versions for callers whose protocol only has numeric versions.

Metadata for such a caller contain 1 for a model without versions, and for a version that is not a
number.

Source: docs/protocols/tensorrt-v1.md, "12. Versions, ids and sequences".
"""

from collections.abc import Sequence
from typing import Final

PLACEHOLDER_VERSION: Final = "1"


def resolve_version(version: str, versions: Sequence[str]) -> str:
    """Return the model's version for the caller's numeric version; "" for any.

    Args:
        version: The caller's version.
        versions: The versions of the model.
    """
    if version != PLACEHOLDER_VERSION or version in versions:
        return version
    if not versions:
        return ""
    return next((one for one in versions if not one.isdecimal()), version)
