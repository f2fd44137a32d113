"""The parts that extensions have in the processes of a gateway.

A serving process has a `ServingParts`. The supervisor has a `LeadingParts`, and so has the only
process of a gateway without workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, cast

from prometheus_client.core import Metric

from gateway.api.admin import AdminRoute
from gateway.api.extension import (
    LeadingPart,
    PartSetup,
    Processes,
    Reports,
    ServingPart,
    TrafficShift,
)
from gateway.api.tap import CountCall, RouteTap, Tap, TappedCall
from gateway.app.quotas import QUOTAS, LeadingQuotas, ServingQuotas
from gateway.app.residency import RESIDENCY, HeldModels, LeadingResidency, ServingResidency
from gateway.app.worker_slot import WorkerSlot
from gateway.config.load import LoadedConfig
from gateway.ir.calls import Call, InferRequest
from gateway.ir.errors import GatewayError
from gateway.policies.access.quotas.budgets import Budgets, LocalAccounts
from gateway.policies.access.quotas.layer import Accounts
from gateway.registry import extensions
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.metrics import Metrics

Setups = Mapping[str, PartSetup]
"""What the parts of a serving process begin with, by the name of the extension."""

NO_SETUPS: Final[Setups] = MappingProxyType({})


def _ignore(_name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Process:
    """One serving process, as one extension sees it; see `api.extension.ServingProcess`."""

    config: LoadedConfig
    number: int
    count: int
    setup: PartSetup | None
    metrics: Metrics
    new_path: Callable[..., CallPath]
    notify: Callable[[], None]


class ServingParts:
    """The parts of all extensions in one serving process.

    Args:
        parts: By the name of the extension.
        accounts: Charges the budgets of quotas; None for no budgets.

    Attributes:
        accounts: Charge the budgets of quotas.
    """

    def __init__(
        self,
        parts: Mapping[str, ServingPart] = MappingProxyType({}),
        accounts: Accounts | None = None,
    ) -> None:
        self._parts = dict(parts)
        self.accounts = LocalAccounts(Budgets({})) if accounts is None else accounts

    @classmethod
    def of(
        cls,
        loaded: LoadedConfig,
        slot: WorkerSlot,
        metrics: Metrics,
        new_path: Callable[..., CallPath],
        setups: Setups = NO_SETUPS,
        notify: Callable[[str], None] = _ignore,
    ) -> ServingParts:
        """Return the parts that a configuration needs.

        Args:
            loaded: The configuration.
            slot: The number of the process.
            metrics: The metrics of the process.
            new_path: Makes the record of a call's path.
            setups: What the leading process gives each part.
            notify: Called with the name of an extension whose leading part is to decide soon.
        """
        parts: dict[str, ServingPart] = {}
        for name, extension in extensions().items():
            process = _Process(
                loaded,
                slot.number,
                slot.count,
                setups.get(name),
                metrics,
                new_path,
                partial(notify, name),
            )
            part = extension.serve(process)
            if part is not None:
                parts[name] = part
        parts[RESIDENCY] = ServingResidency()
        notify_quotas = partial(notify, QUOTAS)
        own = _Process(loaded, slot.number, slot.count, None, metrics, new_path, notify_quotas)
        quotas = parts[QUOTAS] = ServingQuotas(own)
        return cls(parts, quotas.accounts)

    def __getitem__(self, name: str) -> ServingPart:
        """Return the part of an extension. Raises KeyError."""
        return self._parts[name]

    def hold(self, held: Mapping[str, HeldModels]) -> None:
        """Let operators change the loaded models of upstreams, by name, from now on."""
        part = self._parts.get(RESIDENCY)
        if isinstance(part, ServingResidency):
            part.held = held

    @property
    def tap(self) -> Tap | None:
        """Receives the calls of all frontends; None if no part has a tap."""
        taps = [tap for part in self._parts.values() for tap in part.taps]
        return taps[0] if len(taps) == 1 else _FirstOfTaps(taps) if taps else None

    @property
    def on_call(self) -> CountCall | None:
        """Called with each inference of a client; None if no part counts them."""
        counts = [part.on_call for part in self._parts.values() if part.on_call is not None]
        return counts[0] if len(counts) == 1 else _count_all(counts) if counts else None

    def route_taps(self, route: str) -> list[RouteTap]:
        """Return what receives chosen calls of a route."""
        found = [part.route_taps().get(route) for part in self._parts.values()]
        return [tap for tap in found if tap is not None]

    def shifts(self, loaded: LoadedConfig) -> Mapping[str, TrafficShift]:
        """Return the moved share of each route that has one, by the name of the route."""
        found: dict[str, TrafficShift] = {}
        for part in self._parts.values():
            found |= part.shifts(loaded)
        return found

    async def start(self) -> None:
        """Begin, before the gateway listens.

        Raises:
            StartError: A part cannot start.
        """
        for part in self._parts.values():
            await part.start()

    def change(self, loaded: LoadedConfig) -> None:
        """Follow a reload."""
        for part in self._parts.values():
            part.change(loaded)

    def exchange(self, name: str, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Pass a document of the leading part to the part of an extension; return its reply."""
        part = self._parts.get(name)
        return {} if part is None else part.exchange(document)

    async def stop(self) -> None:
        """Finish all parts; idempotent."""
        async with AsyncExitStack() as stack:
            for part in self._parts.values():
                stack.push_async_callback(part.stop)


class _FirstOfTaps:
    """Several taps as one: the first that chooses a call receives it."""

    def __init__(self, taps: list[Tap]) -> None:
        self._taps = taps
        self._owners: dict[int, Tap] = {}

    def begin(self, call: Call[Any], /) -> TappedCall | None:
        """Return the exchange of a call that a tap chooses."""
        for tap in self._taps:
            exchange = tap.begin(call)
            if exchange is not None:
                self._owners[id(exchange)] = tap
                return exchange
        return None

    def end(self, exchange: TappedCall, /) -> None:
        """Pass a finished exchange to the tap that chose it."""
        self._owners.pop(id(exchange)).end(exchange)

    def rejected(self, codec: str, wire: Any, error: GatewayError, response: Any, /) -> None:
        """Pass a message that could not be decoded to every tap."""
        for tap in self._taps:
            tap.rejected(codec, wire, error, response)


def _count_all(counts: list[CountCall]) -> CountCall:
    def count(request: InferRequest, seconds: float, is_failed: bool) -> None:
        for each in counts:
            each(request, seconds, is_failed)

    return count


class LeadingParts:
    """The parts of all extensions in the leading process.

    Args:
        parts: By the name of the extension.
    """

    def __init__(self, parts: Mapping[str, LeadingPart]) -> None:
        self._parts = dict(parts)

    @classmethod
    def of(cls, processes: Processes) -> LeadingParts:
        """Return the parts that a configuration needs.

        Args:
            processes: All processes of the gateway.

        Raises:
            StartError: A part cannot be used, for example because of its files.
        """
        found = {name: extension.lead(processes) for name, extension in extensions().items()}
        parts = {name: _completed(part) for name, part in found.items() if part is not None}
        parts[RESIDENCY] = LeadingResidency(processes)
        if processes.count > 1:
            parts[QUOTAS] = LeadingQuotas(processes)
        return cls(parts)

    def __getitem__(self, name: str) -> LeadingPart:
        """Return the part of an extension. Raises KeyError."""
        return self._parts[name]

    @property
    def routes(self) -> tuple[AdminRoute, ...]:
        """The routes of all parts."""
        return tuple(route for part in self._parts.values() for route in part.routes)

    def moved(self, loaded: LoadedConfig) -> dict[str, tuple[str, float]]:
        """Return the target that replaces the others, and its percentage, by route."""
        found: dict[str, tuple[str, float]] = {}
        for part in self._parts.values():
            found.update(part.moved(loaded))
        return found

    def events(self, loaded: LoadedConfig) -> dict[str, Any]:
        """Return what listeners of the admin port are told, by the name of the event."""
        found: dict[str, Any] = {}
        for part in self._parts.values():
            found.update(part.events(loaded))
        return found

    def setups(self, number: int) -> dict[str, PartSetup]:
        """Return what the parts of the serving process *number* begin with."""
        return {name: part.setup(number) for name, part in self._parts.items()}

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of all parts."""
        for part in self._parts.values():
            yield from part.collect()

    def check_reload(self, loaded: LoadedConfig) -> None:
        """Check that a configuration may replace the one in force.

        Raises:
            ConfigError: A part refuses it.
        """
        for part in self._parts.values():
            part.check_reload(loaded)

    async def change(self, loaded: LoadedConfig) -> None:
        """Follow a configuration that `check_reload` has accepted.

        Raises:
            StartError: A part cannot use it.
        """
        for part in self._parts.values():
            await part.change(loaded)

    def on_notice(self, name: str) -> None:
        """Let the part of an extension decide soon."""
        part = self._parts.get(name)
        if part is not None:
            part.on_notice()

    def on_process_ended(self, metrics: Any) -> Any:
        """Return the last metrics of a serving process that died, corrected for what it lost."""
        for part in self._parts.values():
            metrics = part.on_process_ended(metrics)
        return metrics

    async def start(self) -> None:
        """Begin, before the serving processes start.

        Raises:
            StartError: A part cannot start.
        """
        for part in self._parts.values():
            await part.start()

    def lead(self) -> None:
        """Begin to decide: the serving processes have started."""
        for part in self._parts.values():
            part.lead()

    async def stop(self) -> None:
        """End all parts, after the serving processes; idempotent."""
        async with AsyncExitStack() as stack:
            for part in self._parts.values():
                stack.push_async_callback(part.stop)


class _CompletedPart:
    """A part of a package, with the defaults of `LeadingPart` for what it leaves out."""

    def __init__(self, own: Any) -> None:
        self._own = own
        self._defaults = LeadingPart()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._own, name, None)
        return getattr(self._defaults, name) if found is None else found


def _completed(part: object) -> LeadingPart:
    """Return a part that has every member of `LeadingPart`, even if it is no subclass."""
    return part if isinstance(part, LeadingPart) else cast("LeadingPart", _CompletedPart(part))


class OwnProcess:
    """The processes of a gateway without workers: this one serves and leads.

    Args:
        config: The configuration.
    """

    count = 1

    def __init__(self, config: LoadedConfig) -> None:
        self.config = config
        self.serving: ServingParts | None = None

    async def exchange(self, part: str, document: Mapping[str, Any], /) -> Reports:
        """Pass a document to a part of this process; an empty report before it serves."""
        return {} if self.serving is None else {"0": self.serving.exchange(part, document)}
