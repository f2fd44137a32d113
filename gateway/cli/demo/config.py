"""The configuration of `gateway serve --demo` and `gateway demo`."""

from importlib.resources import files
from pathlib import Path
from typing import Any

from gateway.cli.serving.sidecar import (
    DEFAULT_GRPC,
    DEFAULT_HTTP,
    admin_config,
    brpc_streams,
    listener_config,
)
from gateway.registry import PROTOCOLS, protocol

MODELS = ("digits", "language")
TEXT_MODEL = "digit_texts"
"""The model `digits` for protocols of texts: a text of pixels in, a number for each digit out."""

_TEXT_CALLABLE = "gateway.cli.demo.digit_texts:DigitTexts"

STREAMS = "streams"
"""Name of the listener with the byte stream of every protocol."""


def demo_config(
    *,
    http: str | None = None,
    grpc: str | None = None,
    brpc: str | None = None,
    admin: str | None = None,
    streams: bool = False,
) -> dict[str, Any]:
    """Return a configuration that serves the demo models, as plain values of its YAML.

    Args:
        http: HOST:PORT, "off", or None for 127.0.0.1:8000.
        grpc: The same for gRPC, with port 8001.
        brpc: HOST:PORT for grps over brpc.
        admin: HOST:PORT or "off"; None omits the key.
        streams: Also serve `digits` over the byte stream of each protocol, on free ports.

    Raises:
        ValueError: Both listeners are off.
    """
    main = listener_config(
        http=http or DEFAULT_HTTP, grpc=grpc or DEFAULT_GRPC, streams=brpc_streams(brpc)
    )
    listeners = [{**main, "default_model": MODELS[0]}]
    if streams:
        addresses = [
            {"protocol": name, "address": "127.0.0.1:0"}
            for name in PROTOCOLS
            if protocol(name).stream is not None
        ]
        listeners.append({"name": STREAMS, "streams": addresses, "default_model": MODELS[0]})
    folder = Path(str(files("gateway.cli.demo"))) / "models"
    models: dict[str, dict[str, Any]] = {
        name: {"backend": "onnx", "path": str(folder / name)} for name in MODELS
    }
    # A SeldonMessage carries one output.
    models[MODELS[0]]["protocols"] = {"seldon": {"output": "probabilities"}}
    return {
        "version": "1",
        "listeners": listeners,
        **admin_config(admin),
        "models": {
            **models,
            TEXT_MODEL: {"backend": "python", "options": {"callable": _TEXT_CALLABLE}},
        },
        # No load balancer waits for the demo.
        "lifecycle": {"pre_stop": "0s"},
    }
