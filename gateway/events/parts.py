"""ServingEvents: payload events in one serving process."""

from collections.abc import Sequence
from typing import Final

from gateway.api.extension import ServingPart, ServingProcess
from gateway.api.tap import Tap
from gateway.config.load import LoadedConfig
from gateway.events.definition import event_sinks
from gateway.events.leading import CHANNEL, NAME, join_shadow
from gateway.events.tap import EventTap
from gateway.settings.config_view import ConfigView
from gateway.shadow.keeper import keeper_of

_CLOSE_S: Final = 5.0
"""A shadow process that does not confirm the last calls delays a stop for this time."""


class ServingEvents(ServingPart):
    """Sends chosen calls to the sinks in the shadow process.

    Args:
        process: The serving process.
    """

    def __init__(self, process: ServingProcess) -> None:
        setup = process.setup
        if setup is None or not setup.sockets:
            setup = join_shadow(keeper_of(process)).setup(NAME, process.number)
        sinks = event_sinks(LoadedConfig.of(process.config))
        self._tap = EventTap(sinks, setup.sockets[CHANNEL], process.count, process.new_path)
        process.metrics.registry.register(self._tap.metrics)

    @property
    def taps(self) -> Sequence[Tap]:
        """What chooses calls."""
        return (self._tap,)

    async def start(self) -> None:
        """Begin to send calls."""
        self._tap.start()

    def change(self, config: ConfigView, /) -> None:
        """Follow other sinks."""
        self._tap.change(event_sinks(LoadedConfig.of(config)))

    async def stop(self) -> None:
        """Wait for the results of all calls; idempotent."""
        await self._tap.close(_CLOSE_S)
