"""The paths of a listener, and those of requests to an upstream.

Source: docs/protocols/seldon.md, "2. What is served".
"""

import enum
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from gateway.wire.heads.path_claims import ClaimKind, Passing, PathClaim

PREDICTIONS: Final = "/api/v1.0/predictions"
STATUS: Final = "/health/status"
METADATA: Final = "/metadata"
FEEDBACK: Final = "/api/v1.0/feedback"
_PREDICT: Final = "/predict"
_DEPLOYMENTS: Final = "/seldon"
_METADATA_OF: Final = "/api/v1.0/metadata"
_PING, _LIVE, _READY = "/health/ping", "/live", "/ready"
_API_STATUS: Final = "/api/v1.0/health/status"
_VERBS: Final = ("/transform-input", "/transform-output", "/route", "/aggregate")


class SeldonPath(enum.Enum):
    """What a path is for."""

    PREDICTIONS = "predictions"
    PREDICT = "predict"
    FEEDBACK = "feedback"
    SEND_FEEDBACK = "send-feedback"
    VERB = "verb"
    PING = "ping"
    LIVE = "live"
    READY = "ready"
    STATUS = "status"
    METADATA = "metadata"
    OPENAPI = "openapi"

    __hash__ = object.__hash__


METHODS: Final = {
    SeldonPath.PREDICTIONS: ("POST",),
    SeldonPath.PREDICT: ("GET", "POST"),
    SeldonPath.FEEDBACK: ("POST",),
    SeldonPath.SEND_FEEDBACK: ("GET", "POST"),
    SeldonPath.VERB: ("GET", "POST"),
}
"""The methods of paths; others have GET and HEAD."""

_KINDS: Final = {
    PREDICTIONS: SeldonPath.PREDICTIONS,
    "/api/v0.1/predictions": SeldonPath.PREDICTIONS,
    _PREDICT: SeldonPath.PREDICT,
    FEEDBACK: SeldonPath.FEEDBACK,
    "/api/v0.1/feedback": SeldonPath.FEEDBACK,
    "/send-feedback": SeldonPath.SEND_FEEDBACK,
    **dict.fromkeys(_VERBS, SeldonPath.VERB),
    _PING: SeldonPath.PING,
    _LIVE: SeldonPath.LIVE,
    _READY: SeldonPath.READY,
    STATUS: SeldonPath.STATUS,
    _API_STATUS: SeldonPath.STATUS,
    METADATA: SeldonPath.METADATA,
    _METADATA_OF: SeldonPath.METADATA,
    "/seldon.json": SeldonPath.OPENAPI,
}
_PUBLIC: Final = frozenset({_PING, _LIVE, _READY, STATUS})
_CLAIMS: Final = (
    PathClaim("/api/v1.0", ClaimKind.LISTED),
    PathClaim("/api/v0.1", ClaimKind.LISTED),
    PathClaim(_API_STATUS, ClaimKind.LISTED, is_public=True),
    PathClaim(_DEPLOYMENTS, ClaimKind.LISTED, is_base=True),
    *[
        PathClaim(path, ClaimKind.YIELDED, Passing.FOUND, is_public=path in _PUBLIC)
        for path in _KINDS
        if not path.startswith("/api/")
    ],
)


def claims(_options: Mapping[str, Any], /) -> tuple[PathClaim, ...]:
    """Return the paths of a listener; another protocol may have those of the microservice."""
    return _CLAIMS


class SeldonRoute(NamedTuple):
    """What a path is for, and the model that it names, as on the wire; "" for none."""

    kind: SeldonPath | None
    model: str = ""


_NOTHING: Final = SeldonRoute(None)
_PARTS: Final = 3


def path_at_server(path: str) -> str:
    """Return *path* as a microservice has it, which has one model and no name for it."""
    return "/" + path.split("/", _PARTS + 1)[-1] if path.startswith(f"{_DEPLOYMENTS}/") else path


def find_path(path: str) -> SeldonRoute:
    """Return what *path* is for; it is percent-encoded.

    Below `/seldon/NAMESPACE/NAME` it names the model NAME, as an ingress does.
    """
    kind = _KINDS.get(path)
    if kind is not None:
        return SeldonRoute(kind)
    if path.startswith(f"{_METADATA_OF}/"):
        name = path[len(_METADATA_OF) + 1 :]
        return SeldonRoute(SeldonPath.METADATA, name) if name and "/" not in name else _NOTHING
    if not path.startswith(f"{_DEPLOYMENTS}/"):
        return _NOTHING
    parts = path[len(_DEPLOYMENTS) + 1 :].split("/", _PARTS - 1)
    if len(parts) < _PARTS or not parts[0] or not parts[1]:
        return _NOTHING
    kind = _KINDS.get(f"/{parts[2]}")
    return _NOTHING if kind is None else SeldonRoute(kind, parts[1])
