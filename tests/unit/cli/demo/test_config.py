"""The demo models as a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.app import check
from gateway.cli.demo.config import MODELS, demo_config
from gateway.cli.serving.sidecar import load_mapping
from gateway.registry import PROTOCOLS, protocol


def test_serves_every_demo_model_of_the_package() -> None:
    """Each folder of models that the package ships is served, on the usual ports."""
    loaded = load_mapping(demo_config(), "flags")
    models = loaded.config.models.values()
    folders = {Path(model.path) for model in models if model.path is not None}
    shipped = {path for path in next(iter(folders)).parent.iterdir() if path.is_dir()}
    assert shipped == folders
    assert {path.name for path in shipped} == set(MODELS)
    (listener,) = loaded.config.listeners
    assert ("127.0.0.1:8000", "127.0.0.1:8001") == (str(listener.http), str(listener.grpc))
    assert check(loaded) == []


def test_flags_set_the_addresses() -> None:
    """Flags set the listeners and the admin address; `off` omits one."""
    config = demo_config(http="127.0.0.1:1", grpc="off", admin="127.0.0.1:2")
    assert [{"http": "127.0.0.1:1", "default_model": "digits"}] == config["listeners"]
    assert {"address": "127.0.0.1:2"} == config["admin"]


def test_streams_are_served_on_request() -> None:
    """Each protocol with byte streams gets one, with one model."""
    config = demo_config(streams=True)
    listener = config["listeners"][1]
    streamed = [name for name in PROTOCOLS if protocol(name).stream is not None]
    assert streamed == [stream["protocol"] for stream in listener["streams"]]
    assert "digits" == listener["default_model"]
    assert [] == check(load_mapping(config, "flags"))


def test_one_listener_must_be_on() -> None:
    """A demo without a listener is rejected."""
    with pytest.raises(ValueError, match="leave nothing to listen on"):
        demo_config(http="off", grpc="off")


def test_brpc_is_served_by_the_main_listener() -> None:
    """It serves all models, like HTTP and gRPC."""
    main = demo_config(brpc="127.0.0.1:7081")["listeners"][0]
    assert [{"protocol": "grps", "address": "127.0.0.1:7081"}] == main["streams"]
