"""The paths of a listener, with the prefixes of its options.

Source: docs/protocols/openai.md, "2. Paths".
"""

import enum
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

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


PATHS: Final = tuple([endpoint.value for endpoint in PathKind])
YIELDED: Final = frozenset({MODELS, PathKind.CHAT.value})
"""Paths that another protocol may own: the list of models has all members that clients of KServe
read, and chat is only refused."""
DEFAULT_PREFIXES: Final = ("",)


class PathMatch(NamedTuple):
    """What a path is for.

    Attributes:
        endpoint: None for a path that does not exist.
        model: The rest of a path to one model, as on the wire; "" for none.
    """

    kind: PathKind | None
    model: str = ""


def prefixed_paths(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the paths that a listener's option `prefixes` adds."""
    found = options.get("prefixes") or DEFAULT_PREFIXES
    prefixes = found if isinstance(found, list | tuple) else ()
    return tuple([f"{prefix}{path}" for prefix in prefixes if prefix for path in PATHS])


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
