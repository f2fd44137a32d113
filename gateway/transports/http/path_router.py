"""Which frontend answers a path of HTTP: by prefix, and never by a claimed path in disguise."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import unquote

from gateway.transports.contract import HttpAsk, HttpFrontend, HttpMount
from gateway.transports.http.faults import HttpError

_REMEMBERED = 256
_PATH_PARAMETER = re.compile(r";[^/]*")


class PathRouter:
    """Frontends by path prefix.

    Args:
        mounts: The longest prefix wins.
        fallback: Answers the paths nobody claims; without it they are not found.
    """

    def __init__(self, mounts: Sequence[HttpMount], fallback: HttpFrontend | None) -> None:
        prefixes = [
            (prefix.rstrip("/"), mount.frontend) for mount in mounts for prefix in mount.prefixes
        ]
        self._prefixes = sorted(prefixes, key=lambda pair: len(pair[0]), reverse=True)
        self._fallback = fallback
        self._root = next((mount.frontend for mount in mounts if mount.root), None)
        # The same few paths are asked for again and again; what raises is not remembered.
        self.find = lru_cache(_REMEMBERED)(self._find)

    def _find(self, path: str) -> tuple[HttpFrontend, HttpAsk]:
        """Return who answers *path*, and what asks it for one answer or many.

        Raises:
            HttpFault: Nobody does, or it is a claimed path in disguise: a server behind the
                fallback might undo that, and would be reached past the codec.
        """
        frontend = self._claimed(path)
        if frontend is not None:
            return frontend, frontend.handle
        if self._fallback is None and path == "/" and self._root is not None:
            return self._root, self._root.handle
        if self._fallback is None:
            raise HttpError(404, f"nothing is served at {path[:200]!r}")
        if self._claimed(_plain_path(path)) is not None:
            raise HttpError(400, "the path is not in its normal form")
        return self._fallback, self._fallback.handle

    def _claimed(self, path: str) -> HttpFrontend | None:
        for prefix, frontend in self._prefixes:
            if path == prefix or path.startswith(f"{prefix}/"):
                return frontend
        return None


def _plain_path(path: str) -> str:
    """Undo what servers undo in a path: escapes (twice), backslashes, ";x", "..", "//"."""
    text = _PATH_PARAMETER.sub("", unquote(unquote(path)).replace("\\", "/"))
    return posixpath.normpath(f"/{text.lstrip('/')}")
