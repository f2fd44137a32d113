"""Lists of models on `/v1/models`, which clients of OpenAI and of KServe's first protocol read.

Source: docs/protocols/openai.md, "7. Models".
"""

from collections.abc import Sequence
from typing import Any, Final

import orjson

from gateway.ir.metadata import ModelState, RepositoryEntry

OWNER: Final = "tensor-gateway"

_NOT_READY = frozenset({ModelState.UNAVAILABLE, ModelState.LOADING, ModelState.UNLOADING})


def ready_names(entries: Sequence[RepositoryEntry]) -> list[str]:
    """Return the names of ready models, sorted, each of them once."""
    return sorted({entry.name for entry in entries if entry.state not in _NOT_READY})


def models_document(
    entries: Sequence[RepositoryEntry], created: int, owned_by: str = OWNER
) -> bytes:
    """Return the list of ready models, as both kinds of clients read it."""
    names = ready_names(entries)
    return orjson.dumps(
        {
            "object": "list",
            "data": [model_object(name, created, owned_by) for name in names],
            "models": names,
        }
    )


def model_object(name: str, created: int, owned_by: str = OWNER) -> dict[str, Any]:
    """Return one model that is ready, as both kinds of clients read it.

    Args:
        name: Name of the model.
        created: When the process started, seconds since 1970.
        owned_by: What clients see as the owner.
    """
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": owned_by,
        "name": name,
        "ready": True,
    }
