"""Watches the configuration file for changes, and the files that headers of upstreams come from."""

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import structlog

from gateway.api.start_error import REASONS, StartError, reason_of
from gateway.concurrency.own_thread import on_own_thread
from gateway.concurrency.polling import Polling
from gateway.config.load import LoadedConfig
from gateway.config.models import UpstreamConfig
from gateway.config.yaml_tree import KeyPath, path_text, resolve_references
from gateway.settings.units import parse_header_value

log = structlog.get_logger(__name__)

# A file that changes without a pause is read after so many times the pause.
_MAX_PAUSES: Final = 10
# A change before the watch begins, or on a network file system, is noticed after this time.
_LOOK_MS: Final = 1_000


async def watch_config(
    path: Path, sha256: str, pause_s: float, on_change: Callable[[], None]
) -> None:
    """Call *on_change* each time the text of the file has changed, until it is cancelled.

    The folder is watched, not the file: editors and Kubernetes replace the file by another one.
    Where the system watches nothing, as without inotify, the file is read every second.

    Args:
        path: The file.
        sha256: The hash of its text so far.
        pause_s: The time without changes in the folder after which the file is read.
        on_change: Called when the text is another one.
    """
    known = _KnownText(path, sha256, on_change)
    try:
        async with aclosing(_changes(path, pause_s)) as changes:
            async for _ in changes:
                await known.look()
    # The library raises a RuntimeError for most of what the system refuses.
    except (OSError, RuntimeError, ImportError) as error:
        log.warning("configuration is polled", file=str(path), reason=str(error))
    while True:
        await asyncio.sleep(_LOOK_MS / 1000)
        await known.look(pause_s)


def _changes(path: Path, pause_s: float) -> AsyncGenerator[object, None]:
    """Return an iterator over the changes of a folder, which also yields every second."""
    from watchfiles import awatch  # noqa: PLC0415  # a native library that few configurations need

    step_ms = max(1, round(pause_s * 1000))
    return awatch(
        path.parent,
        watch_filter=None,
        rust_timeout=_LOOK_MS,
        yield_on_timeout=True,
        debounce=_MAX_PAUSES * step_ms,
        step=step_ms,
        recursive=False,
    )


class _KnownText:
    """The text of a file that was read last."""

    def __init__(self, path: Path, sha256: str, on_change: Callable[[], None]) -> None:
        self._path = path
        self._sha256 = sha256
        self._on_change = on_change

    async def look(self, pause_s: float = 0.0) -> None:
        """Read the file, and again until it rests for *pause_s*; report another text."""
        found = await on_own_thread(_hash, self._path)
        for _ in range(_MAX_PAUSES if pause_s else 0):
            if found in {None, self._sha256}:
                break
            before = found
            await asyncio.sleep(pause_s)
            found = await on_own_thread(_hash, self._path)
            if found == before:
                break
        if found is not None and found != self._sha256:
            self._sha256 = found
            self._on_change()


def _hash(path: Path) -> str | None:
    """Return the hash of a file; None while it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def has_header_files(loaded: LoadedConfig) -> bool:
    """Return whether a value of an upstream comes from a file."""
    return any(_is_file(path, text) for path, text in loaded.references())


def _is_file(path: KeyPath, text: str) -> bool:
    return "${file:" in text and path[:1] == ("upstreams",)


def with_renewed_headers(
    loaded: LoadedConfig, environment: Mapping[str, str] = os.environ
) -> LoadedConfig | None:
    """Return the configuration with what the files of `${file:PATH}` in headers have now.

    These are `headers` and `probe.headers` of upstreams.  None if nothing differs.

    Raises:
        OSError: A file cannot be read.
        ValueError: A file is not UTF-8, or has what no header carries.
    """
    upstreams = dict(loaded.config.upstreams)
    for path, text in loaded.references():
        if not _is_file(path, text):
            continue
        name = str(path[1])
        if name in upstreams:
            value = resolve_references(text, environment, loaded.directory)
            try:
                upstreams[name] = _changed(upstreams[name], path[2:], value)
            except ValueError as error:
                raise ValueError(f"{path_text(path)}: {error}") from None
    if upstreams == loaded.config.upstreams:
        return None
    return loaded.changed(upstreams=upstreams)


def _changed(upstream: UpstreamConfig, path: KeyPath, value: str) -> UpstreamConfig:
    """Return *upstream* with another value of the header that *path* leads to, if it is one.

    Raises:
        ValueError: No header carries it.
    """
    match path:
        case ("headers", str(name)):
            headers: dict[str, Any] = {**upstream.headers, name: parse_header_value(value)}
            return upstream.model_copy(update={"headers": headers})
        case ("probe", "headers", str(name)):
            headers = {**upstream.probe.headers, name: parse_header_value(value)}
            probe = upstream.probe.model_copy(update={"headers": headers})
            return upstream.model_copy(update={"probe": probe})
    return upstream


class HeaderWatch(Polling):
    """Has other values of headers used within 2 s after their files have changed.

    Args:
        renew: Reads the files, and uses what has changed.
    """

    def __init__(self, renew: Callable[[], Awaitable[None]]) -> None:
        super().__init__(self._read)
        self._renew = renew
        self._reason = ""

    async def _read(self) -> None:
        """Renew the values; log each reason why that fails once."""
        reason = ""
        try:
            await self._renew()
        except (StartError, *REASONS) as error:
            reason = str(error) if isinstance(error, StartError) else reason_of(error)
        if reason not in {"", self._reason}:
            log.error("headers not renewed", reason=reason)
        self._reason = reason
