"""The paths of a listener. A request names its model only below the prefix of the options.

Source: docs/protocols/mlflow.md, "2. Paths".
"""

import enum
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from gateway.wire.heads.path_claims import ClaimKind, Passing, PathClaim

INVOCATIONS: Final = "/invocations"
PING: Final = "/ping"
HEALTH: Final = "/health"
VERSION: Final = "/version"
MODELS: Final = "/models"

_CLAIMS: Final = (
    PathClaim(INVOCATIONS, ClaimKind.LISTED, Passing.FOUND),
    PathClaim(PING, ClaimKind.LISTED, Passing.FOUND, is_public=True),
    PathClaim(HEALTH, ClaimKind.LISTED, Passing.FOUND, is_public=True),
    PathClaim(VERSION, ClaimKind.LISTED, Passing.FOUND),
    PathClaim(MODELS, ClaimKind.YIELDED, Passing.FOUND),  # only refused
)


def claims(options: Mapping[str, Any]) -> tuple[PathClaim, ...]:
    """Return the paths of a listener, with the one that its option `prefix` adds."""
    prefix = options.get("prefix")
    return (*_CLAIMS, PathClaim(prefix, option="prefix")) if prefix else _CLAIMS


class ScoringPath(enum.Enum):
    """What a path is for."""

    INVOCATIONS = INVOCATIONS
    PING = PING
    VERSION = VERSION
    MODELS = MODELS

    __hash__ = object.__hash__


class ScoringRoute(NamedTuple):
    """What a path is for, and the model that it names, as on the wire; "" for none."""

    kind: ScoringPath | None
    model: str = ""


_KINDS: Final = {
    INVOCATIONS: ScoringPath.INVOCATIONS,
    PING: ScoringPath.PING,
    HEALTH: ScoringPath.PING,
    VERSION: ScoringPath.VERSION,
    MODELS: ScoringPath.MODELS,
}


def find_path(path: str, prefix: str) -> ScoringRoute:
    """Return what *path* is for.

    Args:
        path: The path of a request, percent-encoded.
        prefix: What stands before the name of a model; "" for nothing.
    """
    kind = _KINDS.get(path)
    if kind is not None:
        return ScoringRoute(kind)
    if path.startswith(f"{MODELS}/"):
        return ScoringRoute(ScoringPath.MODELS)
    if prefix and path.startswith(f"{prefix}/"):
        name, _, rest = path[len(prefix) + 1 :].partition("/")
        kind = _KINDS.get(f"/{rest}")
        if name and kind in {ScoringPath.INVOCATIONS, ScoringPath.PING}:
            return ScoringRoute(kind, name)
    return ScoringRoute(None)
