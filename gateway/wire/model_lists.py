"""Lists of models on `/v1/models`, which clients of OpenAI and of KServe's first protocol read.

Source: docs/protocols/openai.md, "7. Models".
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import orjson

from gateway.ir.errors import ErrorCode, GatewayError
from gateway.ir.metadata import ModelState, RepositoryEntry
from gateway.wire.http import Headers, HttpRequest, HttpResponse

_REST: Final = "/v1/models"
_KINDS: Final = {
    401: "invalid_api_key",
    403: "permission_denied",
    404: "model_not_found",
    405: "method_not_supported",
    503: "model_not_ready",
}
_SERVER: Final = 500
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


def is_of_openai(wire: HttpRequest) -> bool:
    """Return whether a request for the list or for one model comes from a client of OpenAI.

    These clients always have a key, which those of KServe and of TensorFlow Serving rarely have.
    """
    rest = wire.path.removeprefix(_REST)
    is_about_models = wire.path.startswith(_REST) and (not rest or rest.startswith("/"))
    return is_about_models and ":" not in rest and wire.headers.get("authorization") is not None


def openai_error(
    error: GatewayError, status: int, text: str, headers: Iterable[tuple[str, str]]
) -> HttpResponse:
    """Return an error about models in the form that clients of OpenAI read."""
    code = _KINDS.get(status)
    document = {
        "message": text,
        "type": "server_error" if status >= _SERVER else "invalid_request_error",
        "param": "model" if error.code is ErrorCode.NOT_FOUND else None,
        "code": code,
    }
    pairs = (("Content-Type", "application/json"), *headers)
    return HttpResponse(status, Headers(pairs), (orjson.dumps({"error": document}),))
