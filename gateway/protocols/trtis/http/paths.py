"""The paths of TensorRT v1 over HTTP: the call of a path, and the path of a call.

Paths are compared as they are on the wire: names are one segment and are not percent-decoded, since
clients do not encode them.  The key of a shared memory region begins with a slash, so its path has
two.

Source: docs/protocols/tensorrt-v1.md, "3. HTTP endpoints".
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from gateway.ir.calls import (
    Call,
    ModelLoadRequest,
    ModelUnloadRequest,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    ServerStatusRequest,
    SharedRegisterRequest,
    SharedStatusRequest,
    SharedUnregisterRequest,
)
from gateway.ir.context import Context, ModelRef
from gateway.ir.errors import InvalidRequest, Unsupported
from gateway.ir.limits import DOT_SEGMENTS, MessageLimits, check_name
from gateway.ir.metadata import SharedRegion
from gateway.protocols.trtis.errors import NoSuchPath, UnknownMode
from gateway.protocols.trtis.management import CUDA_HANDLE_BYTES
from gateway.protocols.trtis.model_names import checked_version
from gateway.wire.errors import MethodNotAllowed

_SHOWN = 200
_UINT64_END, _INT31_END = 1 << 64, 1 << 31
_USUAL: Mapping[str, Mapping[str, str]] = {"": {}, "format=binary": {"format": "binary"}}
_SEGMENT = re.compile(r"[!$&'()*+,;=:@A-Za-z0-9._~%-]+")


@dataclass(frozen=True, slots=True)
class ParsedPath:
    """The parts of a request that its path refers to.

    Attributes:
        match: The match of the path's pattern.
        query: Parameters, the first value of each.
        body: The body of the request.
    """

    match: re.Match[str]
    query: Mapping[str, str]
    body: memoryview
    context: Context
    limits: MessageLimits

    def name(self, group: str, kind: str) -> str:
        """Return a checked name in the path, of something other than a model.

        Raises:
            InvalidRequest, TooLarge: It is not allowed.
        """
        found: str = self.match[group]
        check_name(kind, found, self.limits.name_bytes, "name_bytes")
        return found

    def model(self) -> ModelRef:
        """Return the model in the path, with its version where it has one.

        Raises:
            InvalidRequest, TooLarge: Its name is not allowed.
        """
        name = self.match["model"]
        check_name("model name", name, self.limits.model_name_bytes, "model_name_bytes")
        version = self.match.groupdict().get("version")
        return ModelRef(name, "" if version is None else (version.lstrip("0") or "0"))


def _profile(parsed: ParsedPath) -> Call[Any]:
    """Do nothing, as servers do from 1.5 on; return a call that only needs a live server."""
    command = parsed.query.get("cmd", "")
    if command not in ("start", "stop"):
        raise UnknownMode(f"profile command is {command[:40]!r}: expected start or stop")
    return ServerLiveRequest(context=parsed.context)


def _register(parsed: ParsedPath) -> Call[Any]:
    region = SharedRegion(
        name=parsed.name("name", "region"),
        size_bytes=_number("byte_size", parsed.match["size"], _UINT64_END),
        key=parsed.name("key", "shared memory key"),
        offset=_number("offset", parsed.match["offset"], _UINT64_END),
    )
    return SharedRegisterRequest(region=region, context=parsed.context)


def _cuda_register(parsed: ParsedPath) -> Call[Any]:
    if parsed.body.nbytes != CUDA_HANDLE_BYTES:
        raise InvalidRequest(
            f"body has {parsed.body.nbytes} bytes: a CUDA handle has {CUDA_HANDLE_BYTES}"
        )
    region = SharedRegion(
        name=parsed.name("name", "region"),
        size_bytes=_number("byte_size", parsed.match["size"], _UINT64_END),
        device=_number("device", parsed.match["device"], _INT31_END),
        handle=bytes(parsed.body),
    )
    return SharedRegisterRequest(region=region, context=parsed.context)


def _number(what: str, digits: str, end: int) -> int:
    number = int(digits) if len(digits) <= len(str(end)) else end
    if number >= end:
        raise InvalidRequest(f"{what} {digits[:40]} is too large")
    return number


Read = Callable[[ParsedPath], Call[Any]]


def _plain(kind: type[Call[Any]]) -> Read:
    return lambda parsed: kind(context=parsed.context)


def _of_model(kind: type[ModelLoadRequest | ModelUnloadRequest]) -> Read:
    return lambda parsed: kind(model=parsed.model(), context=parsed.context)


_INFER = re.compile(r"/api/infer/(?P<model>[^/]+)(?:/(?P<version>[0-9]+))?")
_SHARED = "/api/sharedmemorycontrol"
_ROUTES: tuple[tuple[str, re.Pattern[str], Read], ...] = tuple(
    (method, re.compile(pattern), read)
    for method, pattern, read in (
        ("GET", r"/api/health/live", _plain(ServerLiveRequest)),
        ("GET", r"/api/health/ready", _plain(ServerReadyRequest)),
        (
            "GET",
            r"/api/status(?:/(?P<model>[^/]+))?",
            lambda parsed: ServerStatusRequest(
                about=parsed.model() if parsed.match["model"] else None, context=parsed.context
            ),
        ),
        ("GET", r"/api/profile", _profile),
        ("POST", r"/api/modelcontrol/load/(?P<model>[^/]+)", _of_model(ModelLoadRequest)),
        ("POST", r"/api/modelcontrol/unload/(?P<model>[^/]+)", _of_model(ModelUnloadRequest)),
        (
            "POST",
            _SHARED + r"/register/(?P<name>[^/]+)/(?P<key>/.+)/(?P<offset>[0-9]+)/(?P<size>[0-9]+)",
            _register,
        ),
        (
            "POST",
            _SHARED + r"/cudaregister/(?P<name>[^/]+)/(?P<size>[0-9]+)/(?P<device>[0-9]+)",
            _cuda_register,
        ),
        (
            "POST",
            _SHARED + r"/unregister/(?P<name>[^/]+)",
            lambda parsed: SharedUnregisterRequest(
                region=parsed.name("name", "region"), context=parsed.context
            ),
        ),
        ("POST", _SHARED + r"/unregisterall", _plain(SharedUnregisterRequest)),
        ("GET", _SHARED + r"/status", _plain(SharedStatusRequest)),
        ("GET", r"/api/repository/index", _plain(RepositoryIndexRequest)),
    )
)


def find_infer(method: str, path: str) -> re.Match[str] | None:
    """Return the match of an inference's path; None for any other path.

    Raises:
        MethodNotAllowed: The path is an inference's, and the method is not POST.
    """
    found = _INFER.fullmatch(path)
    if found is not None and method != "POST":
        raise _wrong_method(method, path, "POST")
    return found


def find_call(method: str, path: str) -> tuple[re.Match[str], Read]:
    """Return the match of a path that is not an inference's, and the reader of its call.

    Raises:
        NoSuchPath: The path does not exist.
        MethodNotAllowed: The path exists for another method.
    """
    for needed, pattern, read in _ROUTES:
        found = pattern.fullmatch(path)
        if found is not None:
            if method != needed:
                raise _wrong_method(method, path, needed)
            return found, read
    raise NoSuchPath(f"path {path[:_SHOWN]!r} does not exist in TensorRT v1")


def _wrong_method(method: str, path: str, needed: str) -> MethodNotAllowed:
    return MethodNotAllowed(
        f"method {method[:_SHOWN]!r} on {path[:_SHOWN]}: expected {needed}", allow=needed
    )


def read_query(query: str) -> Mapping[str, str]:
    """Return the parameters of a query, the first value of each; none of an invalid one."""
    if query in _USUAL:  # to parse a query costs as much as a path
        return _USUAL[query]
    try:
        found = parse_qs(query, keep_blank_values=True, max_num_fields=16)
    except ValueError:
        return {}
    return {key: values[0] for key, values in found.items()}


# Requests to an upstream.


def infer_path(model: ModelRef) -> str:
    """Return the path of an inference.

    Raises:
        Unsupported: Name or version cannot be part of a path.
    """
    path = f"/api/infer/{segment('model name', model.name)}"
    if not model.version:
        return path
    return f"{path}/{checked_version(model)}"


def segment(what: str, text: str) -> str:
    """Return a name that can be part of a path unencoded.

    Raises:
        Unsupported: It cannot: v1 does not encode names.
    """
    if not _SEGMENT.fullmatch(text) or text in DOT_SEGMENTS:
        raise Unsupported(
            f"{what} {text[:_SHOWN]!r} cannot be part of a path: TensorRT v1 does not encode it, "
            "use gRPC"
        )
    return text


def register_path(region: SharedRegion) -> str:
    """Return the path that registers a region.

    Raises:
        Unsupported: A name cannot be part of it.
    """
    name = segment("region", region.name)
    if region.device is not None:
        return f"{_SHARED}/cudaregister/{name}/{region.size_bytes}/{region.device}"
    if not region.key.startswith("/"):
        raise Unsupported(f"shared memory key {region.key[:40]!r} does not begin with a slash")
    key = "/".join(segment("shared memory key", part) for part in region.key[1:].split("/"))
    return f"{_SHARED}/register/{name}//{key}/{region.offset}/{region.size_bytes}"
