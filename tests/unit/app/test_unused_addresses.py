"""Names with several addresses of which an upstream uses one: a warning, at a start and of `validate`."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from gateway.app import Gateway
from gateway.app.check.unused_addresses import log_unused_addresses, unused_addresses
from gateway.cli.commands import command_line
from gateway.config.load import load_text

NAMES = {
    "pods.test": ["127.0.0.1", "127.0.0.2", "127.0.0.3"],
    "both.test": ["127.0.0.1", "::1"],
    "one.test": ["127.0.0.1"],
}
CONFIG = """
version: 1
listeners: [{http: "127.0.0.1:0"}]
admin: {address: "off"}
lifecycle: {pre_stop: 0s, drain: 0s}
upstreams: {a: %s}
"""
NOT_ALL = "'pods.test' has 3 addresses, and 'first' uses one of them at a time; expected 'all'"


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    known = socket.getaddrinfo

    def ask(host: str, *arguments: Any, **options: Any) -> Any:
        if host in NAMES:
            return [(0, 0, 0, "", (each, 0)) for each in NAMES[host]]
        if host.endswith(".test"):
            raise socket.gaierror(f"{host} is unknown")
        return known(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", ask)


@pytest.mark.parametrize(
    ("upstream", "is_warned"),
    [
        ("{url: 'oip+grpc://pods.test:1'}", True),
        ("{url: 'trtis+http://pods.test:1', resolve: first}", True),
        ("{urls: ['oip+http://one.test:1', 'oip+http://pods.test:1']}", True),
        ("{url: 'oip+grpc://pods.test:1', resolve: all}", False),
        ("{url: 'oip+grpc://both.test:1'}", False),
        ("{url: 'oip+grpc://one.test:1'}", False),
        ("{url: 'oip+grpc://unknown.test:1'}", False),
        ("{url: 'oip+grpc://127.0.0.1:1'}", False),
        ("{url: 'graphpipe+unix:///run/x'}", False),
    ],
)
async def test_a_name_with_several_addresses_is_used_as_one(upstream: str, is_warned: bool) -> None:
    """One address of each family is one server."""
    found = await unused_addresses(load_text(CONFIG % upstream).config)
    assert is_warned == bool(found)
    for path, message in found:
        assert ("upstreams", "a", "resolve") == path
        assert message.startswith(NOT_ALL)


async def test_the_log_of_a_start_has_a_warning() -> None:
    """Once, with the upstream; a reload that adds such an upstream says it, too."""
    loaded = load_text(CONFIG % "{url: 'oip+grpc://pods.test:1'}")
    with capture_logs() as logs:
        await log_unused_addresses(loaded.config)
    (line,) = logs
    assert ("one of several addresses is used", "a") == (line["event"], line["upstream"])
    gateway = Gateway(loaded)
    with capture_logs() as logs:
        await gateway.start()
        names = gateway.names_checked
        assert names is not None
        await names
        await gateway.stop()
    assert [line] == [each for each in logs if each["event"] == line["event"]]


@pytest.mark.parametrize("flags", [[], ["--strict"]], ids=str)
def test_validate_has_a_warning(tmp_path: Path, flags: list[str]) -> None:
    """It is a warning, and an error with --strict."""
    path = tmp_path / "gateway.yaml"
    path.write_text(CONFIG % "{url: 'oip+grpc://pods.test:1'}")
    done = CliRunner().invoke(command_line(["validate"]), ["validate", str(path), *flags])
    assert bool(flags) == bool(done.exit_code)
    assert f"warning: upstreams.a.resolve: {NOT_ALL}" in done.output
