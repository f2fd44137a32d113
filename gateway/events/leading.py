"""LeadingEvents: payload events in the leading process."""

from typing import Any, Final

from gateway.api.extension import LeadingPart, PartSetup, Processes
from gateway.config.load import ConfigError, LoadedConfig
from gateway.events import names
from gateway.events.settings import EVENTS
from gateway.settings.config_view import ConfigView
from gateway.shadow.keeper import ShadowKeeper, keeper_of
from gateway.shadow.lost_samples import with_lost_samples
from gateway.shadow.part import ShadowUser

NAME: Final = "events"
"""The name of the extension."""
CHANNEL: Final = ""
"""The only channel to the shadow process."""

_RESULTS: Final = {
    names.EVENTS_SAMPLED.family: (names.EVENTS_DELIVERED.family, names.EVENTS_DROPPED.family)
}


def join_shadow(keeper: ShadowKeeper) -> ShadowKeeper:
    """Have sinks of events in the shadow process; return its keeper."""
    keeper.join(ShadowUser(NAME, "gateway.events.shadow_part:EventSinks", (CHANNEL,)))
    return keeper


class LeadingEvents(LeadingPart):
    """Lets serving processes reach the sinks in the shadow process.

    Args:
        processes: All processes of the gateway.
    """

    def __init__(self, processes: Processes) -> None:
        has_events = bool(processes.config.setting(EVENTS))
        self._keeper = join_shadow(keeper_of(processes)) if has_events else None

    def setup(self, number: int, /) -> PartSetup:
        """Return the socket to the shadow process."""
        return PartSetup() if self._keeper is None else self._keeper.setup(NAME, number)

    def check_reload(self, config: ConfigView, /) -> None:
        """Check that a configuration has no first sink of events.

        Raises:
            ConfigError: It does, and nothing in the frontends would pass calls to it.
        """
        if self._keeper is not None or not config.setting(EVENTS):
            return
        loaded = LoadedConfig.of(config)
        problem = loaded.problem(("events",), "a first sink needs a restart")
        raise ConfigError(loaded.source, [problem])

    def on_process_ended(self, metrics: Any, /) -> Any:
        """Count the events in flight of a process that died as dropped."""
        return with_lost_samples(metrics, _RESULTS, "sink")
