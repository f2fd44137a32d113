"""EventExtension: payload events as the gateway finds them, by `gateway.api.Extension`.

This module is imported at every start, so it imports the others of its folder on use only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway.api.extension import Extension, LeadingPart, Processes, ServingPart, ServingProcess
from gateway.config.load import LoadedConfig
from gateway.events.names import METRICS
from gateway.events.settings import EVENTS, check_events
from gateway.registry import event_sink_names
from gateway.settings.config_view import ConfigView, Finding


class EventExtension(Extension):
    """Sends inferences with their replies to sinks of other people."""

    name = "events"
    settings = (EVENTS,)
    metrics = METRICS

    def check(self, config: ConfigView, /) -> Iterator[Finding]:
        """Yield what is wrong with sinks."""
        if config.setting(EVENTS):
            loaded = LoadedConfig.of(config)
            yield from check_events(loaded.config, frozenset(event_sink_names()))

    def serve(self, process: ServingProcess, /) -> ServingPart | None:
        """Return what sends the calls of a serving process; None without sinks."""
        has_socket = process.setup is not None and bool(process.setup.sockets)
        if not has_socket and not process.config.setting(EVENTS):
            return None
        from gateway.events.parts import ServingEvents  # noqa: PLC0415  # if it is used

        return ServingEvents(process)

    def lead(self, processes: Processes, /) -> LeadingPart:
        """Return what gives serving processes their sockets to the shadow process."""
        from gateway.events.leading import LeadingEvents  # noqa: PLC0415  # if it leads

        return LeadingEvents(processes)


EXTENSION: Final = EventExtension()
