"""The paths of Open Inference over HTTP: which question a path asks, and the path of a question.

Paths are matched exactly, as Triton does; a trailing slash is another path. Names are decoded
strictly and never become file paths.

Source: dossier, section 2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from gateway.ir.calls import (
    Call,
    InferRequest,
    ModelConfigRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    StreamInferRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import NotFound, Unsupported
from gateway.ir.limits import MessageLimits
from gateway.protocols.oip.errors import MethodNotAllowed
from gateway.wire.names import decoded_name

SERVER_PATHS: Mapping[str, type[Call[Any]]] = {
    "/v2": ServerMetadataRequest,
    "/v2/health/live": ServerLiveRequest,
    "/v2/health/ready": ServerReadyRequest,
    "/v2/models": RepositoryIndexRequest,
}

# Triton's and MLServer's index: the same question as /v2/models, with more in the answer.
INDEX_PATH = "/v2/repository/index"

_MODEL_CALLS: Mapping[str, type[Call[Any]]] = {
    "": ModelMetadataRequest,
    "ready": ModelReadyRequest,
    "infer": InferRequest,
    "generate": InferRequest,
    "infer_stream": StreamInferRequest,
    "generate_stream": StreamInferRequest,
    "config": ModelConfigRequest,
}

# Extensions that exist elsewhere: asked for, they are named, not "not found".
_MODEL_EXTENSIONS = {
    "stats": "statistics",
    "trace/setting": "trace settings",
}
_SERVER_EXTENSIONS = (
    (re.compile(r"/v2/repository/[^/]+/index"), "repositories by name"),
    (
        re.compile(r"/v2/repository(/[^/]+)?/models/[^/]+/(load|unload)"),
        "model repository (load and unload)",
    ),
    (
        re.compile(r"/v2/systemsharedmemory(/region/[^/]+)?/(status|register|unregister)"),
        "system shared memory",
    ),
    (
        re.compile(r"/v2/cudasharedmemory(/region/[^/]+)?/(status|register|unregister)"),
        "CUDA shared memory",
    ),
    (re.compile(r"/v2/models/stats"), "statistics"),
    (re.compile(r"/v2/trace/setting"), "trace settings"),
    (re.compile(r"/v2/logging"), "log settings"),
)

_MODELS = "/v2/models/"
_VERSIONS = "versions"
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Route:
    """What a path asks.

    Attributes:
        call: The question's type.
        model: None when it is about the server.
        method: The HTTP method it is asked with.
        action: The end of a path about a model.
    """

    call: type[Call[Any]]
    model: ModelRef | None
    method: str
    action: str = ""


def find_route(method: str, path: str, limits: MessageLimits) -> Route:
    """Return what *method* and *path* ask.

    Args:
        method: In capitals.
        path: As on the wire, percent-encoded, without the query.
        limits: For the length of names.

    Raises:
        NotFound: There is no such path.
        MethodNotAllowed: There is, with another method.
        Unsupported: It belongs to an extension this gateway does not serve.
        MalformedMessage: A name in it is not percent-encoded UTF-8.
    """
    route = _model_route(path, limits) if path.startswith(_MODELS) else None
    if route is None:
        route = _server_route(path)
    if method != route.method:
        raise MethodNotAllowed(
            f"{method[:_SHOWN]} {path[:_SHOWN]}: this path takes {route.method}", allow=route.method
        )
    return route


def server_path(call: type[Call[Any]]) -> str | None:
    """Return the path of a question to the server; None when it has none."""
    return next((path for path, asked in SERVER_PATHS.items() if asked is call), None)


def model_path(model: ModelRef, action: str) -> str:
    """Return the path of a question about *model*; *action* is "", "ready", "infer" ..."""
    path = _MODELS + quote(model.name, safe="")
    if model.version:
        path += f"/{_VERSIONS}/{quote(model.version, safe='')}"
    return f"{path}/{action}" if action else path


def _model_route(path: str, limits: MessageLimits) -> Route | None:
    """Return the route of a path below /v2/models/, None when it asks nothing known."""
    if path == "/v2/models/stats":
        return None
    name, _, rest = path[len(_MODELS) :].partition("/")
    version = ""
    if rest.startswith(f"{_VERSIONS}/"):
        version, _, action = rest[len(_VERSIONS) + 1 :].partition("/")
        known = bool(version)
    else:
        action = rest
        known = True
    # A path that ends in a slash is another path than the one without.
    if not name or not known or path.endswith("/"):
        return None
    if action in _MODEL_EXTENSIONS:
        raise Unsupported(f"{path[:_SHOWN]}: no support for {_MODEL_EXTENSIONS[action]}")
    call = _MODEL_CALLS.get(action)
    if call is None:
        return None
    model = ModelRef(
        decoded_name("model name", name, limits), decoded_name("model version", version, limits)
    )
    asks = call is InferRequest or call is StreamInferRequest
    return Route(call, model, "POST" if asks else "GET", action)


def _server_route(path: str) -> Route:
    if path == INDEX_PATH:
        return Route(RepositoryIndexRequest, None, "POST")
    call = SERVER_PATHS.get(path)
    if call is not None:
        return Route(call, None, "GET")
    for pattern, feature in _SERVER_EXTENSIONS:
        if pattern.fullmatch(path):
            raise Unsupported(f"{path[:_SHOWN]}: no support for {feature}")
    raise NotFound(f"there is no path {path[:_SHOWN]!r} in Open Inference")
