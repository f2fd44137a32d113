"""The paths of a listener, with the prefixes of its options.

Source: docs/protocols/openai.md, "2. Paths".
"""

import enum
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from gateway.wire.heads.path_claims import ClaimKind, Passing, PathClaim

MODELS: Final = "/v1/models"


class PathKind(enum.Enum):
    """What a path is for, by the path without a prefix."""

    EMBEDDINGS = "/v1/embeddings"
    RERANK = "/v1/rerank"
    RERANK_2 = "/v2/rerank"
    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"
    MODELS = MODELS

    __hash__ = object.__hash__

    @property
    def is_rerank(self) -> bool:
        """Whether Cohere's clients use it, who look for `message` in errors."""
        return self in {PathKind.RERANK, PathKind.RERANK_2}


DEFAULT_PREFIXES: Final = ("",)
_CLAIMS: Final = (
    PathClaim(PathKind.EMBEDDINGS.value),
    PathClaim(PathKind.RERANK.value),
    PathClaim(PathKind.RERANK_2.value),
    PathClaim(PathKind.COMPLETIONS.value),
    PathClaim(PathKind.CHAT.value, ClaimKind.YIELDED),  # only refused
    # It has all members that clients of KServe read.
    PathClaim(MODELS, ClaimKind.YIELDED, Passing.WRITES),
)


class PathMatch(NamedTuple):
    """What a path is for.

    Attributes:
        endpoint: None for a path that does not exist.
        model: The rest of a path to one model, as on the wire; "" for none.
    """

    kind: PathKind | None
    model: str = ""


def claims(options: Mapping[str, Any]) -> tuple[PathClaim, ...]:
    """Return the paths of a listener, with those that its option `prefixes` adds."""
    prefixes = options.get("prefixes", DEFAULT_PREFIXES)
    added = [
        PathClaim(f"{prefix}{each.path}", passes=each.passes, option="prefixes")
        for prefix in prefixes
        if prefix
        for each in _CLAIMS
    ]
    return (*_CLAIMS, *added)


class PathTable:
    """The paths of one listener.

    Args:
        prefixes: What stands before each path, each "" or "/..." without a slash at its end.
    """

    def __init__(self, prefixes: tuple[str, ...]) -> None:
        self._endpoints = {
            f"{prefix}{endpoint.value}": endpoint for prefix in prefixes for endpoint in PathKind
        }
        self._models = tuple([f"{prefix}{MODELS}/" for prefix in prefixes])

    def find(self, path: str) -> PathMatch:
        """Return what *path* is for."""
        endpoint = self._endpoints.get(path)
        if endpoint is not None:
            return PathMatch(endpoint)
        for start in self._models:
            if path.startswith(start) and len(path) > len(start):
                return PathMatch(PathKind.MODELS, path[len(start) :])
        return PathMatch(None)
