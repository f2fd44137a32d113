"""The tokens of the admin port: what they allow, and their files, which are read again."""

from __future__ import annotations

import asyncio
import hmac
import math
import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Final

import structlog

from gateway.api.admin import AdminNeed
from gateway.config.admin import AdminConfig

log = structlog.get_logger(__name__)

ALL_ROLES: Final = frozenset(AdminNeed)

_PERIOD_S: Final = 1.0
_MAX_BYTES: Final = 4096
_TOKEN: Final = re.compile(r"[!-~]{16,1024}")


class AdminToken:
    """A token, of which only a digest is kept.

    Args:
        name: In the audit log.
        roles: What it allows.
        token: The token; None for the one of a file.
        path: The file.

    Attributes:
        name: In the audit log.
        roles: What it allows.
        reason: Why the file cannot be used; "" if it can.
    """

    def __init__(
        self,
        name: str,
        roles: Iterable[AdminNeed],
        token: str | None = None,
        path: Path | None = None,
    ) -> None:
        self.name = name
        self.roles = frozenset(roles)
        self.reason = ""
        self._digest = None if token is None else _digest(token)
        self._path = path
        if path is not None:
            self.read()

    @property
    def has_file(self) -> bool:
        """Whether it comes from a file."""
        return self._path is not None

    def is_right(self, sent: str) -> bool:
        """Return whether a request has this token; the time tells nothing about it."""
        return self._digest is not None and hmac.compare_digest(self._digest, _digest(sent))

    def read(self) -> None:
        """Read the file again; one that is broken leaves the token that was read before."""
        assert self._path is not None  # noqa: S101  # `has_file`
        try:
            self._digest, self.reason = _digest(_read(self._path)), ""
        except (OSError, ValueError) as error:
            self._fail(_fault_of(error))

    def _fail(self, reason: str) -> None:
        if reason != self.reason and self._digest is not None:
            log.error("token of the admin port not read", name=self.name, reason=reason)
        self.reason = reason


class AdminTokens:
    """All tokens of the admin port.

    Args:
        tokens: In the order of the file.
        clock: Monotonic seconds.
    """

    def __init__(
        self, tokens: Sequence[AdminToken] = (), clock: Callable[[], float] = monotonic
    ) -> None:
        self._tokens = tuple(tokens)
        self._files = [each for each in tokens if each.has_file]
        self._clock = clock
        self._next_read = clock() + _PERIOD_S if self._files else math.inf

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def find(self, sent: str) -> AdminToken | None:
        """Return the token that a request sent; None if it is wrong."""
        found = [each for each in self._tokens if each.is_right(sent)]  # all take the same time
        return found[0] if found else None

    async def renew(self) -> None:
        """Read the files again, on a thread, if the last time was a second ago."""
        if self._clock() < self._next_read:
            return
        self._next_read = math.inf  # a file system that hangs keeps one thread at most
        try:
            await asyncio.to_thread(self._read)
        finally:
            self._next_read = self._clock() + _PERIOD_S

    def _read(self) -> None:
        for each in self._files:
            each.read()


def tokens_of(config: AdminConfig, directory: Path) -> AdminTokens:
    """Return the tokens of a configuration; those whose file is broken are never right."""
    found = [] if config.token is None else [AdminToken("token", ALL_ROLES, config.token)]
    for each in config.tokens:
        path = None if each.file is None else directory / each.file
        roles = [AdminNeed(role) for role in each.roles]
        found.append(AdminToken(each.name, roles, each.token, path))
    return AdminTokens(found)


def token_fault(path: Path) -> str:
    """Return why the file of a token cannot be used; "" if it can."""
    try:
        _read(path)
    except (OSError, ValueError) as error:
        return _fault_of(error)
    return ""


def _read(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES)
    try:
        text = data.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    if not _TOKEN.fullmatch(text):
        raise ValueError("expected at least 16 ASCII characters without spaces")
    return text


def _fault_of(error: OSError | ValueError) -> str:
    return error.strerror or "" if isinstance(error, OSError) else str(error)


def _digest(token: str) -> bytes:
    """Return a digest of one length: the comparison then tells nothing about the token's."""
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
