"""ServingAccess: who calls the listeners of a serving process, and what clients may do there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gateway.access.control import AccessControl
from gateway.access.permissions import listener_access, names_clients
from gateway.api.access import Gatekeeper
from gateway.api.extension import ServingPart, ServingProcess
from gateway.api.start_error import REASONS, StartError, reason_of
from gateway.config.load import LoadedConfig
from gateway.ir.calls import Call
from gateway.policies.access.authorise import ListenerAccess
from gateway.policies.access.layers import ClientAccess
from gateway.policies.access.owners import SequenceIds
from gateway.policies.limits.sequences import SEQUENCE_IDLE
from gateway.settings.config_view import ConfigView


class ServingAccess(ServingPart):
    """Who calls, and what clients may do, in one serving process.

    Args:
        process: The serving process.

    Raises:
        StartError: A file of credentials cannot be used.
    """

    def __init__(self, process: ServingProcess) -> None:
        loaded = LoadedConfig.of(process.config)
        self._counts = process.metrics.access
        try:
            self._control = AccessControl(loaded)
        except REASONS as error:
            raise StartError(reason_of(error)) from error
        idle_s = SEQUENCE_IDLE.of(loaded.config.policies)
        self._sequence_ids = SequenceIds(idle_s, is_divided=process.count > 1)
        self._rules: tuple[LoadedConfig, Mapping[str, ListenerAccess]] | None = None

    @property
    def client_access(self) -> Gatekeeper:
        """What names the clients."""
        return self._control

    def listener_parts(
        self, config: ConfigView, listener: str, _route_of: Callable[[Call[Any]], str], /
    ) -> Iterable[object]:
        """Return what the clients of a listener may do.

        Raises:
            StartError: The callable that decides about calls cannot be imported.
        """
        loaded = LoadedConfig.of(config)
        (own,) = (each for each in loaded.config.listeners if each.name == listener)
        rules = self._rules_of(loaded).get(listener)
        external = self._control.external.layer(loaded, own)
        ids = self._sequence_ids
        ids.idle_s = SEQUENCE_IDLE.of(loaded.config.policies)
        yield ClientAccess(rules, external, ids if names_clients(loaded.config) else None)

    def _rules_of(self, loaded: LoadedConfig) -> Mapping[str, ListenerAccess]:
        """Return the rules of each listener, the same objects for one configuration."""
        if self._rules is None or self._rules[0] is not loaded:
            counts = self._counts
            counts.allow_clients(loaded.config.clients)
            found = listener_access(loaded.config, counts.denied, counts.rehearsed)
            self._rules = loaded, found
        return self._rules[1]

    async def stop(self) -> None:
        """Close the connections to the program that decides; idempotent."""
        await self._control.external.close()
