"""The demo models as a configuration: what `gateway serve --demo` and `gateway demo` serve."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from gateway.config.sidecar import DEFAULT_GRPC, DEFAULT_HTTP, admin_config, listener_config

MODELS = ("digits", "language")


def demo_config(
    *, http: str | None = None, grpc: str | None = None, admin: str | None = None
) -> dict[str, Any]:
    """Return a configuration that serves the demo models, as its YAML would stand.

    Args:
        http: HOST:PORT, "off", or None for 127.0.0.1:8000.
        grpc: The same for gRPC, with 8001.
        admin: HOST:PORT or "off"; None leaves the key out.

    Raises:
        ValueError: Both listeners are off.
    """
    folder = Path(str(files("gateway.demo"))) / "models"
    return {
        "version": "1",
        "listeners": [listener_config(http=http or DEFAULT_HTTP, grpc=grpc or DEFAULT_GRPC)],
        **admin_config(admin),
        "models": {name: {"backend": "onnx", "path": str(folder / name)} for name in MODELS},
        # No load balancer watches a demo.
        "lifecycle": {"pre_stop": "0s"},
    }
