"""The paths of a listener, and the models and versions that they name.

Source: docs/protocols/torchserve.md, "2. Paths".
"""

import enum
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from gateway.wire.heads.path_claims import ClaimKind, Passing, PathClaim

PING: Final = "/ping"
PREDICTIONS: Final = "/predictions"
EXPLANATIONS: Final = "/explanations"
INVOCATIONS: Final = "/invocations"
MODELS: Final = "/models"

_CLAIMS: Final = (
    # MLflow and containers of SageMaker have these two, too.
    PathClaim(PING, ClaimKind.YIELDED, Passing.FOUND, is_public=True),
    PathClaim(INVOCATIONS, ClaimKind.YIELDED, Passing.FOUND),
    PathClaim(PREDICTIONS, passes=Passing.FOUND),
    PathClaim(EXPLANATIONS, passes=Passing.FOUND),
    # MLflow refuses the list of models.
    PathClaim(MODELS, ClaimKind.SHARED, Passing.FOUND),
)


def claims(_options: Mapping[str, Any], /) -> tuple[PathClaim, ...]:
    """Return the paths of a listener."""
    return _CLAIMS


class TorchServePathKind(enum.Enum):
    """What a path is for."""

    PING = "ping"
    PREDICTION = "prediction"
    EXPLANATION = "explanation"
    INVOCATION = "invocation"
    LIST = "list"
    DESCRIPTION = "description"
    CHANGE = "change"
    ROOT = "root"

    __hash__ = object.__hash__


class TorchServePath(NamedTuple):
    """What a path is for.

    Attributes:
        kind: None for a path that does not exist.
        model: Name of the model, as on the wire; "" for none.
        version: Its version, as on the wire; "" for none.
    """

    kind: TorchServePathKind | None
    model: str = ""
    version: str = ""


_WHOLE: Final = {
    PING: TorchServePath(TorchServePathKind.PING),
    INVOCATIONS: TorchServePath(TorchServePathKind.INVOCATION),
    MODELS: TorchServePath(TorchServePathKind.LIST),
    "/": TorchServePath(TorchServePathKind.ROOT),
}
_NONE: Final = TorchServePath(None)
_INVOKE, _PREDICT, _SET_DEFAULT = "invoke", "predict", "set-default"
_ALL: Final = "all"


def find_path(path: str) -> TorchServePath:
    """Return what *path*, percent-encoded, is for."""
    found = _WHOLE.get(path)
    if found is not None:
        return found
    first, *rest = path[1:].split("/")
    return _path_of(first, rest) if first and rest and rest[0] else _NONE


def _path_of(first: str, rest: list[str]) -> TorchServePath:
    """Return what a path of several segments is for."""
    if first in (PREDICTIONS[1:], EXPLANATIONS[1:]):
        is_prediction = first == PREDICTIONS[1:]
        kind = TorchServePathKind.PREDICTION if is_prediction else TorchServePathKind.EXPLANATION
        # What follows the version is for handlers, as are the parameters of the query.
        return TorchServePath(kind, rest[0], rest[1] if len(rest) > 1 else "")
    if first == MODELS[1:]:
        return _model_path(rest)
    if rest == [_PREDICT]:
        return TorchServePath(TorchServePathKind.PREDICTION, first)
    if rest[1:] == [_PREDICT]:
        return TorchServePath(TorchServePathKind.PREDICTION, first, rest[0])
    return _NONE


def _model_path(rest: list[str]) -> TorchServePath:
    """Return what a path below `/models` is for."""
    name, version, last, *more = (*rest, "", "")
    if any(more):
        return _NONE
    if version == _INVOKE and not last:
        return TorchServePath(TorchServePathKind.PREDICTION, name)
    if last:
        return (
            TorchServePath(TorchServePathKind.CHANGE, name, version)
            if last == _SET_DEFAULT
            else _NONE
        )
    return TorchServePath(TorchServePathKind.DESCRIPTION, name, "" if version == _ALL else version)
