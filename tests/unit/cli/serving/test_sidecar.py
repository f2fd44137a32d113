"""Flags of the sidecar and the resulting configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.cli.configuration import load_checked_mapping
from gateway.cli.serving.sidecar import load_mapping, sidecar_config
from gateway.config.load import ConfigError, load_file
from gateway.config.models import PassthroughConfig
from gateway.policies.limits.deadline import STREAM_IDLE, TIMEOUT
from gateway.settings.units import Address, Url

QUESTIONS = {"model_configuration": "true", "statistics": "target", "repository_index": "true"}
READING = {**QUESTIONS, "trace": "read", "logging": "read"}
ALIVE = {"tfs": {"root": True}}  # what KServe's clients ask on `/`


def test_one_flag_is_enough() -> None:
    """The models of an upstream are served on Triton's ports, under their own names."""
    expected = {
        "version": "1",
        "listeners": [
            {
                "http": "127.0.0.1:8000",
                "grpc": "127.0.0.1:8001",
                "options": {"oip": READING, **ALIVE},
            }
        ],
        "upstreams": {"upstream": {"url": "oip+grpc://model-server:8001"}},
        "policies": {"timeout": "0s", "stream_idle": "0s"},
    }
    assert expected == sidecar_config(["grpc://model-server:8001"])


def test_the_example_has_the_options_of_the_flag() -> None:
    """`config/sidecar.yaml` serves the same as `--upstream`."""
    flag = load_mapping(sidecar_config(["oip+grpc://127.0.0.1:9001"]), "flags").config
    example = load_file(Path("config/sidecar.yaml")).config
    for config in (flag, example):
        (listener,) = config.listeners
        assert "127.0.0.1:8000" == str(listener.http)
    assert (flag.listeners[0].grpc, flag.listeners[0].options, flag.policies) == (
        example.listeners[0].grpc,
        example.listeners[0].options,
        example.policies,
    )


@pytest.mark.parametrize(("flag", "timeout_s"), [(None, 0.0), ("30s", 30.0)])
def test_a_sidecar_has_no_time_of_its_own(flag: str | None, timeout_s: float) -> None:
    """Calls take as long as their clients allow, unless `--timeout` says otherwise."""
    config = load_mapping(sidecar_config(["http://h"], timeout=flag), "flags").config
    assert (timeout_s, 0.0) == (TIMEOUT.of(config.policies), STREAM_IDLE.of(config.policies))


@pytest.mark.parametrize(
    ("url", "http", "grpc"),
    [
        ("grpc://127.0.0.1:8001", "127.0.0.1:18000", "127.0.0.1:18001"),
        ("http://localhost", "127.0.0.1:18000", "127.0.0.1:18001"),
        ("http://[::1]:8002", "127.0.0.1:18000", "127.0.0.1:18001"),
        ("http://127.0.0.1:9000", "127.0.0.1:8000", "127.0.0.1:8001"),
        ("http://10.0.0.1:8000", "127.0.0.1:8000", "127.0.0.1:8001"),
    ],
)
def test_avoids_the_ports_of_an_upstream(url: str, http: str, grpc: str) -> None:
    """Other ports are used if an upstream on this machine has the default ports."""
    (listener,) = sidecar_config([url])["listeners"]
    assert (http, grpc) == (listener["http"], listener["grpc"])


def test_flags_override_the_default_addresses() -> None:
    """Each address flag overrides its own default."""
    (listener,) = sidecar_config(["grpc://127.0.0.1:8001"], http="0.0.0.0:80")["listeners"]
    assert ("0.0.0.0:80", "127.0.0.1:18001") == (listener["http"], listener["grpc"])


def test_a_listener_can_be_off() -> None:
    """`off` omits the listener, and the keys that need it."""
    (listener,) = sidecar_config(["http://h"], http="off")["listeners"]
    assert {"grpc", "options"} == set(listener)


def test_one_listener_must_be_on() -> None:
    """A gateway without a listener is an error that names the flags."""
    with pytest.raises(ValueError, match="--http off and --grpc off leave nothing to listen on"):
        sidecar_config(["http://h"], http="off", grpc="off")


@pytest.mark.parametrize(
    ("urls", "passthrough", "expected"),
    [
        (["http://h"], True, "upstream"),
        (["http://h"], False, None),
        (["grpc://h"], True, None),
        (["grpc://h", "http://h"], True, "upstream-2"),
    ],
)
def test_forwards_other_paths_to_the_first_http_upstream(
    urls: list[str], passthrough: bool, expected: str | None
) -> None:
    """Paths of no protocol go to the first upstream that speaks HTTP."""
    (listener,) = sidecar_config(urls, passthrough=passthrough)["listeners"]
    assert expected == listener.get("passthrough")


@pytest.mark.parametrize(
    ("admin", "expected"),
    [
        (None, {}),
        ("0.0.0.0:9901", {"admin": {"address": "0.0.0.0:9901"}}),
        ("off", {"admin": {"address": "off"}}),
    ],
)
def test_admin_is_set_only_by_its_flag(admin: str | None, expected: dict[str, Any]) -> None:
    """Without the flag the key is absent, so a port in use does not prevent the start."""
    config = sidecar_config(["http://h"], admin=admin)
    assert expected == {key: value for key, value in config.items() if key == "admin"}


def test_the_loader_validates_flags_like_a_file() -> None:
    """Every flag is in the typed configuration."""
    config = load_mapping(
        sidecar_config(["grpc://a:1", "http://b:2"], grpc="9", admin="off", default_model="null"),
        "flags",
    ).config
    (listener,) = config.listeners
    assert listener.default_model == "null"
    assert listener.grpc == Address("127.0.0.1", 9)
    assert listener.passthrough == PassthroughConfig(upstream="upstream-2")
    assert config.admin is not None
    assert config.admin.address is None
    urls = [upstream.url for upstream in config.upstreams.values()]
    assert urls == [Url("oip", "grpc", "a", 1), Url("oip", "http", "b", 2)]


def test_reports_an_invalid_address_like_a_file() -> None:
    """Problems have the flags as their source."""
    with pytest.raises(ConfigError, match=r"flags:\d+:\d+: listeners\[0\].http: 'nowhere' is not"):
        load_mapping(sidecar_config(["http://h"], http="nowhere"), "flags")


def test_the_identity_is_set_by_its_flag() -> None:
    """Without the flag the gateway shows its own name."""
    (listener,) = sidecar_config(["grpc://h:1"], identity="upstream")["listeners"]
    assert "upstream" == listener["identity"]
    assert "identity" not in sidecar_config(["grpc://h:1"])["listeners"][0]


def test_an_invalid_url_is_rejected() -> None:
    """A URL that cannot be parsed is an error."""
    with pytest.raises(ValueError, match=r"'127\.0\.0\.1:8001' is not an upstream URL"):
        sidecar_config(["127.0.0.1:8001"])


def test_streams_are_part_of_the_listener(tmp_path: Path) -> None:
    """Flags set the sockets of GraphPipe, which serve the default model."""
    config = sidecar_config(
        ["graphpipe+unix:///run/m.sock"],
        http="off",
        grpc="off",
        graphpipe_tcp="9000",
        graphpipe_unix=f"{tmp_path}/g.sock",
        default_model="m",
    )
    loaded = load_mapping(config, "flags").config
    (listener,) = loaded.listeners
    assert ["127.0.0.1:9000", f"unix:{tmp_path}/g.sock"] == [
        str(stream.address) for stream in listener.streams
    ]
    assert ["0660", "0660"] == [stream.mode for stream in listener.streams]
    assert Url("graphpipe", "unix", "", 0, socket="/run/m.sock") == loaded.upstreams["upstream"].url


def test_a_stream_needs_a_default_model() -> None:
    """Without a default model every request of a GraphPipe stream would fail."""
    with pytest.raises(ValueError, match="names no model: set one with --default-model NAME"):
        sidecar_config(["http://h"], graphpipe_tcp="9000")


def test_a_brpc_stream_needs_no_default_model() -> None:
    """Requests over brpc name their models."""
    config = sidecar_config(["grpc://h:1"], http="off", grpc="off", brpc="0.0.0.0:7081")
    (listener,) = load_mapping(config, "flags").config.listeners
    assert [("grps", "0.0.0.0:7081")] == [
        (stream.protocol, str(stream.address)) for stream in listener.streams
    ]


def test_requests_without_a_model_reach_the_default_dag_of_grps() -> None:
    """They stay without a model for a grps upstream; OIP clients use the name `default`."""
    config = sidecar_config(["grps+http://h:1"], enable=["repository_index"])
    (listener,) = config["listeners"]
    expected = {"grps": {"default_model": "default"}, "oip": QUESTIONS, **ALIVE}
    assert expected == listener["options"]
    assert {"url": "grps+http://h:1", "options": {"keys": {"default": ""}}} == (
        config["upstreams"]["upstream"]
    )
    named = sidecar_config(["grps+http://h:1"], default_model="m")
    assert {"url": "grps+http://h:1"} == named["upstreams"]["upstream"]
    two = sidecar_config(["grps+http://h:1", "http://h"])
    assert {"oip": READING, **ALIVE} == two["listeners"][0]["options"]


def test_enables_options_that_are_off_by_default() -> None:
    """A name alone means true, `off` disables a default, `shared_memory` is a listener key."""
    flags = ["model_control", "statistics=off", "trace=true", "shared_memory=forward:app-*,b"]
    (listener,) = sidecar_config(["http://h"], enable=flags)["listeners"]
    enabled = {"model_control": "true", "statistics": "off", "trace": "true"}
    assert {"oip": {**READING, **enabled}, **ALIVE} == listener["options"]
    assert {"mode": "forward", "keys": ["app-*", "b"]} == listener["shared_memory"]


def test_a_sidecar_sent_calls_to_itself() -> None:
    """An upstream at a port of its own is refused before it listens."""
    flags = sidecar_config(["http://127.0.0.1:9000"], http="127.0.0.1:9000", grpc="off")
    with pytest.raises(ConfigError, match=r"upstreams\.upstream\.url: .* calls would go round"):
        load_checked_mapping(flags)
