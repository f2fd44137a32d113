"""Routes of Open Inference over HTTP, and paths that are rejected."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ir.calls import (
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
from gateway.ir.errors import InvalidRequest, MalformedMessage, NotFound, TooLarge, Unsupported
from gateway.ir.limits import DEFAULT_LIMITS
from gateway.protocols.oip.http.paths import (
    SERVER_PATHS,
    OipRoute,
    find_route,
    model_path,
    server_path,
)
from gateway.wire.errors import MethodNotAllowed

M = ModelRef("m")
LONGEST = "m" * DEFAULT_LIMITS.model_name_bytes


@pytest.mark.parametrize(
    ("method", "path", "call", "model"),
    [
        ("GET", "/v2", ServerMetadataRequest, None),
        ("GET", "/v2/health/live", ServerLiveRequest, None),
        ("GET", "/v2/health/ready", ServerReadyRequest, None),
        ("GET", "/v2/models", RepositoryIndexRequest, None),
        ("GET", "/v2/models/m", ModelMetadataRequest, ModelRef("m")),
        ("GET", "/v2/models/m/ready", ModelReadyRequest, ModelRef("m")),
        ("POST", "/v2/models/m/infer", InferRequest, ModelRef("m")),
        ("POST", "/v2/models/m/generate", InferRequest, ModelRef("m")),
        ("POST", "/v2/models/m/versions/1/generate_stream", StreamInferRequest, ModelRef("m", "1")),
        ("POST", "/v2/models/m/infer_stream", StreamInferRequest, ModelRef("m")),
        ("GET", "/v2/models/m/versions/1", ModelMetadataRequest, ModelRef("m", "1")),
        ("GET", "/v2/models/m/versions/v1.0/ready", ModelReadyRequest, ModelRef("m", "v1.0")),
        ("POST", "/v2/models/m/versions/1/infer", InferRequest, ModelRef("m", "1")),
        ("POST", "/v2/models/a%2Fb%20%C3%BC/infer", InferRequest, ModelRef("a/b ü")),
        ("POST", "/v2/models/.../infer", InferRequest, ModelRef("...")),
        ("POST", "/v2/models/infer/infer", InferRequest, ModelRef("infer")),
        ("POST", "/v2/models/stats/infer", InferRequest, ModelRef("stats")),
        ("GET", "/v2/models/m+n", ModelMetadataRequest, ModelRef("m+n")),
        ("GET", f"/v2/models/{LONGEST}", ModelMetadataRequest, ModelRef(LONGEST)),
    ],
)
def test_finds_routes(method: str, path: str, call: Any, model: ModelRef | None) -> None:
    """Each path has the route of its call, with the model that it names."""
    words = ("ready", "infer", "generate", "generate_stream", "infer_stream")
    action = path.rpartition("/")[2] if model is not None else ""
    action = action if action in words else ""
    assert OipRoute(call, model, (method,), action) == find_route(method, path, DEFAULT_LIMITS)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v2/",
        "/v1/models/m:predict",
        "/v2/health",
        "/v2/health/live/",
        "/v2/models/",
        "/v2/models//infer",
        "/v2/models/m/",
        "/v2/models/m/infer/",
        "/v2/models/m/predict",
        "/v2/models/m/versions",
        "/v2/models/m/versions/",
        "/v2/models/m/versions//infer",
        "/v2/models/m/versions/1/",
        "/v2/models/m/infer/x",
        "/v2/repository",
        "/V2",
        # Similar to those of extensions.
        "/v2/systemsharedmemory/register",
        "/v2/systemsharedmemory/region//register",
        "/v2/gpusharedmemory/status",
        "/v2/repository/models//load",
        "/v2/repository/models/a/b/load",
        "/v2/logging/",
        "/v2/trace/settings",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_unknown_paths(method: str, path: str) -> None:
    """A path is matched exactly; an additional slash makes it another path."""
    with pytest.raises(NotFound, match="does not exist"):
        find_route(method, path, DEFAULT_LIMITS)


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/v2", "GET, HEAD"),
        ("HEAD", "/v2/health/live", "GET, HEAD"),
        ("POST", "/v2/models/m", "GET, HEAD"),
        ("GET", "/v2/models/m/infer", "POST"),
        ("DELETE", "/v2/models/m/versions/1/infer", "POST"),
    ],
)
def test_wrong_methods(method: str, path: str, allow: str) -> None:
    """The error for a wrong method contains the allowed methods."""
    with pytest.raises(MethodNotAllowed) as caught:
        find_route(method, path, DEFAULT_LIMITS)
    assert allow == caught.value.allow


GET, POST, BOTH = ("GET",), ("POST",), ("GET", "POST")
SYSTEM, CUDA = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
REGISTER = OipRoute(SharedRegisterRequest, None, POST, region="r", is_cuda=True)
UNREGISTER = OipRoute(SharedUnregisterRequest, None, POST, region="r")


V = ModelRef("m", "2")


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v2/models/m/config", OipRoute(ModelConfigRequest, M, action="config")),
        ("/v2/models/m/versions/2/config", OipRoute(ModelConfigRequest, V, action="config")),
        ("/v2/models/stats", OipRoute(ModelStatisticsRequest, None)),
        ("/v2/models/m/stats", OipRoute(ModelStatisticsRequest, M, action="stats")),
        ("/v2/models/m/versions/2/stats", OipRoute(ModelStatisticsRequest, V, action="stats")),
        ("/v2/repository/models/m/load", OipRoute(ModelLoadRequest, M, POST)),
        ("/v2/repository/models/a%2Fb/unload", OipRoute(ModelUnloadRequest, ModelRef("a/b"), POST)),
        ("/v2/trace/setting", OipRoute(TraceSettingRequest, None, BOTH)),
        ("/v2/models/m/trace/setting", OipRoute(TraceSettingRequest, M, BOTH, "trace/setting")),
        ("/v2/logging", OipRoute(LogSettingsRequest, None, BOTH)),
        (f"{SYSTEM}/status", OipRoute(SharedStatusRequest, None)),
        (f"{CUDA}/status", OipRoute(SharedStatusRequest, None, is_cuda=True)),
        (f"{SYSTEM}/region/r%20s/status", OipRoute(SharedStatusRequest, None, GET, region="r s")),
        (f"{CUDA}/region/r/register", REGISTER),
        (f"{SYSTEM}/unregister", OipRoute(SharedUnregisterRequest, None, POST)),
        (f"{SYSTEM}/region/r/unregister", UNREGISTER),
    ],
)
def test_finds_extensions(path: str, route: OipRoute) -> None:
    """The path of an extension matches all methods of its route, and no other method."""
    for method in route.methods:
        assert route == find_route(method, path, DEFAULT_LIMITS)
    with pytest.raises(MethodNotAllowed):
        find_route("PUT", path, DEFAULT_LIMITS)


@pytest.mark.parametrize("path", ["index", "models/m/unload"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_unsupported_extensions_are_rejected_by_name(method: str, path: str) -> None:
    """An extension that is not served is rejected by name, not as an unknown path."""
    with pytest.raises(Unsupported, match="repositories by name"):
        find_route(method, f"/v2/repository/r/{path}", DEFAULT_LIMITS)


ESCAPES = ["%", "%4", "%zz", "a%2", "%ff", "%C3", "%ED%A0%80", "ü", "a%%20", "%u0041"]


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        *((name, MalformedMessage, "model name") for name in ESCAPES),
        *((name, InvalidRequest, "control") for name in ("%00", "a%0Ab", "%7F", "%C2%80")),
        (LONGEST + "m", TooLarge, "256 bytes"),
    ],
)
def test_invalid_names(name: str, kind: type[Exception], text: str) -> None:
    """An invalid escape, bytes that are not UTF-8, and control characters are rejected."""
    with pytest.raises(kind, match=text):
        find_route("GET", f"/v2/models/{name}", DEFAULT_LIMITS)


@pytest.mark.parametrize("name", ["m", "a/b", "...", "%2F", "ü 😀", "a?b#c&d=e", "versions"])
@pytest.mark.parametrize("version", ["", "1", "v/1"])
def test_model_paths_survive_a_round_trip(name: str, version: str) -> None:
    """The path of a model routes to that model, whatever its name."""
    model = ModelRef(name, version)
    assert model == find_route("POST", model_path(model, "infer"), DEFAULT_LIMITS).model
    assert model == find_route("GET", model_path(model, ""), DEFAULT_LIMITS).model


@pytest.mark.parametrize("path", SERVER_PATHS)
def test_paths_of_the_server_survive_a_round_trip(path: str) -> None:
    """A call about the server has the path that leads to it."""
    assert path == server_path(find_route("GET", path, DEFAULT_LIMITS).call)
