"""Flags of `gateway serve --upstream` -> the equivalent configuration.

The loader validates the result like a file, so flags cannot set more than YAML can.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gateway.api.protocol import ProtocolSpec
from gateway.config.load import LoadedConfig, load_text
from gateway.registry import protocol, protocol_names
from gateway.settings.units import UNIX, Url, parse_url

NO_TIMEOUT = "0s"
"""Value of a timeout that sets no limit."""

OFF = "off"
"""Value of an address flag that switches the listener off."""

DEFAULT_HTTP = "127.0.0.1:8000"
DEFAULT_GRPC = "127.0.0.1:8001"
ALTERNATE_HTTP = "127.0.0.1:18000"
ALTERNATE_GRPC = "127.0.0.1:18001"

_ENABLED = "oip"
"""The protocol whose options `--enable` sets."""
_DEFAULT_PORTS = frozenset({8000, 8001, 8002})


def sidecar_config(  # noqa: PLR0913  # keyword-only, but for the first
    upstreams: Sequence[str],
    *,
    http: str | None = None,
    grpc: str | None = None,
    graphpipe_tcp: str | None = None,
    graphpipe_unix: str | None = None,
    brpc: str | None = None,
    admin: str | None = None,
    default_model: str | None = None,
    passthrough: bool = True,
    enable: Sequence[str] = (),
    identity: str | None = None,
    timeout: str | None = None,
) -> dict[str, Any]:
    """Return the configuration of a sidecar for *upstreams*, as plain values of its YAML.

    It has no routes, so the models of each upstream are served under their own names. Extensions of
    Open Inference that only ask the server are on; those that change something are off. Calls take
    as long as their clients allow, as without a sidecar.

    Args:
        upstreams: URLs, at least one.
        http: HOST:PORT or "off". The default is 127.0.0.1:8000, or 127.0.0.1:18000 if an upstream
            on this machine uses one of the ports 8000 to 8002.
        grpc: The same for gRPC, with the ports 8001 and 18001.
        graphpipe_tcp: HOST:PORT for GraphPipe over TCP. It requires *default_model*.
        graphpipe_unix: Path of a unix socket for GraphPipe. It requires *default_model*.
        brpc: HOST:PORT for grps over brpc.
        admin: HOST:PORT or "off"; None omits the key.
        default_model: Model of requests that name none. For a single grps upstream the default is
            the default DAG of that server.
        passthrough: Forward paths of no protocol to the first HTTP upstream.
        enable: Options of Open Inference to set, as NAME or NAME=VALUE. `shared_memory=MODE` or
            `shared_memory=MODE:KEYS` sets the key of the listener; commas separate the keys.
        identity: "upstream" for the name and version of the upstream in server metadata.
        timeout: Longest time until the response, such as "30s"; None for no limit.

    Raises:
        ValueError: A URL is invalid, all listeners are off, or a GraphPipe stream has no model.
    """
    streams = _graphpipe_streams(graphpipe_tcp, graphpipe_unix)
    if streams and default_model is None:
        raise ValueError(
            "GraphPipe over a socket names no model: set one with --default-model NAME"
        )
    urls = [parse_url(text) for text in upstreams]
    names = ["upstream"] if len(urls) == 1 else [f"upstream-{n + 1}" for n in range(len(urls))]
    uses_default_port = any(url.is_loopback and url.port in _DEFAULT_PORTS for url in urls)
    listener = listener_config(
        http=http or (ALTERNATE_HTTP if uses_default_port else DEFAULT_HTTP),
        grpc=grpc or (ALTERNATE_GRPC if uses_default_port else DEFAULT_GRPC),
        streams=[*streams, *brpc_streams(brpc)],
    )
    if default_model is not None:
        listener["default_model"] = default_model
    if identity is not None:
        listener["identity"] = identity
    listener |= _enabled_options(enable, [url.protocol for url in urls])
    options: dict[str, dict[str, Any]] = {name: {} for name in names}
    only = _spec_of(urls[0]) if default_model is None and len(urls) == 1 else None
    if only is not None and only.sidecar.default_model:
        own = {**listener["options"].get(only.name, {})}
        own[only.default_model] = only.sidecar.default_model
        listener["options"] = {**listener["options"], only.name: own}
        options[names[0]] = {"options": dict(only.sidecar.upstream_options)}
    http_upstream = _first_http(names, urls)
    if passthrough and http_upstream is not None and "http" in listener:
        listener["passthrough"] = http_upstream
    return {
        "version": "1",
        "listeners": [listener],
        **admin_config(admin),
        "upstreams": {
            name: {"url": str(url), **options[name]} for name, url in zip(names, urls, strict=True)
        },
        "policies": {"timeout": timeout or NO_TIMEOUT, "stream_idle": NO_TIMEOUT},
    }


def listener_config(
    *, http: str, grpc: str, streams: Sequence[Mapping[str, str]] = ()
) -> dict[str, Any]:
    """Return the listener of a command line. An address "off" omits its key.

    Raises:
        ValueError: Both addresses are off and *streams* is empty.
    """
    listener: dict[str, Any] = {
        key: text for key, text in (("http", http), ("grpc", grpc)) if text != OFF
    }
    if streams:
        listener["streams"] = [dict(stream) for stream in streams]
    if not listener:
        raise ValueError("--http off and --grpc off leave nothing to listen on")
    return listener


def admin_config(admin: str | None) -> dict[str, Any]:
    """Return the key `admin` for the flag `--admin`; empty without the flag."""
    if admin is None:
        return {}
    return {"admin": {"address": admin}}


def _enabled_options(flags: Sequence[str], protocols: Sequence[str]) -> dict[str, Any]:
    """Return the keys of a listener for the flags `--enable`, before upstreams of *protocols*."""
    found: dict[str, dict[str, Any]] = {}
    for name in protocol_names():
        defaults = protocol(name).sidecar
        both = {**defaults.options, **(defaults.own_options if name in protocols else {})}
        if both:
            found[name] = both
    options = found.setdefault(_ENABLED, {})
    options |= {
        name: value if separator else "true"
        for name, separator, value in (flag.partition("=") for flag in flags)
    }
    own: dict[str, Any] = {}
    if "shared_memory" in options:
        mode, separator, keys = options.pop("shared_memory").partition(":")
        own["shared_memory"] = {"mode": mode, "keys": keys.split(",")} if separator else mode
    return own | {"options": found}


def _spec_of(url: Url) -> ProtocolSpec | None:
    """Return the protocol of a URL; None for an unknown one, which the check of the file finds."""
    return protocol(url.protocol) if url.protocol in protocol_names() else None


def load_mapping(config: Mapping[str, Any], source: str) -> LoadedConfig:
    """Validate a configuration given as plain values.

    Raises:
        ConfigError: The configuration has errors.
    """
    return load_text(yaml.safe_dump(dict(config), sort_keys=False), source=source)


def brpc_streams(brpc: str | None) -> list[dict[str, str]]:
    """Return the stream for the flag `--brpc`; empty without the flag."""
    return [] if brpc is None else [{"protocol": "grps", "address": brpc}]


def _graphpipe_streams(tcp: str | None, unix: str | None) -> list[dict[str, str]]:
    addresses = [tcp] if tcp is not None else []
    if unix is not None:
        addresses.append(f"{UNIX}:{Path(unix).absolute()}")
    return [{"protocol": "graphpipe", "address": address} for address in addresses]


def _first_http(names: Sequence[str], urls: Sequence[Url]) -> str | None:
    http = (name for name, url in zip(names, urls, strict=True) if url.carrier == "http")
    return next(http, None)
