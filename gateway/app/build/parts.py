"""The parts that extensions have in the processes of a gateway.

A serving process has a `ServingParts`. The supervisor has a `LeadingParts`, and so has the only
process of a gateway without workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar

from prometheus_client.core import Metric

from gateway.api.access import Gatekeeper
from gateway.api.admin import AdminRoute
from gateway.api.extension import (
    LeadingPart,
    ModelPlacement,
    PartSetup,
    Processes,
    ReplyNotes,
    Reports,
    ServingPart,
    TrafficShift,
    check_part,
)
from gateway.api.start_error import StartError, reason_of, starting
from gateway.api.tap import CountCall, RouteTap, Tap, TappedCall
from gateway.config.load import LoadedConfig
from gateway.ir.calls import Call, InferRequest, OpaqueCall
from gateway.ir.errors import GatewayError
from gateway.processes.worker_slot import WorkerSlot
from gateway.registry import extensions
from gateway.telemetry.call_path import CallPath
from gateway.telemetry.metrics import Metrics

Setups = Mapping[str, PartSetup]
"""What the parts of a serving process begin with, by the name of the extension."""

Part = TypeVar("Part", ServingPart, LeadingPart)

NO_SETUPS: Final[Setups] = MappingProxyType({})


def _ignore(_name: str) -> None: ...


def _extension(name: str) -> str:
    """Return how errors name an extension."""
    return f"extension {name!r}"


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
    shared: dict[str, Any]


class ServingParts:
    """The parts of all extensions in one serving process.

    Args:
        parts: By the name of the extension.
    """

    def __init__(self, parts: Mapping[str, ServingPart] = MappingProxyType({})) -> None:
        self._parts = dict(parts)

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

        Raises:
            StartError: A part cannot be made, lacks a member, or misspells one.
        """
        parts: dict[str, ServingPart] = {}
        shared: dict[str, Any] = {}
        for name, extension in extensions().items():
            setup, ask = setups.get(name), partial(notify, name)
            process = _Process(
                loaded, slot.number, slot.count, setup, metrics, new_path, ask, shared
            )
            part = _made(name, "serving", ServingPart, partial(extension.serve, process))
            if part is not None:
                parts[name] = part
        return cls(parts)

    def place(self, placements: Mapping[str, ModelPlacement]) -> None:
        """Tell all parts what places models from now on, by upstream."""
        for part in self._parts.values():
            part.place(placements)

    async def status(self) -> dict[str, Any]:
        """Return the documents of all parts in the status, by their keys."""
        found: dict[str, Any] = {}
        for part in self._parts.values():
            found |= await part.status()
        return found

    @property
    def client_access(self) -> Gatekeeper:
        """What knows who calls.

        Raises:
            StartError: No part has it, or several have.
        """
        parts = self._parts.values()
        found = [part.client_access for part in parts if part.client_access is not None]
        if len(found) != 1:
            raise StartError(f"{len(found)} extensions say who calls; expected one")
        return found[0]

    @property
    def tap(self) -> Tap | None:
        """Receives the calls of all frontends; None if no part has a tap."""
        taps = [tap for part in self._parts.values() for tap in part.taps]
        return taps[0] if len(taps) == 1 else _AllTaps(taps) if taps else None

    @property
    def on_call(self) -> CountCall | None:
        """Called with each inference or unread call of a client; None if no part counts them."""
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

    def listener_parts(
        self, loaded: LoadedConfig, listener: str, route_of: Callable[[Call[Any]], str]
    ) -> Iterable[object]:
        """Return what the layers of a listener ask for by its class."""
        for part in self._parts.values():
            yield from part.listener_parts(loaded, listener, route_of)

    def reply_notes(self, loaded: LoadedConfig) -> ReplyNotes | None:
        """Return what adds notes to responses, of the first part that has any; None for nothing."""
        found = (part.reply_notes(loaded) for part in self._parts.values())
        return next((notes for notes in found if notes is not None), None)

    async def start(self) -> None:
        """Begin, before the gateway listens.

        Raises:
            StartError: A part cannot start.
        """
        await _start(self._parts)

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


class _AllTaps:
    """Several taps as one: each that chooses a call receives it."""

    def __init__(self, taps: list[Tap]) -> None:
        self._taps = taps
        # The exchange of each tap that chose a call, by the one that the frontend has.
        self._chosen: dict[int, list[tuple[Tap, TappedCall]]] = {}

    def begin(self, call: Call[Any], /) -> TappedCall | None:
        """Return the exchange of a call that a tap chooses: the last, with the tees of all."""
        chosen: list[tuple[Tap, TappedCall]] = []
        for tap in self._taps:
            exchange = tap.begin(call)
            if exchange is not None:
                chosen.append((tap, exchange))
                call = exchange.call
        if not chosen:
            return None
        self._chosen[id(chosen[-1][1])] = chosen
        return chosen[-1][1]

    def end(self, exchange: TappedCall, /) -> None:
        """Pass a finished exchange to the taps that chose it."""
        with ExitStack() as stack:  # each gets it, whatever another one raises
            for tap, own in self._chosen.pop(id(exchange)):
                if own is not exchange:
                    own.finish_as(exchange)
                stack.callback(tap.end, own)

    def rejected(self, codec: str, wire: Any, error: GatewayError, response: Any, /) -> None:
        """Pass a message that could not be decoded to every tap."""
        for tap in self._taps:
            tap.rejected(codec, wire, error, response)


def _count_all(counts: list[CountCall]) -> CountCall:
    def count(
        call: InferRequest | OpaqueCall,
        seconds: float,
        is_failed: bool,
        is_refused: bool = False,
        /,
    ) -> None:
        for each in counts:
            each(call, seconds, is_failed, is_refused)

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
        parts: dict[str, LeadingPart] = {}
        for name, extension in extensions().items():
            part = _made(name, "leading", LeadingPart, partial(extension.lead, processes))
            if part is not None:
                parts[name] = part
        return cls(parts)

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
        await _start(self._parts)

    def lead(self) -> None:
        """Begin to decide: the serving processes have started."""
        for part in self._parts.values():
            part.lead()

    async def stop(self) -> None:
        """End all parts, after the serving processes; idempotent."""
        async with AsyncExitStack() as stack:
            for part in self._parts.values():
                stack.push_async_callback(part.stop)


def _made(
    name: str, kind: str, expected: type[Any], make: Callable[[], Part | None]
) -> Part | None:
    """Return the part of an extension, which has all members of *expected*; None for none."""
    with starting(_extension(name)):
        part = make()
    if part is not None:
        try:
            check_part(f"the {kind} part of {_extension(name)}", part, expected)
        except LookupError as error:
            raise StartError(reason_of(error)) from error
    return part


async def _start(parts: Mapping[str, ServingPart | LeadingPart]) -> None:
    for name, part in parts.items():
        with starting(_extension(name)):
            await part.start()


class OwnProcess:
    """The processes of a gateway without workers: this one serves and leads.

    Args:
        config: The configuration.
    """

    count = 1

    def __init__(self, config: LoadedConfig) -> None:
        self.config = config
        self.shared: dict[str, Any] = {}
        self.serving: ServingParts | None = None

    async def exchange(
        self,
        part: str,
        document: Mapping[str, Any],
        /,
        timeout_s: float = 1.0,  # noqa: ARG002  # it replies at once
    ) -> Reports:
        """Pass a document to a part of this process; an empty report before it serves."""
        return {} if self.serving is None else {"0": self.serving.exchange(part, document)}
