"""Residency of models that run in the gateway, and what operators see and change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.app import check
from gateway.config.load import load_text
from tests.integration.cli_kit import Running, gateway, get, serving

SIMPLE = {"backend": "python", "options": {"callable": "gateway.backends.examples:simple"}}
INPUTS = [
    {"name": name, "datatype": "INT32", "shape": [1, 16], "data": list(range(16))}
    for name in ("INPUT0", "INPUT1")
]


@contextmanager
def running(folder: Path, residency: dict[str, Any], workers: int = 1) -> Iterator[Running]:
    """Run a gateway with four models of its own."""
    config = {
        "version": 1,
        "workers": workers,
        "listeners": [
            {"http": "127.0.0.1:0", "options": {"oip": {"model_control": workers == 1}}},
        ],
        "admin": {"address": "127.0.0.1:0", "metrics": None},
        "models": dict.fromkeys("abcd", SIMPLE),
        "residency": residency,
        "lifecycle": {"pre_stop": "0s"},
    }
    file = folder / "gateway.yaml"
    file.write_text(json.dumps(config))
    with serving(str(file)) as found:
        yield found


def infer(gateway: Running, name: str) -> int:
    """Return the status of an inference."""
    return get(gateway.url(f"/v2/models/{name}/infer"), {"inputs": INPUTS})[0]


def loaded(gateway: Running) -> set[str]:
    """Return the models that are loaded, by the admin port."""
    document = get(gateway.url("/api/v1/residency", "admin"))[1]
    (endpoint,) = document["upstreams"]["gateway"]
    return {each["name"] for each in endpoint["models"] if each["state"] == "loaded"}


def residency(running: Running, *words: str) -> tuple[int, str]:
    """Return the status and the output of the command."""
    done = gateway("residency", *words, "--admin", running.addresses["admin"])
    return done.returncode, done.stdout + done.stderr


def test_calls_load_models_of_the_gateway(tmp_path: Path) -> None:
    """Two of four are loaded, and every call is served."""
    with running(tmp_path, {"models": 2}) as found:
        assert set() == loaded(found)
        for name in "abcdabcd":
            assert 200 == infer(found, name)
            assert name in loaded(found)
            assert len(loaded(found)) <= 2
        assert 200 == get(found.url("/v2/models/a/ready"))[0]
        assert 200 == get(found.url("/v2/models/b"))[0]


def test_pinned_models_of_the_gateway_stay(tmp_path: Path) -> None:
    """They are loaded at the start."""
    with running(tmp_path, {"models": 2, "pinned": ["d"]}) as found:
        for name in "abcab":
            assert 200 == infer(found, name)
            assert {"d", name} == loaded(found)


def test_operators_pin_and_evict_models(tmp_path: Path) -> None:
    """The command, the page and the status show what is loaded."""
    with running(tmp_path, {"models": 2}) as found:
        assert 0 == residency(found, "pin", "a")[0]
        for name in "bcd":
            assert 200 == infer(found, name)
        assert {"a", "d"} == loaded(found)
        status, table = residency(found)
        assert 0 == status
        assert "pinned" in table
        assert 0 == residency(found, "unpin", "a")[0]
        assert 200 == infer(found, "b")
        assert 200 == infer(found, "c")
        assert {"b", "c"} == loaded(found)
        assert 0 == residency(found, "evict", "b")[0]
        assert 200 == infer(found, "b")
        status, text = residency(found, "pin", "x")
        assert 1 == status
        assert "has model 'x'" in text
        assert 2 == residency(found, "pin")[0]
        page = get(found.url("/status", "admin"))[1]
        assert "gateway" in page["residency"]


def test_each_worker_has_its_own_models(tmp_path: Path) -> None:
    """An operator's change reaches all of them."""
    with running(tmp_path, {"models": 2}, workers=2) as found:
        assert 0 == residency(found, "pin", "a")[0]
        for name in "bcdbcd":
            assert 200 == infer(found, name)
        assert "a" in loaded(found)


def test_a_load_of_a_client_is_part_of_the_plan(tmp_path: Path) -> None:
    """So is its unload."""
    with running(tmp_path, {"models": 2}) as found:
        for name in "abc":
            assert 200 == get(found.url(f"/v2/repository/models/{name}/load"), {})[0]
        assert {"b", "c"} == loaded(found)
        assert 200 == get(found.url("/v2/repository/models/b/unload"), {})[0]
        assert {"c"} == loaded(found)


@pytest.mark.parametrize(
    ("residency", "message"),
    [
        ({}, "expected exactly one of 'models' and 'memory', got neither"),
        ({"models": 1, "memory": "1GiB"}, "got both"),
        ({"memory": "1GiB"}, "'memory' needs 'default_cost'"),
        ({"models": 1, "default_cost": "1MiB"}, "belong to 'memory'"),
        ({"models": 1, "pinned": ["a", "b"]}, "'pinned' needs 2: expected at most 1"),
    ],
)
def test_wrong_keys_are_named(tmp_path: Path, residency: dict[str, Any], message: str) -> None:
    """`gateway validate` says what is wrong with the room."""
    file = tmp_path / "gateway.yaml"
    upstream = {"url": "http://127.0.0.1:9000", "residency": residency}
    config = {"version": 1, "listeners": [{"http": "127.0.0.1:0"}], "upstreams": {"u": upstream}}
    file.write_text(json.dumps(config))
    done = gateway("validate", str(file))
    assert 0 != done.returncode
    assert message in done.stdout + done.stderr


@pytest.mark.parametrize("scheme", ["graphpipe+http", "grps+grpc", "oip+http", "oip+grpc"])
@pytest.mark.parametrize("key", ["residency", "rolling_load"])
def test_the_protocol_of_the_server_must_have_loads(scheme: str, key: str) -> None:
    """Open Inference has loads and an index of models; others are refused."""
    value = "{models: 2}" if key == "residency" else "{min_ready: 0}"
    upstream = f"{{url: '{scheme}://127.0.0.1:9000', {key}: {value}}}"
    text = f"version: 1\nlisteners: [{{http: 127.0.0.1:0}}]\nupstreams: {{u: {upstream}}}\n"
    found = [problem.message for problem in check(load_text(text))]
    assert scheme.startswith("oip") is not any("has no loads of models" in each for each in found)
