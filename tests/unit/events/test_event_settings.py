"""The key `events`: which sinks are refused, and what the error says."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gateway.app.check.check import check
from gateway.config.load import ConfigError, load_text

BASE = {
    "version": "1",
    "listeners": [{"http": "127.0.0.1:0"}],
    "upstreams": {"triton": {"url": "oip+grpc://127.0.0.1:8001"}},
}


def problems(**keys: Any) -> str:
    """Return the errors of a configuration with one sink."""
    sink = {"url": "http://127.0.0.1:1/", "payload": "full", **keys}
    try:
        loaded = load_text(yaml.safe_dump({**BASE, "events": {"audit": sink}}))
    except ConfigError as error:
        return str(error)
    return "\n".join(map(str, check(loaded)))


def test_the_smallest_sink_is_accepted() -> None:
    """A URL and a payload are enough."""
    assert not problems()


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"payload": None}, "payload"),
        ({"url": "ftp://host/"}, "unknown scheme 'ftp'; expected one of http, https, kafka"),
        ({"url": "http:///path"}, "needs a host"),
        ({"url": "http://user:word@host/"}, "needs a host"),
        ({"url": "s3:///prefix", "format": "jsonl"}, "names no bucket"),
        ({"url": "file://host/x", "format": "jsonl"}, "names no folder"),
        ({"url": "kafka://host/topic"}, "'host' is no broker"),
        ({"url": "kafka://host:9092/"}, "'' is no topic"),
        ({"headers": ["authorization"]}, "may contain a credential"),
        ({"send": []}, "expected 'request', 'response' or both"),
        ({"send": ["request", "request"]}, "expected 'request', 'response' or both"),
        ({"attributes": {"Team": "x"}}, "attributes"),
        ({"attributes": {"type": "x"}}, "differs between events"),
        ({"attributes": {"team": "a\nb"}}, "control characters"),
        ({"request_headers": {"ce-id": "x"}}, "is a header of the event itself"),
        ({"request_headers": {"Content-Type": "x"}}, "is a header of the event itself"),
        ({"request_headers": {"x-key": "a\r\nb: c"}}, "control characters"),
        ({"tls": {"cert": "c.pem"}}, "'cert' or 'key' is missing"),
        ({"batch": {"events": 5}}, "is not for http:// sinks"),
        ({"format": "jsonl"}, "is not for http:// sinks"),
        ({"url": "file:///x", "format": "jsonl", "tls": {}}, "is not for file:// sinks"),
        ({"percent": 0}, "percent"),
        ({"attempts": 0}, "attempts"),
    ],
)
def test_a_sink_that_cannot_work_is_refused(keys: dict[str, Any], text: str) -> None:
    """The error names the key, what is wrong, and what is expected."""
    found = problems(**keys)
    assert "events.audit" in found
    assert text in found


def test_values_of_request_headers_are_hidden() -> None:
    """What shows a configuration to people has no credential of a sink, whatever its header is."""
    headers = {"x-plain": "hidden-value"}
    sink = {"url": "http://127.0.0.1:1/", "payload": "full", "request_headers": headers}
    loaded = load_text(yaml.safe_dump({**BASE, "events": {"audit": sink}}))
    assert "hidden-value" not in f"{loaded.without_secrets()} {loaded.config!r}"


def test_a_sink_that_is_not_verified_is_refused_by_strict() -> None:
    """`security.strict` wants to know who gets the events."""
    sink = {"url": "https://127.0.0.1:1/", "payload": "full", "tls": {"verify": False}}
    strict = {**BASE, "security": {"strict": True}, "events": {"audit": sink}}
    found = "\n".join(map(str, check(load_text(yaml.safe_dump(strict)))))
    assert "events.audit.tls.verify" in found


@pytest.mark.parametrize(
    ("package", "keys", "extra"),
    [
        ("aiokafka", {"url": "kafka://host:9092/topic"}, "kafka"),
        ("fsspec", {"url": "s3://bucket/x", "format": "jsonl"}, "objects"),
        ("pyarrow", {"url": "file:///x"}, "parquet"),
    ],
)
def test_a_missing_package_is_named_before_the_start(
    monkeypatch: pytest.MonkeyPatch, package: str, keys: dict[str, Any], extra: str
) -> None:
    """The error says which extra to install."""

    def find_spec(name: str) -> object:
        return None if name == package else object()

    monkeypatch.setattr("gateway.events.settings.find_spec", find_spec)
    assert f"pip install 'tensor-gateway[{extra}]'" in problems(**keys)
