"""Text to configuration: every problem at once, each with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.load import ConfigError, load_file, load_text
from gateway.config.units import Address

BASE = "version: 1\nlisteners: [{http: 8000}]\n"


def problems(text: str, **environment: str) -> list[str]:
    """Return the problems of *text* as they are printed."""
    with pytest.raises(ConfigError) as raised:
        load_text(text, environment=environment)
    return [str(problem) for problem in raised.value.problems]


def test_loads_the_least_there_can_be() -> None:
    """One listener is a configuration; the rest has defaults."""
    config = load_text(BASE).config
    assert config.listeners[0].http == Address("127.0.0.1", 8000)
    assert config.admin is None
    assert config.policies.timeout == 60.0


def test_says_everything_at_once_in_the_order_of_the_file() -> None:
    """Form, keys, units and references are judged in one go."""
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
        "1:10: version: Input should be '1', found '2'",
        (
            "3:11: listeners[0].http: '127.0.0.1:99999' is not an address: "
            "write HOST:PORT, as in 127.0.0.1:8000"
        ),
        "4:18: listeners[0].passthrough: there is no upstream 'nobody' in this file; there is: a",
        "6:12: upstreams.a.url: '127.0.0.1' is not an upstream URL: write oip+grpc://HOST:PORT",
        (
            "6:41: upstreams.a.probe.interval: '5' is not a duration: "
            "write a number and us, ms, s, m or h"
        ),
        "8:26: routes[0].targets[0].upstream: there is no upstream 'b' in this file; there is: a",
        "9:1: rotues: unknown key",
    ]
    assert expected == problems(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- 1", "1:1: the file must be a mapping, starting 'version: 1'"),
        ("version: 1", "1:1: listeners: this key is required"),
        ("version: 1\nlisteners: []", "2:12: listeners: needs at least one item"),
        (
            "version: 1\nlisteners: [{}]",
            "2:13: listeners[0]: a listener needs 'http', 'grpc' or 'streams'",
        ),
        (
            "version: 1\nlisteners: [{http: [1]}]",
            "2:20: listeners[0].http: must be text on one line, not a mapping or a list",
        ),
        (
            "version: 1\nlisteners: [{http: 1}, {http: 2}]",
            (
                "2:24: listeners[1].name: the name 'main' is taken by another of the listeners; "
                "each needs its own"
            ),
        ),
        (BASE + "models: [a]", "3:9: models: must be a mapping, found a list"),
        (
            BASE + "models: {a: {path: x}}",
            (
                "3:13: models.a: a model needs 'backend', or 'signature', 'batching' or 'cache' "
                "for an upstream's"
            ),
        ),
        (
            BASE + "models: {a: {batching: {max_batch_size: 4, preferred_sizes: [8]}}}",
            "3:24: models.a.batching: preferred size 8 is above max_batch_size 4",
        ),
        (
            BASE + "models: {a: {batching: {max_delay: 2}}}",
            (
                "3:36: models.a.batching.max_delay: '2' is not a duration: write a number and us, "
                "ms, s, m or h"
            ),
        ),
        (
            BASE + "upstreams: {a: {}}",
            "3:16: upstreams.a: an upstream needs 'url' or 'urls', not both",
        ),
        (
            BASE + "upstreams: {a: {urls: [grpc://h, http://h]}}",
            "3:16: upstreams.a: the urls of one upstream must speak the same protocol",
        ),
        (
            BASE + "upstreams: {a: {urls: [~]}}",
            "3:24: upstreams.a.urls[0]: must not be empty, found nothing",
        ),
        (
            BASE + "upstreams: {'': {url: grpc://h}}",
            "3:13: upstreams.: String should have at least 1 character, found ''",
        ),
        (BASE + "routes: [{targets: []}]", "3:20: routes[0].targets: needs at least one item"),
        (
            BASE + "models: {m: {backend: x}}\nroutes: [{targets: [{model: n}]}]",
            "4:29: routes[0].targets[0].model: there is no model 'n' in this file; there is: m",
        ),
        (
            BASE + "models: {m: {backend: x}}\nroutes: [{targets: [{}]}]",
            (
                "4:21: routes[0].targets[0]: a target needs 'upstream', "
                "or 'model' for one of this gateway"
            ),
        ),
        (
            BASE + "models: {m: {backend: x}}\nroutes: [{targets: [{model: m, weight: 0}]}]",
            "4:10: routes[0]: at least one target needs a weight above 0",
        ),
        (
            BASE + "models: {m: {backend: x}}\n"
            "routes: [{name: r, targets: [{model: m}]}, {name: r, targets: [{model: m}]}]",
            (
                "4:51: routes[1].name: the name 'r' is taken by another of the routes; "
                "each needs its own"
            ),
        ),
        (
            BASE + "policies: {in_flight: many}",
            (
                "3:23: policies.in_flight: Input should be a valid integer, "
                "unable to parse string as an integer, found 'many'"
            ),
        ),
        (BASE + "models: {a: !!binary aGk=}", "3:13: models.a: tag 'tag:yaml.org,2002:binary'"),
    ],
)
def test_says_each_mistake_once(text: str, said: str) -> None:
    """One mistake is one problem, in words of the file and at its place."""
    (found,) = problems(text)
    assert found.startswith(said)


def test_a_secret_is_not_shown() -> None:
    """A problem shows a reference as it is written, never what it stands for."""
    text = BASE + "upstreams: {a: {url: 'x${env:SECRET}'}}\npolicies: {in_flight: '${env:SECRET}'}"
    found = "\n".join(problems(text, SECRET="hunter2"))
    assert "hunter2" not in found
    assert "'x${env:SECRET}' is not an upstream URL" in found
    assert "found '${env:SECRET}'" in found


def test_headers_of_an_upstream_are_not_shown() -> None:
    """What is sent as an API key stays out of a configuration's repr."""
    text = BASE + "upstreams: {a: {url: 'grpc://h', headers: {x: '${env:SECRET}'}}}"
    config = load_text(text, environment={"SECRET": "hunter2"}).config
    assert config.upstreams["a"].headers == {"x": "hunter2"}
    assert "hunter2" not in repr(config)


def test_error_names_the_source_in_each_line(tmp_path: Path) -> None:
    """Lines have the form editors jump to: file:line:column."""
    path = tmp_path / "gateway.yaml"
    path.write_text("version: 1\nlisteners: [{}]\nmore: 1\n")
    with pytest.raises(ConfigError) as raised:
        load_file(path)
    expected = (
        f"{path}:2:13: listeners[0]: a listener needs 'http', 'grpc' or 'streams'\n"
        f"{path}:3:1: more: unknown key"
    )
    assert expected == str(raised.value)


def test_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    """A file that cannot be read is said like any other problem."""
    with pytest.raises(ConfigError, match=r"none\.yaml:1:1: No such file or directory"):
        load_file(tmp_path / "none.yaml")


def test_a_file_that_is_no_text_is_a_problem(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are said with their position."""
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"version: \xff")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 9"):
        load_file(path)


def test_later_checks_can_point_at_the_file() -> None:
    """What the schema cannot know is reported at the place of its key."""
    loaded = load_text(BASE + "models: {m: {backend: x}}")
    problem = loaded.problem(("models", "m", "backend"), "no such backend")
    assert str(problem) == "3:23: models.m.backend: no such backend"
