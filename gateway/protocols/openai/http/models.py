"""Responses of `/v1/models`, which clients of OpenAI and of KServe's first protocol read.

Source: docs/protocols/openai.md, "7. Models".
"""

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.ir.metadata import ModelState, RepositoryEntry
from gateway.protocols.openai.options import OpenAiOptions

_NOT_READY = frozenset({ModelState.UNAVAILABLE, ModelState.LOADING, ModelState.UNLOADING})


def encode_models(entries: Sequence[RepositoryEntry], options: OpenAiOptions) -> bytes:
    """Return the list of ready models, sorted, each of them once."""
    ready = {entry.name for entry in entries if entry.state not in _NOT_READY}
    names = sorted(ready)
    return orjson.dumps(
        {
            "object": "list",
            "data": [model_object(name, options) for name in names],
            "models": names,
        }
    )


def model_object(name: str, options: OpenAiOptions) -> dict[str, Any]:
    """Return one model that is ready, as both kinds of clients read it."""
    return {
        "id": name,
        "object": "model",
        "created": options.created,
        "owned_by": options.owned_by,
        "name": name,
        "ready": True,
    }
