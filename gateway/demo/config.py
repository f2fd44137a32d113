"""The demo models as a configuration: what `gateway serve --demo` and `gateway demo` serve."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from gateway.config.sidecar import (
    DEFAULT_GRPC,
    DEFAULT_HTTP,
    admin_config,
    brpc_streams,
    listener_config,
)
from gateway.registry import PROTOCOLS, protocol

MODELS = ("digits", "language")

STREAMS = "streams"
"""Name of the listener that has every protocol's byte stream."""


def demo_config(
    *,
    http: str | None = None,
    grpc: str | None = None,
    brpc: str | None = None,
    admin: str | None = None,
    streams: bool = False,
) -> dict[str, Any]:
    """Return a configuration that serves the demo models, as its YAML would stand.

    Args:
        http: HOST:PORT, "off", or None for 127.0.0.1:8000.
        grpc: The same for gRPC, with 8001.
        brpc: HOST:PORT for grps over brpc.
        admin: HOST:PORT or "off"; None leaves the key out.
        streams: Serve `digits` on a byte stream of each protocol that has one, on free ports.

    Raises:
        ValueError: Both listeners are off.
    """
    main = listener_config(
        http=http or DEFAULT_HTTP, grpc=grpc or DEFAULT_GRPC, streams=brpc_streams(brpc)
    )
    listeners = [main]
    if streams:
        listeners += _streams()
    folder = Path(str(files("gateway.demo"))) / "models"
    return {
        "version": "1",
        "listeners": listeners,
        **admin_config(admin),
        "models": {name: {"backend": "onnx", "path": str(folder / name)} for name in MODELS},
        # No load balancer watches a demo.
        "lifecycle": {"pre_stop": "0s"},
    }


def _streams() -> list[dict[str, Any]]:
    found = [
        {"protocol": name, "address": "127.0.0.1:0"}
        for name in PROTOCOLS
        if protocol(name).stream is not None
    ]
    listener = {"name": STREAMS, "streams": found, "default_model": MODELS[0]}
    return [listener] if found else []
