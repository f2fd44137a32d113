"""The sidecar without a file: flags of `gateway serve --upstream` as the YAML they stand for.

The result goes through the same loader as a file, so flags can do nothing that YAML cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from gateway.config.load import Loaded, load_text
from gateway.config.units import UNIX, Url, parse_url

OFF = "off"
"""What an address flag says instead of an address, to listen there not at all."""

DEFAULT_HTTP = "127.0.0.1:8000"
DEFAULT_GRPC = "127.0.0.1:8001"
SHIFTED_HTTP = "127.0.0.1:18000"
SHIFTED_GRPC = "127.0.0.1:18001"

DEFAULT_DAG = "default"
"""The model that stands for what a grps server serves to those who name none."""

_GRPS = "grps"
_OUR_PORTS = frozenset({8000, 8001, 8002})


def sidecar_config(  # noqa: PLR0913  # all by name but the first
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
) -> dict[str, Any]:
    """Return the configuration of a sidecar in front of *upstreams*, as its YAML would stand.

    There are no routes: each upstream's models are served under their own names.

    Args:
        upstreams: URLs, at least one.
        http: HOST:PORT, "off", or None for the default: 127.0.0.1:8000, or :18000 where an
            upstream on this machine has one of the ports 8000 to 8002.
        grpc: The same for gRPC, with 8001 and 18001.
        graphpipe_tcp: HOST:PORT for GraphPipe on a byte stream; needs a default model.
        graphpipe_unix: Path of a unix socket for the same.
        brpc: HOST:PORT for grps over brpc.
        admin: HOST:PORT or "off"; None leaves the key out.
        default_model: Model of requests whose protocol names none. Before one server of grps it is,
            where it is left out, what that server serves to those who name none.
        enable: Options of Open Inference that are off by default, NAME or NAME=VALUE; or
            shared_memory=VALUE, which is the listener's.
        passthrough: Send paths that no protocol claims to the first upstream that speaks HTTP.

    Raises:
        ValueError: A URL cannot be read, all listeners are off, or a stream has no model.
    """
    streams = _graphpipe_streams(graphpipe_tcp, graphpipe_unix)
    if streams and default_model is None:
        raise ValueError("a GraphPipe stream names no model: give it one with --default-model NAME")
    urls = [parse_url(text) for text in upstreams]
    names = ["upstream"] if len(urls) == 1 else [f"upstream-{n + 1}" for n in range(len(urls))]
    shifted = any(url.is_loopback and url.port in _OUR_PORTS for url in urls)
    listener = listener_config(
        http=http or (SHIFTED_HTTP if shifted else DEFAULT_HTTP),
        grpc=grpc or (SHIFTED_GRPC if shifted else DEFAULT_GRPC),
        streams=[*streams, *brpc_streams(brpc)],
    )
    if default_model is not None:
        listener["default_model"] = default_model
    listener |= _enabled(enable)
    options: dict[str, dict[str, Any]] = {name: {} for name in names}
    if default_model is None and [url.protocol for url in urls] == [_GRPS]:
        # A request that names no model goes on as one: there it is for the server's default DAG.
        listener["options"] = {
            **listener.get("options", {}),
            _GRPS: {"default_model": DEFAULT_DAG},
        }
        options[names[0]] = {"options": {"keys": {DEFAULT_DAG: ""}}}
    beyond = _first_http(names, urls)
    if passthrough and beyond is not None and "http" in listener:
        listener["passthrough"] = beyond
    return {
        "version": "1",
        "listeners": [listener],
        **admin_config(admin),
        "upstreams": {
            name: {"url": str(url), **options[name]} for name, url in zip(names, urls, strict=True)
        },
    }


def listener_config(
    *, http: str, grpc: str, streams: Sequence[Mapping[str, str]] = ()
) -> dict[str, Any]:
    """Return the one listener of a command line; "off" leaves its key out.

    Raises:
        ValueError: Both are off, and there are no streams.
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
    """Return the key `admin` for the flag of that name; nothing when it was not given."""
    if admin is None:
        return {}
    return {"admin": {"address": None if admin == OFF else admin}}


def _enabled(flags: Sequence[str]) -> dict[str, Any]:
    """Return the keys of a listener that flags of `--enable` stand for."""
    options = {
        name: value if given else "true"
        for name, given, value in (flag.partition("=") for flag in flags)
    }
    own = {key: options.pop(key) for key in ("shared_memory",) if key in options}
    return own | ({"options": {"oip": options}} if options else {})


def load_mapping(config: Mapping[str, Any], source: str) -> Loaded:
    """Check a configuration given as plain values, by way of its YAML.

    Raises:
        ConfigError: Anything is wrong with it.
    """
    return load_text(yaml.safe_dump(dict(config), sort_keys=False), source=source)


def brpc_streams(brpc: str | None) -> list[dict[str, str]]:
    """Return the byte stream that the flag of that name stands for; none when it was not given."""
    return [] if brpc is None else [{"protocol": _GRPS, "address": brpc}]


def _graphpipe_streams(tcp: str | None, unix: str | None) -> list[dict[str, str]]:
    addresses = [tcp] if tcp is not None else []
    if unix is not None:
        addresses.append(f"{UNIX}:{Path(unix).absolute()}")
    return [{"protocol": "graphpipe", "address": address} for address in addresses]


def _first_http(names: Sequence[str], urls: Sequence[Url]) -> str | None:
    http = (name for name, url in zip(names, urls, strict=True) if url.carrier == "http")
    return next(http, None)
