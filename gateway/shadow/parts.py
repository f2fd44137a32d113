"""The shadow process in the processes of a gateway: what starts it first, and ends it last."""

from collections.abc import Iterable

from prometheus_client.core import Metric

from gateway.api.extension import LeadingPart, Processes, ServingPart, ServingProcess
from gateway.config.load import LoadedConfig
from gateway.settings.config_view import ConfigView
from gateway.shadow.keeper import ShadowKeeper, existing_keeper


class ServingShadow(ServingPart):
    """The shadow process of a serving process that nothing leads.

    Args:
        process: The serving process. Other extensions may need the shadow process later.
    """

    def __init__(self, process: ServingProcess) -> None:
        self._process = process

    @property
    def keeper(self) -> ShadowKeeper | None:
        """The keeper of the shadow process, if no leading process has it and one is needed."""
        return existing_keeper(self._process)

    async def start(self) -> None:
        """Start the shadow process. Raises StartError."""
        if self.keeper is not None:
            self._process.metrics.registry.register(self.keeper)
            await self.keeper.start()

    def change(self, config: ConfigView, /) -> None:
        """Follow another configuration with the same channels."""
        if self.keeper is not None:
            self.keeper.change(LoadedConfig.of(config))

    async def stop(self) -> None:
        """End the shadow process; idempotent."""
        if self.keeper is not None:
            await self.keeper.stop()


class LeadingShadow(LeadingPart):
    """The shadow process of a gateway.

    Args:
        processes: All processes of the gateway. Other extensions may need the shadow process later.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    @property
    def keeper(self) -> ShadowKeeper | None:
        """The keeper of the shadow process; None if no extension needs one."""
        return existing_keeper(self._processes)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the shadow process."""
        return () if self.keeper is None else self.keeper.collect()

    async def change(self, config: ConfigView, /) -> None:
        """Follow another configuration with the same channels."""
        if self.keeper is not None:
            self.keeper.change(LoadedConfig.of(config))

    async def start(self) -> None:
        """Start the shadow process. Raises StartError."""
        if self.keeper is not None:
            await self.keeper.start()

    async def stop(self) -> None:
        """End the shadow process, after the serving processes; idempotent."""
        if self.keeper is not None:
            await self.keeper.stop()
