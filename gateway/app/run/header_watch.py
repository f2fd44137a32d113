"""Headers of upstreams whose values come from files: read again when the files change."""

import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from gateway.api.start_error import REASONS, StartError, reason_of
from gateway.concurrency.polling import Polling
from gateway.config.load import LoadedConfig
from gateway.config.models import UpstreamConfig
from gateway.config.yaml_tree import KeyPath, path_text, resolve_references
from gateway.settings.units import parse_header_value

log = structlog.get_logger(__name__)


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
