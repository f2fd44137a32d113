"""PathRouter: finds the frontend of an HTTP path by its prefix.

A path that only looks different from a claimed one, such as an encoded or doubled slash, is
rejected.
"""

import posixpath
import re
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final
from urllib.parse import unquote

from gateway.transports.contract import HttpAsk, HttpFrontend, HttpMount
from gateway.transports.http.faults import HttpError
from gateway.wire.heads.path_claims import Passing
from gateway.wire.http import HttpRequest, HttpResponse

_CACHE_ENTRIES = 256
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_PATH_PARAMETER = re.compile(r";[^/]*")


class PathRouter:
    """Frontends by path prefix.

    Args:
        mounts: The mounts; the longest prefix wins.
        fallback: The frontend of all other paths; None to reply 404.
    """

    def __init__(self, mounts: Sequence[HttpMount], fallback: HttpFrontend | None) -> None:
        prefixes = [
            (prefix.rstrip("/"), _mounted(mount, prefix))
            for mount in mounts
            for prefix in mount.prefixes
        ]
        self._exact = {path: _mounted(mount, path) for mount in mounts for path in mount.exact}
        self._prefixes = sorted(prefixes, key=lambda pair: len(pair[0]), reverse=True)
        self._fallback = fallback
        self._root = next((mount.frontend for mount in mounts if mount.root), None)
        # Clients repeat the same few paths.  A path that raises is not cached.
        self.find = lru_cache(_CACHE_ENTRIES)(self._find)

    def _find(self, path: str) -> tuple[HttpFrontend, HttpAsk]:
        """Return the frontend of *path*, and its method for requests.

        Raises:
            HttpError: No frontend claims it, or it is a claimed path in disguise: a server behind
                the fallback might decode it, and the codec would be bypassed.
        """
        claim = self._claimed(path)
        if claim is not None:
            return claim.frontend, self._ask(path, claim)
        if self._fallback is None and path == "/" and self._root is not None:
            return self._root, self._root.handle
        if self._fallback is None:
            raise HttpError(404, f"nothing is served at {path[:200]!r}")
        if self._claimed(_plain_path(path)) is not None:
            raise HttpError(400, "the path is not in its normal form")
        return self._fallback, self._fallback.handle

    def _ask(self, path: str, claim: "_MountedPath") -> HttpAsk:
        """Return what handles requests for a claimed path."""
        frontend, fallback = claim.frontend, self._fallback
        handle = _PASSING.get(claim.passes)
        if handle in (_handle_unkeyed, _handle_read) and path != claim.path:  # of one below it
            handle = _handle_unnamed
        if fallback is None or handle is None or self._claimed(_plain_path(path)) is not claim:
            return frontend.handle
        return partial(handle, frontend, fallback)

    def _claimed(self, path: str) -> "_MountedPath | None":
        exact = self._exact.get(path)
        if exact is not None:
            return exact
        for prefix, claim in self._prefixes:
            if path == prefix or path.startswith(f"{prefix}/"):
                return claim
        return None


@dataclass(frozen=True, slots=True, eq=False)
class _MountedPath:
    """The frontend of a path, and what passes it by."""

    frontend: HttpFrontend
    passes: Passing
    path: str


def _mounted(mount: HttpMount, path: str) -> _MountedPath:
    return _MountedPath(mount.frontend, mount.passes.get(path, Passing.NOTHING), path)


def _handle_reads(
    frontend: HttpFrontend, fallback: HttpFrontend, wire: HttpRequest, /
) -> Awaitable[HttpResponse | AsyncGenerator[HttpResponse, None]]:
    return (frontend if wire.method in _READING else fallback).handle(wire)


def _handle_unnamed(
    frontend: HttpFrontend, fallback: HttpFrontend, wire: HttpRequest, /
) -> Awaitable[HttpResponse | AsyncGenerator[HttpResponse, None]]:
    return (fallback if fallback.claims(wire) else frontend).handle(wire)


def _handle_unkeyed(
    frontend: HttpFrontend, fallback: HttpFrontend, wire: HttpRequest, /
) -> Awaitable[HttpResponse | AsyncGenerator[HttpResponse, None]]:
    handle = _handle_read if wire.headers.get("authorization") is None else _handle_unnamed
    return handle(frontend, fallback, wire)


def _handle_read(
    frontend: HttpFrontend, fallback: HttpFrontend, wire: HttpRequest, /
) -> Awaitable[HttpResponse | AsyncGenerator[HttpResponse, None]]:
    if wire.method in _READING:
        return fallback.handle(wire)
    return _handle_unnamed(frontend, fallback, wire)


async def _handle_absent(
    frontend: HttpFrontend, fallback: HttpFrontend, wire: HttpRequest, /
) -> HttpResponse | AsyncGenerator[HttpResponse, None]:
    offered = await fallback.offer(wire)
    return await frontend.handle(wire) if offered is None else offered


_PASSING: Final = {
    Passing.WRITES: _handle_reads,
    Passing.NAMED: _handle_unnamed,
    Passing.UNKEYED: _handle_unkeyed,
    Passing.READ: _handle_read,
    Passing.FOUND: _handle_absent,
}


def _plain_path(path: str) -> str:
    """Undo what servers undo in a path: escapes (twice), backslashes, ";x", "..", "//"."""
    text = _PATH_PARAMETER.sub("", unquote(unquote(path)).replace("\\", "/"))
    return posixpath.normpath(f"/{text.lstrip('/')}")
