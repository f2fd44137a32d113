"""Headers of upstreams whose values come from files: read again when the files change."""

import os
from collections.abc import Mapping
from typing import Any

from gateway.config.load import LoadedConfig
from gateway.config.models import UpstreamConfig
from gateway.config.yaml_tree import KeyPath, path_text, resolve_references
from gateway.settings.units import parse_header_value


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
