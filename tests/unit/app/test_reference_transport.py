"""What `transport: reference` does not offer: warnings, refusals and the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.app import check
from gateway.cli.validation.config_warnings import warnings
from gateway.config.limits import ClientLimitsConfig, ServerLimitsConfig
from gateway.config.load import load_text
from gateway.transports.implementations import REFERENCE_LIMITATIONS, limitations

DOCS = Path(__file__).parents[3] / "docs/operations.md"
TEXT = """version: 1
listeners:
  - {name: main, http: 8000, grpc: 8001, transport: T, limits: {LISTENER}}
upstreams:
  up: {url: "SCHEME://h:1", transport: T, limits: {UPSTREAM}}
"""


def file(
    transport: str, *, scheme: str = "grpc", listener: str = "", upstream: str = "", more: str = ""
) -> str:
    text = TEXT.replace(": T,", f": {transport},").replace("SCHEME", scheme)
    return text.replace("LISTENER", listener).replace("UPSTREAM", upstream) + more


def test_each_limitation_is_documented() -> None:
    """The list of its side in the documentation has it, with the keys that have no effect."""
    text = DOCS.read_text()
    for each in REFERENCE_LIMITATIONS:
        side = each.side.replace("http", "HTTP").replace("grpc", "gRPC")
        listed = text.split(f"**{side}**\n\n")[1].split("\n\n")[0].splitlines()
        keys = ", ".join(f"`{key}`" for key in each.keys)
        assert f"- {each.effect[:-1]} ({keys}).".replace(" ()", "") in listed


def test_names_are_unique_and_keys_exist() -> None:
    """A key of a row is one of the limits of a listener or an upstream."""
    names = [each.name for each in REFERENCE_LIMITATIONS]
    assert len(set(names)) == len(names)
    for each in REFERENCE_LIMITATIONS:
        model = ServerLimitsConfig if "server" in each.side else ClientLimitsConfig
        assert {key.removeprefix("limits.") for key in each.keys} <= set(model.model_fields)


def test_the_native_transport_has_no_limitation() -> None:
    """Each key has its effect there."""
    assert [] == limitations("native", "http server", "grpc client")
    loaded = load_text(file("native", listener="connections: 9", upstream="keepalive: 9s"))
    assert ([], []) == (check(loaded), warnings(loaded))


@pytest.mark.parametrize(
    ("scheme", "listener", "upstream", "expected"),
    [
        ("grpc", "", "", []),
        ("http", "body_timeout: 9s", "message_bytes: 9MiB", []),
        (
            "grpc",
            "connections: 9, pipelined_requests: 2",
            "",
            ["limits.pipelined_requests' (http), 'limits.connections' (grpc)"],
        ),
        ("http", "", "keepalive: 9s", ["limits.keepalive' (http)"]),
        ("grpc", "", "resolve_floor: 9s, keepalive: 9s", ["limits.resolve_floor' (grpc)"]),
        (
            "grpc",
            "connections: 9",
            "connections: 9",
            ["limits.connections' (grpc)", "limits.connections' (grpc)"],
        ),
    ],
)
def test_keys_without_effect_are_warned_of_once(
    scheme: str, listener: str, upstream: str, expected: list[str]
) -> None:
    """Each listener and each upstream has at most one warning, at its key `transport`."""
    loaded = load_text(file("reference", scheme=scheme, listener=listener, upstream=upstream))
    assert [] == check(loaded)
    found = warnings(loaded)
    assert len(expected) == len(found)
    for text, each in zip(expected, found, strict=True):
        assert each.path.endswith(".transport")
        assert text in each.message
        assert "'transport: native'" in each.message


def test_calls_cannot_be_withheld() -> None:
    """Triton would end, although the file says that it must not."""
    text = file("reference").replace(
        "upstreams:\n  up: {", "upstreams:\n  up: {cancellation: withhold, "
    )
    (found,) = check(load_text(text))
    assert "upstreams.up.cancellation" == found.path
    assert "'transport: native'" in found.message


def test_strict_security_refuses_grpc_listeners() -> None:
    """One client could end the calls of all others."""
    loaded = load_text(file("reference", more="security: {strict: true}\n"))
    found = {each.path: each.message for each in check(loaded)}
    assert "'transport: native'" in found["listeners[0].transport"]
