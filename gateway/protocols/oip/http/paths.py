"""The paths of Open Inference over HTTP: the call of a path, and the path of a call.

Paths are compared exactly, as in Triton; a trailing slash is another path.  Names are decoded
strictly and never become file paths.

Source: docs/protocols/open-inference.md, "6. HTTP endpoints".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gateway.ir.calls import (
    Call,
    InferRequest,
    LogSettingsRequest,
    ModelConfigRequest,
    ModelLoadRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelStatisticsRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerMetadataRequest,
    ServerReadyRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
    StreamInferRequest,
    TraceSettingRequest,
)
from gateway.ir.context import ModelRef
from gateway.ir.errors import NotFound, Unsupported
from gateway.ir.limits import MessageLimits
from gateway.wire.errors import MethodNotAllowed
from gateway.wire.heads.url_names import decoded_name, url_segment

SERVER_PATHS: Mapping[str, type[Call[Any]]] = {
    "/v2": ServerMetadataRequest,
    "/v2/health/live": ServerLiveRequest,
    "/v2/health/ready": ServerReadyRequest,
    "/v2/models": RepositoryIndexRequest,
}

# The index of Triton and MLServer: the same call as /v2/models, with a longer response.
INDEX_PATH = "/v2/repository/index"

STATISTICS_PATH = "/v2/models/stats"
TRACE_PATH = "/v2/trace/setting"
LOG_PATH = "/v2/logging"

_MODEL_CALLS: Mapping[str, type[Call[Any]]] = {
    "": ModelMetadataRequest,
    "ready": ModelReadyRequest,
    "infer": InferRequest,
    "generate": InferRequest,
    "infer_stream": StreamInferRequest,
    "generate_stream": StreamInferRequest,
    "config": ModelConfigRequest,
    "stats": ModelStatisticsRequest,
    "trace/setting": TraceSettingRequest,
}

_NAMED_REPOSITORY = re.compile(r"/v2/repository/[^/]+/(index|models/[^/]+/(load|unload))")

_GET, _POST = ("GET",), ("POST",)
# Calls with other methods than GET alone.
_METHODS: Mapping[type[Call[Any]], tuple[str, ...]] = {
    InferRequest: _POST,
    StreamInferRequest: _POST,
    TraceSettingRequest: _GET + _POST,
}

_MODELS = "/v2/models/"
_VERSIONS = "versions"
_SHOWN = 200
_CACHE_ENTRIES = 1024


@dataclass(frozen=True, slots=True)
class OipRoute:
    """The call of a path.

    Attributes:
        call: Its type.
        model: None for the server.
        methods: The HTTP methods that the path allows.
        action: The end of a path about a model.
        region: Of shared memory, by name; "" for none or all.
        is_cuda: Whether it is about shared memory of CUDA.
    """

    call: type[Call[Any]]
    model: ModelRef | None
    methods: tuple[str, ...] = _GET
    action: str = ""
    region: str = ""
    is_cuda: bool = False


_SERVER_EXTENSIONS: Mapping[str, OipRoute] = {
    STATISTICS_PATH: OipRoute(ModelStatisticsRequest, None),
    TRACE_PATH: OipRoute(TraceSettingRequest, None, _GET + _POST),
    LOG_PATH: OipRoute(LogSettingsRequest, None, _GET + _POST),
}
_CONTROL = re.compile(r"/v2/repository/models/([^/]+)/(load|unload)")
_CONTROLS: Mapping[str, type[Call[Any]]] = {"load": ModelLoadRequest, "unload": ModelUnloadRequest}
_SHARED = re.compile(
    r"/v2/(system|cuda)sharedmemory(?:/region/([^/]+))?/(status|register|unregister)"
)
_SHARED_CALLS: Mapping[str, tuple[type[Call[Any]], tuple[str, ...]]] = {
    "status": (SharedStatusRequest, _GET),
    "register": (SharedRegisterRequest, _POST),
    "unregister": (SharedUnregisterRequest, _POST),
}


def find_route(method: str, path: str, limits: MessageLimits) -> OipRoute:
    """Return the route of *method* and *path*.

    Args:
        method: In capitals.
        path: As on the wire, percent-encoded, without the query.
        limits: For the length of names.

    Raises:
        NotFound: The path does not exist.
        MethodNotAllowed: The path exists for another method.
        Unsupported: It belongs to an extension that this gateway does not serve.
        MalformedMessage: A name in it is not percent-encoded UTF-8.
    """
    route = _model_route(path, limits) if path.startswith(_MODELS) else None
    if route is None:
        route = _server_route(path, limits)
    if method not in route.methods:
        allow = ", ".join(route.methods)
        raise MethodNotAllowed(
            f"method {method[:_SHOWN]!r} on {path[:_SHOWN]}: expected {allow}", allow=allow
        )
    return route


def server_path(call: type[Call[Any]]) -> str:
    """Return the path of a call about the server, one of `SERVER_PATHS`."""
    return next(path for path, kind in SERVER_PATHS.items() if kind is call)


@lru_cache(_CACHE_ENTRIES)  # calls repeat the same few
def model_path(model: ModelRef, action: str) -> str:
    """Return the path of a call about *model*; *action* is "", "ready", "infer" ..."""
    path = _MODELS + url_segment(model.name)
    if model.version:
        path += f"/{_VERSIONS}/{url_segment(model.version)}"
    return f"{path}/{action}" if action else path


def control_path(model: ModelRef, action: str) -> str:
    """Return the path for an *action* on *model*, "load" or "unload"."""
    return f"/v2/repository/models/{url_segment(model.name)}/{action}"


def shared_path(region: str, action: str, *, cuda: bool) -> str:
    """Return the path about a region of shared memory, or with "" about all of one kind."""
    path = f"/v2/{'cuda' if cuda else 'system'}sharedmemory"
    return f"{path}/region/{url_segment(region)}/{action}" if region else f"{path}/{action}"


def _model_route(path: str, limits: MessageLimits) -> OipRoute | None:
    """Return the route of a path below /v2/models/, None for an unknown one."""
    if path == STATISTICS_PATH:  # hides a model of this name, as in Triton
        return None
    name, _, rest = path[len(_MODELS) :].partition("/")
    version = ""
    if rest.startswith(f"{_VERSIONS}/"):
        version, _, action = rest[len(_VERSIONS) + 1 :].partition("/")
        is_valid = bool(version)
    else:
        action = rest
        is_valid = True
    # A path that ends in a slash differs from the one without.
    if not name or not is_valid or path.endswith("/"):
        return None
    call = _MODEL_CALLS.get(action)
    if call is None:
        return None
    model = ModelRef(
        decoded_name("model name", name, limits), decoded_name("model version", version, limits)
    )
    return OipRoute(call, model, _METHODS.get(call, _GET), action)


def _server_route(path: str, limits: MessageLimits) -> OipRoute:
    if path == INDEX_PATH:
        return OipRoute(RepositoryIndexRequest, None, _POST)
    call = SERVER_PATHS.get(path)
    if call is not None:
        return OipRoute(call, None)
    route = _extension_route(path, limits)
    if route is not None:
        return route
    if _NAMED_REPOSITORY.fullmatch(path):
        raise Unsupported(f"{path[:_SHOWN]}: repositories by name are not supported")
    raise NotFound(f"path {path[:_SHOWN]!r} does not exist in Open Inference")


def _extension_route(path: str, limits: MessageLimits) -> OipRoute | None:
    """Return the route of a path of Triton's extensions about the server or a region."""
    route = _SERVER_EXTENSIONS.get(path)
    if route is not None:
        return route
    control = _CONTROL.fullmatch(path)
    if control is not None:
        model = ModelRef(decoded_name("model name", control[1], limits))
        return OipRoute(_CONTROLS[control[2]], model, _POST)
    shared = _SHARED.fullmatch(path)
    if shared is None:
        return None
    region = decoded_name("region name", shared[2], limits) if shared[2] else ""
    call, methods = _SHARED_CALLS[shared[3]]
    if call is SharedRegisterRequest and not region:
        return None
    return OipRoute(call, None, methods, "", region, shared[1] == "cuda")
