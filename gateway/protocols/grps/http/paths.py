"""The paths of grps over HTTP: the method of a path, and the path of a method.

brpc's HTTP layer has additional paths, `/GrpsBrpcService/<Method>`, with the same messages as its
frames.

Source: docs/protocols/grps.md, "7. Methods and health", "13. HTTP and gRPC on a brpc port".
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.ir.errors import NotFound
from gateway.protocols.grps import methods
from gateway.protocols.grps.brpc import codec
from gateway.protocols.grps.custom.routes import CustomRoute
from gateway.protocols.grps.errors import NoMethod
from gateway.wire.errors import MethodNotAllowed, clip

PREFIX: Final = "/grps"
BRPC_PREFIXES: Final = (f"/{codec.SHORT_SERVICE}", f"/{codec.SERVICE}")

_V1: Final = f"{PREFIX}/v1"
METHOD_PATHS: Final[Mapping[str, str]] = {
    methods.PREDICT: f"{_V1}/infer/predict",
    methods.PREDICT_STREAMING: f"{_V1}/infer/predict",
    methods.ONLINE: f"{_V1}/health/online",
    methods.OFFLINE: f"{_V1}/health/offline",
    methods.LIVENESS: f"{_V1}/health/live",
    methods.READINESS: f"{_V1}/health/ready",
    methods.SERVER_METADATA: f"{_V1}/metadata/server",
    methods.MODEL_METADATA: f"{_V1}/metadata/model",
}
PUBLIC_PATHS: Final = (
    *(METHOD_PATHS[method] for method in methods.HEALTH),
    *(f"{prefix}/{method}" for prefix in BRPC_PREFIXES for method in methods.HEALTH),
)
"""Those that ask for the health of the server."""
_METHODS: Final = {
    path: method for method, path in METHOD_PATHS.items() if method != methods.PREDICT_STREAMING
}
_PAGES: Final = frozenset({"/", f"{_V1}/monitor/metrics"})
_SERIES: Final = f"{_V1}/monitor/series"

_POST: Final = ("POST",)
_EITHER: Final = ("GET", "POST")
_SWITCHES: Final = frozenset({methods.ONLINE, methods.OFFLINE})
_ONLY_POST: Final = frozenset({methods.PREDICT, methods.MODEL_METADATA})
_SHOWN: Final = 200


class Surface(enum.Enum):
    """The rules for the response of a path."""

    GRPS = "grps"
    BRPC = "brpc"
    CUSTOM = "custom"
    PAGE = "page"
    SERIES = "series"


@dataclass(frozen=True, slots=True)
class GrpsRoute:
    """The method of a path, and the form of its response.

    Attributes:
        method: One of `calls.METHODS`.
        custom: For `CUSTOM`.
        is_binary: For `BRPC`: the response is protobuf, else JSON.
        name: For `SERIES`: the requested metric.
    """

    surface: Surface
    method: str
    custom: CustomRoute | None = None
    is_binary: bool = False
    name: str = ""

    def streamed(self) -> GrpsRoute:
        """Return the same route with a stream as response."""
        return GrpsRoute(self.surface, methods.PREDICT_STREAMING, self.custom, self.is_binary)

    def called(self, name: str) -> GrpsRoute:
        """Return the same route for the metric *name*."""
        return GrpsRoute(self.surface, self.method, name=name)

    def as_binary(self) -> GrpsRoute:
        """Return the same route with protobuf as response."""
        return GrpsRoute(self.surface, self.method, self.custom, True)


def find_route(method: str, path: str, customized: Mapping[str, CustomRoute]) -> GrpsRoute:
    """Return the route of *method* and *path*.

    Raises:
        NotFound: The path does not exist.
        MethodNotAllowed: The path exists for another method.
        NoMethod: brpc's service has no such method.
    """
    custom = customized.get(path)
    if custom is not None:
        _check(method, path, _EITHER)
        surface = Surface.CUSTOM if custom.inputs else Surface.GRPS
        return GrpsRoute(surface, methods.PREDICT, custom)
    name = _METHODS.get(path)
    if name is not None:
        has_head = name not in _SWITCHES
        _check(method, path, _POST if name in _ONLY_POST else _EITHER, has_head=has_head)
        return GrpsRoute(Surface.GRPS, name)
    if path in _PAGES:
        _check(method, path, ("GET", "HEAD"))
        return GrpsRoute(Surface.PAGE, methods.SERVER_METADATA)
    if path == _SERIES:
        _check(method, path, ("GET",))
        return GrpsRoute(Surface.SERIES, methods.SERVER_METADATA)
    service, _, name = path.rpartition("/")
    if service in BRPC_PREFIXES:
        if name not in codec.METHODS:
            raise NoMethod(f"Fail to find method on `{clip(path, _SHOWN)}'")
        return GrpsRoute(Surface.BRPC, name)
    raise NotFound(f"path {clip(path, _SHOWN)!r} does not exist in grps")


def is_brpc(path: str) -> bool:
    """Return whether a path belongs to brpc's HTTP layer."""
    return path.startswith(tuple(prefix + "/" for prefix in BRPC_PREFIXES))


def _check(method: str, path: str, allowed: tuple[str, ...], *, has_head: bool = True) -> None:
    if method not in allowed:
        needed = ", ".join(allowed)
        raise MethodNotAllowed(
            f"method {clip(method, 32)!r} on {clip(path, _SHOWN)}: expected {needed}",
            allow=needed,
            has_head=has_head,
        )
