"""A reload and sinks of events: the first one needs a restart, all others do not."""

from __future__ import annotations

import pytest
import yaml

from gateway.app.build.parts import OwnProcess
from gateway.config.load import ConfigError, LoadedConfig, load_text
from gateway.events.leading import LeadingEvents
from gateway.shadow.parts import LeadingShadow

BASE = {
    "version": "1",
    "listeners": [{"http": "127.0.0.1:0"}],
    "upstreams": {"triton": {"url": "oip+grpc://127.0.0.1:8001"}},
}


def loaded(*sinks: str) -> LoadedConfig:
    events = {name: {"url": "http://127.0.0.1:1/", "payload": "none"} for name in sinks}
    return load_text(yaml.safe_dump({**BASE, "events": events}))


def test_a_first_sink_needs_a_restart() -> None:
    """A gateway that began without sinks has nothing that passes calls to one."""
    part = LeadingEvents(OwnProcess(loaded()))
    part.check_reload(loaded())
    with pytest.raises(ConfigError, match="events: a first sink needs a restart"):
        part.check_reload(loaded("audit"))


async def test_other_sinks_are_reloaded() -> None:
    """Sinks may change, come and go."""
    processes = OwnProcess(loaded("audit"))
    part = LeadingEvents(processes)
    for names in (("audit", "other"), ("other",), ()):
        part.check_reload(loaded(*names))
    await LeadingShadow(processes).stop()
