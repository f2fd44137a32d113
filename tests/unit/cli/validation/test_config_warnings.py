"""Warnings and suggestions of `gateway validate`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.app.check.check import _is_of_machine, check
from gateway.cli.validation.config_warnings import warnings
from gateway.config.load import ConfigError, load_text

GOOD = """version: 1
listeners:
  - {name: one, http: 8000, grpc: 8001}
upstreams:
  up: {url: "http://other:8000"}
routes:
  - {name: a, match: {model: a}, targets: [{upstream: up}]}
  - {name: b, match: {model: "b*"}, targets: [{upstream: up}]}
"""


def test_a_valid_file_has_no_warnings() -> None:
    """It has no problems either."""
    loaded = load_text(GOOD)
    assert ([], []) == (check(loaded), warnings(loaded))


@pytest.mark.parametrize(
    ("old", "new", "line", "text"),
    [
        ("routes:", "  far: {url: 'http://far:1'}\nroutes:", 6, "no route uses this upstream"),
        ("routes:", "models: {m: {backend: onnx}}\nroutes:", 6, "no route reaches this model"),
        (
            "routes:",
            "pipelines: {p: {steps: {a: {inputs: {x: request.x}}}, outputs: {y: a.y}}}\nroutes:",
            6,
            "no route reaches this pipeline: expected a target {model: p} of a route",
        ),
        (
            "{name: a,",
            "{name: '${ROUTE:-a}',",
            7,
            "'${ROUTE:-a}' is not replaced; an environment variable is ${env:ROUTE:-a}",
        ),
        (
            "{name: a,",
            "{name: '${a.b}',",
            7,
            "expected ${env:NAME}, ${env:NAME:-DEFAULT} or ${file",
        ),
        ("{model: a}", '{model: "*"}', 8, "no call reaches this route: 'a' takes them before"),
        ('{model: "b*"}', "{model: a}", 8, "no call reaches this route: 'a'"),
        ("{model: a}", "{protocol: oip.htp}", 7, "no protocol matches 'oip.htp'; did you mean"),
        ("8001}", "8001, tls: {cert: c.pem, key: k.pem}}", 3, "no such file: nowhere/c.pem"),
        ("routes:", "models: {m: {backend: onnx, path: m}}\nroutes:", 6, "no such file: nowhere/m"),
    ],
)
def test_warnings_have_a_line_and_a_reason(old: str, new: str, line: int, text: str) -> None:
    """Each warning describes the effect of the setting."""
    found = warnings(load_text(GOOD.replace(old, new), directory=Path("nowhere")))
    assert (line, True) == (found[0].position[0], text in found[0].message)


def test_parts_that_calls_reach_have_no_warning() -> None:
    """Without routes each has one of its own; passthrough uses an upstream, too."""
    parts = "models: {m: {backend: onnx}}\n"
    used = GOOD.partition("routes:")[0] + parts
    assert [] == warnings(load_text(used))
    text = GOOD.replace("grpc: 8001", "grpc: 8001, passthrough: far")
    text = text.replace(
        "routes:", '  far: {url: "http://far:1"}\nmodels: {m: {backend: onnx}}\nroutes:'
    )
    assert [] == warnings(
        load_text(text + "  - {name: m, match: {model: m}, targets: [{model: m}]}")
    )


def test_a_secret_like_a_reference_is_not_shown() -> None:
    """The warning says where it is."""
    text = GOOD.replace('8000"}', "8000\", headers: {authorization: '${hidden}'}}")
    (found,) = warnings(load_text(text))
    assert ("upstreams.up.headers.authorization", False) == (found.path, "hidden" in found.message)


@pytest.mark.parametrize(
    ("listener", "url"),
    [
        ("http: 8000", "http://127.0.0.1:8000"),
        ("http: 8000", "http://localhost:8000"),
        ("grpc: '*:8001'", "grpc://127.0.0.5:8001"),
        ("http: 'localhost:8000'", "http://127.0.0.1:8000"),
        ("http: '10.0.0.1:8000'", "http://10.0.0.1:8000"),
        ("http: 8000", "http://0.0.0.0:8000"),
        ("http: '*:8000'", "http://127.1.2.3:8000"),
        ("address: 8000", "grpc://127.0.0.1:8000"),
        (
            "streams: [{protocol: graphpipe, address: 'unix:/x.sock'}], default_model: m",
            "graphpipe+unix:///x.sock",
        ),
    ],
)
def test_a_call_went_round_through_the_gateway_itself(listener: str, url: str) -> None:
    """An upstream at a listener of the same file is an error."""
    text = GOOD.replace("http: 8000, grpc: 8001", listener).replace("http://other:8000", url)
    (found,) = check(load_text(text))
    assert ("upstreams.up.url", True) == (
        found.path,
        "so that calls would go round" in found.message,
    )


def test_an_address_of_this_machine_is_its_own() -> None:
    """No name stands for it, and other machines reach it there."""
    assert _is_of_machine("127.0.0.1")
    assert not any(map(_is_of_machine, ("192.0.2.1", "2001:db8::1", "localhost", "other")))


@pytest.mark.parametrize(
    ("listener", "url"),
    [
        ("http: 8000", "http://127.0.0.2:8000"),
        ("http: '*:8000'", "http://192.0.2.1:8000"),
        ("http: '10.0.0.1:8000'", "http://127.0.0.1:8000"),
        ("http: '*:8000'", "http://other:8000"),
        ("http: 0", "http://127.0.0.1:8000"),
    ],
)
def test_the_same_port_of_another_host_is_no_loop(listener: str, url: str) -> None:
    """A port says nothing without its address."""
    text = GOOD.replace("http: 8000, grpc: 8001", listener).replace("http://other:8000", url)
    assert [] == check(load_text(text))


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("{model: a, version: 1}", "{model: a}"),
        ("{model: a, headers: {x: y}}", "{model: a}"),
        ('{model: "a?"}', '{model: "a*"}'),
        ('{model: "a*"}', '{model: "*a"}'),
    ],
)
def test_partly_shadowed_routes_have_no_warning(earlier: str, later: str) -> None:
    """Patterns that overlap in part, and different conditions, are fine."""
    text = GOOD.replace("{model: a}", earlier).replace('{model: "b*"}', later)
    assert [] == warnings(load_text(text))


def test_a_file_without_upstreams_and_models_has_a_warning() -> None:
    """The file is valid, but the gateway serves nothing."""
    (found,) = warnings(load_text("version: 1\nlisteners: [{http: 8000}]\n"))
    assert "there is no upstream and no model" in found.message


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ("grpc: 8000", "listeners[0].grpc"),
        ("grpc: '*:8000'", "listeners[0].grpc"),
        ("grpc: 8001}\n  - {name: two, http: 8001", "listeners[1].http"),
    ],
)
def test_a_port_used_twice_is_an_error(change: str, path: str) -> None:
    """Port 0, and one port on different addresses, do not conflict."""
    (found,) = check(load_text(GOOD.replace("grpc: 8001", change)))
    assert (path, True) == (found.path, "is used twice" in found.message)
    assert [] == check(load_text(GOOD.replace("grpc: 8001", "grpc: '127.0.0.2:8000'")))
    assert [] == check(load_text(GOOD.replace("http: 8000, grpc: 8001", "http: 0, grpc: 0")))


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        ("upstreams:", "upstream:", "unknown key; did you mean 'upstreams'?"),
        ("match:", "matches:", "unknown key; did you mean 'match'?"),
        ("grpc: 8001", "grcp: 8001", "unknown key; did you mean 'grpc'?"),
        ("grpc: 8001", "zzzzz: 8001", "unknown key"),
        (
            '8000"}',
            '8000", timeout: 1s}',
            "unknown key; it belongs to upstreams.NAME.probe, routes[] or policies",
        ),
        ('8000"}', '8000", retry: {}}', "unknown key; it belongs to routes[] or policies"),
        (
            '8000"}',
            '8000", in_flight: 4}',
            "unknown key; it belongs to upstreams.NAME.limits, routes[] or policies",
        ),
        (
            '8000"}',
            '8000", cache: {}}',
            "unknown key; it belongs to models.NAME or security.external",
        ),
    ],
)
def test_an_unknown_key_suggests_the_nearest_key(old: str, new: str, hint: str) -> None:
    """The suggestion is a key of the same section, or the section that the key belongs to."""
    with pytest.raises(ConfigError) as caught:
        load_text(GOOD.replace(old, new, 1))
    assert hint in [problem.message for problem in caught.value.problems]
