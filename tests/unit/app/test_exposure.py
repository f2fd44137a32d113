"""Features of a listener that other machines may use."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from gateway.app import Gateway
from gateway.config.load import ConfigError, LoadedConfig, load_text

TEXT = """
version: 1
listeners: [{http: "ADDRESS:0", shared_memory: MEMORY}]
admin: {address: null, metrics: null}
security: {strict: STRICT}
models:
  m: {backend: python, options: {callable: "gateway.backends.examples:simple"}}
"""
WITHOUT_TLS = "listener can be reached from other machines without TLS"
SMALLER = "a client that makes a shared-memory segment smaller ends the server"
MEMORY = "listener lets other machines use this one's shared memory"


def loaded(address: str, memory: str, *, strict: bool) -> LoadedConfig:
    text = TEXT.replace("ADDRESS", address).replace("MEMORY", memory)
    return load_text(text.replace("STRICT", str(strict).lower()), source=str(Path("x.yaml")))


@pytest.mark.parametrize(
    ("address", "memory", "events"),
    [
        ("127.0.0.1", "map", []),
        ("0.0.0.0", "off", [WITHOUT_TLS]),
        ("0.0.0.0", "{mode: forward, keys: app}", [WITHOUT_TLS, MEMORY, SMALLER]),
    ],
)
def test_exposed_listeners_log_warnings(address: str, memory: str, events: list[str]) -> None:
    """Each risk of a listener beyond this machine has a warning; loopback has none."""
    with structlog.testing.capture_logs() as logs:
        Gateway(loaded(address, memory, strict=False))
    assert sorted(events) == sorted(
        line["event"] for line in logs if line["log_level"] == "warning"
    )


def test_strict_security_rejects_exposed_listeners() -> None:
    """The gateway does not start; a loopback listener is allowed."""
    with pytest.raises(
        ConfigError, match=r"without TLS, which security\.strict forbids; add 'tls'"
    ):
        Gateway(loaded("0.0.0.0", "map", strict=True))
    Gateway(loaded("127.0.0.1", "map", strict=True))
