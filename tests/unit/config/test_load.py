"""Loading a configuration: every problem is reported at once, with its position."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.load import ConfigError, load_file, load_text
from gateway.policies.limits.deadline import TIMEOUT
from gateway.policies.shared_memory.layer import SHARED_MEMORY
from gateway.settings.units import Address

BASE = "version: 1\nlisteners: [{http: 8000}]\n"


def problems(text: str, **environment: str) -> list[str]:
    """Return the problems of *text* as they are printed."""
    with pytest.raises(ConfigError) as raised:
        load_text(text, environment=environment)
    return [str(problem) for problem in raised.value.problems]


def test_loads_the_smallest_configuration() -> None:
    """One listener is enough. Every other key has a default."""
    config = load_text(BASE).config
    assert config.listeners[0].http == Address("127.0.0.1", 8000)
    assert config.admin is None
    assert 60.0 == TIMEOUT.of(config.policies)


def test_reports_all_problems_in_the_order_of_the_file() -> None:
    """Types, keys, units and references are checked in one pass."""
    text = (
        "version: 2\n"
        "listeners:\n"
        "  - http: 127.0.0.1:99999\n"
        "    passthrough: nobody\n"
        "upstreams:\n"
        "  a: {url: 127.0.0.1, probe: {interval: 5}}\n"
        "routes:\n"
        "  - targets: [{upstream: b}]\n"
        "rotues: []\n"
    )
    expected = [
        "1:10: version: expected '1', found '2'",
        (
            "3:11: listeners[0].http: '127.0.0.1:99999' is not an address: "
            "expected HOST:PORT, as in 127.0.0.1:8000"
        ),
        "4:18: listeners[0].passthrough: unknown upstream 'nobody': this file defines a",
        (
            "6:12: upstreams.a.url: '127.0.0.1' is not an upstream URL: "
            "expected PROTOCOL+CARRIER://HOST:PORT, as in oip+grpc://127.0.0.1:8001, "
            "or PROTOCOL+CARRIER+unix:///PATH"
        ),
        (
            "6:41: upstreams.a.probe.interval: '5' is not a duration: "
            "expected a number and us, ms, s, m or h, as in 250ms"
        ),
        "8:26: routes[0].targets[0].upstream: unknown upstream 'b': this file defines a",
        "9:1: rotues: unknown key; did you mean 'routes'?",
    ]
    assert expected == problems(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "1:1: expected a mapping that begins with 'version: 1'"),
        ("version: 1", "1:1: listeners: this key is required"),
        ("version: 1\nlisteners: []", "2:12: listeners: expected at least one entry"),
        (
            "version: 1\nlisteners: [{}]",
            "2:13: listeners[0]: a listener needs at least one of 'address', 'http', 'grpc' and 'streams'",
        ),
        (
            "version: 1\nlisteners: [{address: 8080, grpc: 8001}]",
            (
                "2:13: listeners[0]: 'address' serves HTTP and gRPC on one port; expected either "
                "'address' alone, or 'http' and 'grpc' without it"
            ),
        ),
        (
            "version: 1\nlisteners: [{http: [1]}]",
            "2:20: listeners[0].http: expected text, not a mapping or a list",
        ),
        (
            "version: 1\nlisteners: [{http: 1}, {http: 2}]",
            (
                "2:24: listeners[1].name: duplicate name 'main': "
                "each of the listeners needs a different name"
            ),
        ),
        (BASE + "models: [a]", "3:9: models: expected a mapping, found a list"),
        (
            BASE + "models: {a: {path: x}}",
            (
                "3:13: models.a: a model needs 'backend', or at least one of 'signature', "
                "'batching', 'cache' and 'protocols' for a model of an upstream"
            ),
        ),
        (
            BASE + "models: {a: {batching: {max_batch_size: 4, preferred_sizes: [8]}}}",
            "3:24: models.a.batching: preferred size 8 is larger than max_batch_size 4",
        ),
        (
            BASE + "models: {a: {batching: {max_delay: 2}}}",
            (
                "3:36: models.a.batching.max_delay: '2' is not a duration: "
                "expected a number and us, ms, s, m or h, as in 250ms"
            ),
        ),
        (
            BASE + "upstreams: {a: {}}",
            "3:16: upstreams.a: an upstream needs exactly one of 'url' and 'urls'",
        ),
        (
            BASE + "upstreams: {a: {url: http://h}}\n"
            "routes: [{targets: [{upstream: a}], queue_priority: urgent}]",
            "4:53: routes[0].queue_priority: expected 'high', 'normal', 'low' or 'header:NAME', found 'urgent'",
        ),
        (
            BASE + "upstreams: {a: {url: http://h}}\n"
            "routes: [{targets: [{upstream: a}], queue_priority_by: address}]",
            "4:56: routes[0].queue_priority_by: expected 'header:NAME', found 'address'",
        ),
        (
            "version: 1\nlisteners: [{http: 8000, shared_memory: {keys: a}}]",
            "2:41: listeners[0].shared_memory: 'keys' belong to 'forward' and 'map'",
        ),
        (
            "version: 1\nlisteners: [{http: 8000, shared_memory: forward}]",
            "2:41: listeners[0].shared_memory: 'forward' needs 'keys'",
        ),
        (
            BASE + "policies: {queue_target: 5}",
            "3:26: policies.queue_target: '5' is not a duration",
        ),
        (
            BASE + "upstreams: {a: {url: grpc://h, resolve: all, transport: reference}}",
            "3:16: upstreams.a: 'resolve: all' needs 'transport: native'",
        ),
        (
            BASE + "upstreams: {a: {url: 'graphpipe+unix:///run/s', resolve: all}}",
            "3:16: upstreams.a: 'resolve: all' is for host names, and the url is a unix socket",
        ),
        (
            BASE + "upstreams: {a: {url: 'grpc+unix:///run/s', tls: {}}}",
            "3:16: upstreams.a: 'tls' is for TCP, and the url is a unix socket",
        ),
        (
            BASE + "upstreams: {a: {url: 'http+unix:///run/s', transport: reference}}",
            "3:16: upstreams.a: a unix socket with HTTP needs 'transport: native'",
        ),
        (
            BASE + "upstreams: {a: {url: grpc://h, resolve: each}}",
            "3:41: upstreams.a.resolve: expected 'first' or 'all', found 'each'",
        ),
        (
            BASE + "upstreams: {a: {urls: [grpc://h, http://h]}}",
            (
                "3:16: upstreams.a: the urls of one upstream need the same protocol, "
                "found oip+grpc, oip+http"
            ),
        ),
        (
            BASE + "upstreams: {a: {urls: [~]}}",
            "3:24: upstreams.a.urls[0]: expected a value, found nothing",
        ),
        (
            BASE + "upstreams: {'': {url: grpc://h}}",
            "3:13: upstreams.: expected text that is not empty, found ''",
        ),
        (BASE + "routes: [{targets: []}]", "3:20: routes[0].targets: expected at least one entry"),
        (
            BASE + "models: {m: {backend: x}}\nroutes: [{targets: [{model: n}]}]",
            "4:29: routes[0].targets[0].model: unknown model 'n': this file defines m",
        ),
        (
            BASE + "models: {m: {backend: x}}\nroutes: [{targets: [{}]}]",
            (
                "4:21: routes[0].targets[0]: a target needs 'upstream', "
                "or 'model' for a model of the gateway"
            ),
        ),
        (
            BASE + "models: {m: {backend: x}}\nroutes: [{targets: [{model: m, weight: 0}]}]",
            "4:10: routes[0]: all targets have weight 0: at least one needs a weight above 0",
        ),
        (
            BASE + "models: {m: {backend: x}}\n"
            "routes: [{name: r, targets: [{model: m}]}, {name: r, targets: [{model: m}]}]",
            ("4:51: routes[1].name: duplicate name 'r': each of the routes needs a different name"),
        ),
        (
            BASE + "policies: {in_flight: many}",
            ("3:23: policies.in_flight: expected a whole number, found 'many'"),
        ),
        (BASE + "models: {a: !!binary aGk=}", "3:13: models.a: tag 'tag:yaml.org,2002:binary'"),
    ],
)
def test_reports_each_mistake_once(text: str, message: str) -> None:
    """One mistake is one problem, with the position of its key."""
    (found,) = problems(text)
    assert found.startswith(message)


@pytest.mark.parametrize("after", ["1.2.3s", ".5s", ".us"])
def test_a_malformed_hedge_duration_passed_validation(after: str) -> None:
    """Such a file was valid, and the gateway did not start with it."""
    route = "{targets: [{upstream: a}], retry: {idempotent: true}, hedge: {after: AFTER}}"
    text = BASE + "upstreams: {a: {url: oip+http://h:1}}\nroutes: [" + route + "]"
    (found,) = problems(text.replace("AFTER", after))
    assert "routes[0].hedge.after: " in found


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("hedge: {after: soon}", "expected a percentile or a duration, as in p95 or 30ms"),
        ("share: {by: tenant}", "expected 'model', 'address', 'client' or 'header:NAME'"),
        ("share: {by: model, rate: 5}", "expected a number and /s or /min, as in 200/s"),
        ("name: 'a\tb'", "expected text without control characters"),
        (f"name: {'x' * 256}", "expected at most 255 characters"),
        ("name: ''", "expected text that is not empty"),
    ],
)
def test_errors_had_the_wording_of_the_library(section: str, expected: str) -> None:
    """A pattern or a length is explained in words, not as `String should match pattern '^...'`."""
    text = BASE + "upstreams: {a: {url: oip+http://h:1}}\nroutes: [{targets: [{upstream: a}], "
    (found,) = problems(text + section + "}]")
    assert f": {expected}, found " in found


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("swordfish", "expected at least 16 characters"),
        ("swordfish swordfish", "expected ASCII characters without spaces"),
    ],
)
def test_error_showed_the_token_of_the_admin_pages(token: str, expected: str) -> None:
    """The log of a failed start must not contain a token."""
    (found,) = problems(BASE + f"admin: {{token: {token}}}")
    assert found.endswith(f"admin.token: {expected}")


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        (
            "outlier_detection: {slow_factor: x}",
            "outlier_detection.slow_factor: expected a number, found 'x'",
        ),
        (
            "outlier_detection: maybe",
            "outlier_detection: expected a mapping or false, found 'maybe'",
        ),
        (
            "outlier_detection: {base_ejection_time: 90s}",
            (
                "outlier_detection: base_ejection_time is 90s: expected at most max_ejection_time, "
                "which is 60s"
            ),
        ),
        (
            "probe: {interval: 0s}",
            "probe.interval: expected greater than 0, found 0.0",
        ),
        (
            "adaptive_concurrency: {most: 3}",
            "adaptive_concurrency.most: unknown key",
        ),
        (
            "adaptive_concurrency: maybe",
            "adaptive_concurrency: expected a mapping or 'on_overload' or false, found 'maybe'",
        ),
    ],
)
def test_one_mistake_in_a_policy_was_reported_for_each_form(section: str, expected: str) -> None:
    """A mapping that `false` may replace has one problem, without the names of the library."""
    (found,) = problems(BASE + "upstreams: {a: {url: oip+http://h:1, " + section + "}}")
    assert found.endswith(f": upstreams.a.{expected}")


def test_both_modes_of_shared_memory_accept_keys() -> None:
    """`map` may have patterns, and needs none."""
    text = "version: 1\nlisteners: [{http: 8000, shared_memory: {mode: map, keys: 'app-*'}}]"
    assert ("app-*",) == SHARED_MEMORY.of(load_text(text).config.listeners[0]).keys
    plain = load_text("version: 1\nlisteners: [{http: 8000, shared_memory: map}]")
    assert () == SHARED_MEMORY.of(plain.config.listeners[0]).keys


def test_does_not_show_secrets() -> None:
    """A problem shows `${...}` as in the file, never its value."""
    text = BASE + "upstreams: {a: {url: 'x${env:SECRET}'}}\npolicies: {in_flight: '${env:SECRET}'}"
    found = "\n".join(problems(text, SECRET="hunter2"))
    assert "hunter2" not in found
    assert "'x${env:SECRET}' is not an upstream URL" in found
    assert "found '${env:SECRET}'" in found


def test_does_not_show_headers_of_an_upstream() -> None:
    """An API key in a header is not in the repr of a configuration."""
    text = BASE + "upstreams: {a: {url: 'grpc://h', headers: {x: '${env:SECRET}'}}}"
    config = load_text(text, environment={"SECRET": "hunter2"}).config
    assert config.upstreams["a"].headers == {"x": "hunter2"}
    assert "hunter2" not in repr(config)


def test_each_line_of_an_error_names_the_source(tmp_path: Path) -> None:
    """Each line begins with file:line:column, which editors can open."""
    path = tmp_path / "gateway.yaml"
    path.write_text("version: 1\nlisteners: [{}]\nmore: 1\n")
    with pytest.raises(ConfigError) as raised:
        load_file(path)
    expected = (
        f"{path}:2:13: listeners[0]: a listener needs at least one of 'address', 'http', 'grpc' and 'streams'\n"
        f"{path}:3:1: more: unknown key"
    )
    assert expected == str(raised.value)


def test_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    """A file that cannot be read is reported like any other problem."""
    with pytest.raises(ConfigError, match=r"none\.yaml:1:1: No such file or directory"):
        load_file(tmp_path / "none.yaml")


def test_a_file_that_is_not_utf_8_is_a_problem(tmp_path: Path) -> None:
    """The problem names the position of the first invalid byte."""
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"version: \xff")
    with pytest.raises(ConfigError, match="the file is not UTF-8: invalid byte at position 9"):
        load_file(path)


def test_later_checks_can_point_at_the_file() -> None:
    """A problem that the schema cannot find is reported at the position of its key."""
    loaded = load_text(BASE + "models: {m: {backend: x}}")
    problem = loaded.problem(("models", "m", "backend"), "no such backend")
    assert str(problem) == "3:23: models.m.backend: no such backend"


@pytest.mark.parametrize("key", ["outlier_detection", "adaptive_concurrency"])
def test_false_switches_a_policy_off(key: str) -> None:
    """Scalars of the file are text, and so is `false`."""
    loaded = load_text(
        'version: 1\nlisteners: [{http: "127.0.0.1:0"}]\n'
        f'upstreams: {{up: {{url: "oip+http://127.0.0.1:1", {key}: false}}}}\n'
    )
    assert getattr(loaded.config.upstreams["up"], key) is False
