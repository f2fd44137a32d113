"""The quotas of a configuration, in the processes of a gateway and in responses."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from mmap import mmap
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog
from prometheus_client.core import Metric

from gateway.api.admin import AdminRoute
from gateway.api.extension import (
    LeadingPart,
    PartSetup,
    Processes,
    ReplyNotes,
    ServingPart,
    ServingProcess,
)
from gateway.api.layer import Entries, LayerContext
from gateway.api.protocol import QuotaHeaders, QuotaNote
from gateway.api.start_error import StartError, reason_of
from gateway.concurrency.background import start_background
from gateway.config.load import LoadedConfig
from gateway.config.models import Config
from gateway.config.permissions import QuotaConfig, QuotaStoreConfig
from gateway.frontend.carriers import AttachHeaders
from gateway.ir.calls import Call
from gateway.ir.context import REQUEST_ID
from gateway.ir.identity import Identity
from gateway.policies.access.rules import AccessRule, Facts
from gateway.quotas.admin import routes_of
from gateway.quotas.budget_queue import TOLERANCE, Key, quota_of
from gateway.quotas.budgets import Budgets, Limit, LocalAccounts
from gateway.quotas.counts import HANDED_OVER, QuotaCounts
from gateway.quotas.layer import (
    SECONDS,
    Accounts,
    ApplyQuotas,
    OnRefused,
    QuotaRule,
    QuotasOfCalls,
    note_quotas,
    quota_notes,
)
from gateway.quotas.leases import (
    MOST_COUNTS,
    LeasedAccounts,
    QuotaLeader,
    Rounds,
)
from gateway.quotas.pools import PoolLeases
from gateway.quotas.store import DIRECTORY, QuotaStore
from gateway.service import Service
from gateway.settings.config_view import ConfigView
from gateway.telemetry import names
from gateway.telemetry.families import gauge_family
from gateway.wire.grpc import GrpcResponse, GrpcStatus, Metadata
from gateway.wire.heads.request_id import attach_grpc_request_id, attach_http_request_id
from gateway.wire.http import ExtendedHeaders, HttpResponse
from gateway.wire.protobuf.wire_format import (
    LEN,
    VARINT,
    put_bytes,
    put_text,
    put_varint,
    tag,
    varint,
)

log = structlog.get_logger(__name__)

A = TypeVar("A")
Document = dict[str, Any]

QUOTAS: Final = "quotas"
"""The name of the parts of processes that share budgets."""

_MS_PER_S: Final = 1000
# So many budgets are read in one turn of the event loop.
_BUDGETS: Final = 1024
_COUNTS: Final = "counts"
_COUNT_BYTES: Final = 8

_REPLY_S: Final = 0.1
"""How long a round of the leader waits for a process, while calls of others wait for the round."""


def quota_rules(config: Config) -> list[QuotaRule]:
    """Return the quotas of *config*, in the order of the file."""
    return [_quota(name, quota) for name, quota in config.quotas.items()]


def quotas_of_call(config: Config, identity: Identity, facts: Facts, route: str) -> tuple[str, ...]:
    """Return the names of the quotas of *config* that count a call.

    Args:
        config: The configuration.
        identity: The client.
        facts: What is known of the call.
        route: The route that it takes; "" for none.
    """
    found = QuotasOfCalls(quota_rules(config)).matching(identity, facts, route)
    return tuple(part.quota.name for part in found)


def _quota(name: str, quota: QuotaConfig) -> QuotaRule:
    match = quota.match
    rule = AccessRule(
        name=name,
        operations=match.operations,
        has_anonymous=match.clients is None,
        **match.conditions(),
    )
    return QuotaRule(
        name=name,
        rule=rule,
        routes=match.routes,
        by=() if quota.by == ("none",) else quota.by,
        limit=limit_of(quota),
        is_shadow=quota.mode == "shadow",
        is_told=quota.headers,
    )


@dataclass(frozen=True, slots=True)
class ListenerQuotas:
    """The quotas of a listener.

    Attributes:
        of_calls: Finds those of a call.
        accounts: Charges their budgets.
        on_refused: Counts the calls beyond a quota.
    """

    of_calls: QuotasOfCalls
    accounts: Accounts
    on_refused: OnRefused


def build(inner: Entries, at: LayerContext) -> Service | None:
    """Return the layer that applies the quotas of a listener; None for no quotas."""
    try:
        own = at.part(ListenerQuotas)
    except LookupError:  # a configuration without quotas
        return None
    return ApplyQuotas(
        inner.questions,
        own.of_calls,
        own.accounts,
        on_refused=own.on_refused,
        inference=inner.inference,
        plain=inner.plain,
    )


def limit_of(quota: QuotaConfig) -> Limit:
    """Return the limit of a quota."""
    return Limit(
        amount=float(quota.amount),
        period=quota.period,
        burst=None if quota.burst is None else float(quota.burst),
        unit=quota.unit,
    )


def limits_of(config: Config) -> dict[str, Limit]:
    """Return the limits of *config*, by the names of the budgets."""
    return {rule.budget: rule.limit for rule in quota_rules(config)}


def _shown(amount: float, unit: str) -> float:
    return round(amount, 3) if unit == SECONDS else int(amount + TOLERANCE)


def store_of(config: Config, directory: Path) -> QuotaStoreConfig | None:
    """Return the store of quotas; None for none.

    A gateway that hands over shares the counts of its state directory with the next one.
    """
    state = config.state
    if config.quota_store is not None or state is None or not config.lifecycle.hand_over:
        return config.quota_store
    file = directory / state.directory / HANDED_OVER
    return QuotaStoreConfig.model_construct(url=f"{DIRECTORY}{file}")


class StoredBudgets:
    """The budgets of a gateway, and the store that replicas share, if there is one.

    Args:
        loaded: The configuration.

    Attributes:
        limits: Those in force, by the names of the budgets.
    """

    def __init__(self, loaded: LoadedConfig) -> None:
        self.limits = limits_of(loaded.config)
        self._rules = quota_rules(loaded.config)
        self._name = os.urandom(8).hex()  # a store that comes again knows this gateway
        self.budgets = Budgets(self.limits)
        self._directory = loaded.directory
        settings = store_of(loaded.config, loaded.directory)
        self._store = None if settings is None else self._opened(settings)
        self._counts = QuotaCounts(self.budgets, loaded)
        self._changing: asyncio.Task[None] | None = None

    def _opened(self, settings: QuotaStoreConfig) -> QuotaStore:
        """Let the budgets be in the store of the settings.

        Raises:
            StartError: The file of gateways that hand over cannot be used.
        """
        leases = PoolLeases(settings.replicas)
        try:
            store = QuotaStore(settings, leases, self._name)
        except OSError as error:
            raise StartError(
                f"cannot count quotas: {reason_of(error)}; expected a file that the user of the "
                "gateway may write ('state.directory')"
            ) from error
        self.budgets.move(leases)
        return store

    async def ask(self, needs: Mapping[Key, float]) -> None:
        """Ask the store, if there is one, for what calls need."""
        if self._store is not None:
            await self._store.ask(needs)

    async def start(self) -> None:
        """Continue with the counts of an earlier process."""
        self._counts.start()
        if self._store is not None:
            await self._store.start()

    def expect(self, config: Config) -> None:
        """Have the budgets of the next configuration besides those of this one, which may stay."""
        self.budgets.change({**limits_of(config), **self.limits})

    def change(self, config: Config) -> None:
        """Follow a reload."""
        self.limits = limits_of(config)
        self._rules = quota_rules(config)
        self.budgets.change(self.limits)
        store, settings = self._store, store_of(config, self._directory)
        if store is not None and settings is not None:
            store.change(settings)
        elif store is not None:
            self.budgets.move(None)
            self._store = None
            self._do_next(store.stop)
        elif settings is not None:
            self._store = self._opened(settings)
            self._do_next(self._store.start)

    def _do_next(self, step: Callable[[], Awaitable[None]]) -> None:
        """Start or stop a store in the background, after the steps of earlier reloads."""
        earlier = self._changing

        async def change() -> None:
            if earlier is not None:
                await asyncio.gather(earlier, return_exceptions=True)
            await step()

        self._changing = start_background(change(), "change of the store of quotas")

    async def stop(self) -> None:
        """Write the counts, and return all leases; idempotent."""
        if self._changing is not None:
            await asyncio.gather(self._changing, return_exceptions=True)
        if self._store is not None:
            await self._store.stop()
        await self._counts.stop()

    def documents(self, unreported: Callable[[Key], float] = lambda _key: 0.0) -> list[Document]:
        """Return what is used of each budget.

        Args:
            unreported: Returns what processes have spent of a budget since their last reports.
        """
        rules = {rule.budget: rule for rule in self._rules}
        found = []
        for key, budget in self.budgets:
            rule, limit = rules.get(key[0]), budget.limit
            if rule is None:
                continue
            left, reset_s = budget.allowance()
            spent = unreported(key)
            left = max(0.0, left + budget.held - spent)
            used = budget.used() + spent if self._store is None else limit.capacity - left
            found.append(
                {
                    "quota": rule.name,
                    "by": dict(zip(rule.by, key[1:], strict=False)),  # those of others share one
                    "unit": limit.unit,
                    "limit": int(limit.amount),
                    "period": limit.period,
                    "mode": "shadow" if rule.is_shadow else "enforce",
                    "used": _shown(max(0.0, used), limit.unit),
                    "left": _shown(left, limit.unit),
                    "reset_s": math.ceil(reset_s),
                }
            )
        return found

    def collect(self) -> Iterable[Metric]:
        """Return the sum of what is used of each quota, in the current window or burst."""
        used: dict[str, float] = {}
        for number, (key, budget) in enumerate(list(self.budgets), start=1):
            name = quota_of(key)
            used[name] = used.get(name, 0.0) + budget.used()
            if number % _BUDGETS == 0:
                yield gauge_family(names.QUOTA_USED)  # other work may run here
        metric = gauge_family(names.QUOTA_USED)
        for name, amount in used.items():
            metric.add_metric((name,), amount)
        yield metric
        if self._store is not None:
            yield from self._store.collect()


class SpentCounts:
    """Memory in which a process counts what it spends, and which outlives it.

    Args:
        descriptor: A file of the size of the counts.

    Attributes:
        descriptor: The file.
        values: The counts.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.values = memoryview(mmap(descriptor, _COUNT_BYTES * MOST_COUNTS)).cast("d")

    @classmethod
    def new(cls) -> SpentCounts:
        """Return memory with zeros."""
        descriptor = os.memfd_create("quotas")
        os.ftruncate(descriptor, _COUNT_BYTES * MOST_COUNTS)
        return cls(descriptor)


class ServingQuotas(ServingPart):
    """The accounts of one serving process.

    A gateway without workers has the budgets itself; workers hold leases of the supervisor.

    Args:
        process: The serving process.
    """

    def __init__(self, process: ServingProcess) -> None:
        loaded = LoadedConfig.of(process.config)
        self._on_refused: OnRefused = process.metrics.access.quota_refused
        self.accounts: LocalAccounts | LeasedAccounts
        self._own: StoredBudgets | None = None
        if process.count == 1:
            self._own = StoredBudgets(loaded)
            self.accounts = LocalAccounts(self._own.budgets, ask=self._own.ask)
            process.metrics.registry.register(self._own)
        else:
            setup = process.setup or PartSetup()
            counts = setup.files.get(_COUNTS)
            self.accounts = LeasedAccounts(
                limits_of(loaded.config),
                process.notify,
                counts=None if counts is None else SpentCounts(counts).values,
                memory=str(setup.document.get(_COUNTS, "")),
                store_s=_store_s(loaded.config),
            )

    def listener_parts(
        self, config: ConfigView, listener: str, route_of: Callable[[Call[Any]], str], /
    ) -> Iterable[object]:
        """Return the quotas of a listener, if there are any."""
        loaded = LoadedConfig.of(config).config
        rules = quota_rules(loaded)
        if rules:
            (own,) = (each for each in loaded.listeners if each.name == listener)
            model = loaded.default_model_of(own)
            quotas = QuotasOfCalls(rules, listener, default_model=model, route_of=route_of)
            yield ListenerQuotas(quotas, self.accounts, self._on_refused)

    def reply_notes(self, config: ConfigView, /) -> ReplyNotes | None:
        """Let responses tell of quotas, if there are any."""
        return _NOTES if LoadedConfig.of(config).config.quotas else None

    async def start(self) -> None:
        """Continue with the counts of an earlier process."""
        if self._own is not None:
            await self._own.start()

    def change(self, config: ConfigView, /) -> None:
        """Follow a reload."""
        loaded = LoadedConfig.of(config).config
        if self._own is not None:
            self._own.change(loaded)
        if isinstance(self.accounts, LeasedAccounts):
            self.accounts.change(limits_of(loaded))
            self.accounts.store_s = _store_s(loaded)

    def exchange(self, document: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Reply to the leader, or to `OnlyQuotas`."""
        if isinstance(self.accounts, LeasedAccounts):
            return self.accounts.exchange(document)
        return {} if self._own is None else {"budgets": self._own.documents()}

    async def stop(self) -> None:
        """Write the counts; idempotent."""
        if self._own is not None:
            await self._own.stop()


def _store_s(config: Config) -> float:
    """Return how long a question to the store may take; 0 without a store."""
    return 0.0 if config.quota_store is None else config.quota_store.timeout


class OnlyQuotas(LeadingPart):
    """The quotas of a gateway without workers, whose only process has the budgets.

    Args:
        processes: This process.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    @property
    def routes(self) -> Sequence[AdminRoute]:
        """What is used."""
        return routes_of(self.budgets)

    async def budgets(self) -> list[Document]:
        """Return what is used of each budget."""
        reports = await self._processes.exchange(QUOTAS, {})
        return [each for report in reports.values() for each in (report or {}).get("budgets", ())]


class LeadingQuotas(LeadingPart):
    """The budgets of a gateway with workers, in the supervisor.

    Args:
        processes: All processes of the gateway.
    """

    def __init__(self, processes: Processes) -> None:
        self._own = StoredBudgets(LoadedConfig.of(processes.config))

        async def exchange(document: Mapping[str, Any]) -> Mapping[str, Any]:
            return await processes.exchange(QUOTAS, document, timeout_s=_REPLY_S)

        self._leader = QuotaLeader(self._own.budgets, exchange, processes.count, self._own.ask)
        self._rounds = Rounds(self._leader)
        self._leader.on_answer = self._rounds.notice
        self._counts: dict[int, SpentCounts] = {}
        self._numbers = count(1)

    def setup(self, number: int, /) -> PartSetup:
        """Return the memory in which a process counts what it spends."""
        earlier = self._counts.get(number)
        if earlier is not None:
            os.close(earlier.descriptor)  # its memory stays while the leader needs it
        counts = self._counts[number] = SpentCounts.new()
        name = str(next(self._numbers))
        self._leader.counts[name] = counts.values
        return PartSetup({_COUNTS: name}, files={_COUNTS: counts.descriptor})

    @property
    def routes(self) -> Sequence[AdminRoute]:
        """What is used."""
        return routes_of(self.budgets)

    async def budgets(self) -> list[Document]:
        """Return what is used of each budget."""
        return self._own.documents(self._leader.unreported)

    def collect(self) -> Iterable[Metric]:
        """Return what is used."""
        return self._own.collect()

    def check_reload(self, config: ConfigView, /) -> None:
        """Have the budgets of the next configuration before a worker asks for them."""
        self._own.expect(LoadedConfig.of(config).config)

    async def change(self, config: ConfigView, /) -> None:
        """Follow a reload, and take back what processes hold of quotas that it has changed."""
        before = self._own.limits
        self._own.change(LoadedConfig.of(config).config)
        limits = self._own.limits
        await self._leader.change({name for name in before if before[name] != limits.get(name)})

    def on_notice(self) -> None:
        """Make a round soon."""
        self._rounds.notice()

    async def start(self) -> None:
        """Continue with the counts of an earlier process."""
        await self._own.start()

    def lead(self) -> None:
        """Begin to make rounds."""
        self._rounds.start()

    async def stop(self) -> None:
        """End; idempotent."""
        await self._rounds.stop()
        self._leader.take_back(set())  # all processes have ended
        await self._own.stop()
        while self._counts:
            os.close(self._counts.popitem()[1].descriptor)


def rate_limits(states: Sequence[QuotaNote]) -> tuple[str, str]:
    """Return the values of `RateLimit-Policy` and of `RateLimit`, which tell clients of quotas.

    Source: draft-ietf-httpapi-ratelimit-headers-10.
    """
    if len(states) == 1:  # most calls: half the time of the lists below
        only = states[0]
        return (
            _policy(only.name, only.limit, only.unit, only.window_s),
            f'"{only.name}";r={only.left};t={only.reset_s}',
        )
    policies = [_policy(one.name, one.limit, one.unit, one.window_s) for one in states]
    left = [f'"{one.name}";r={one.left};t={one.reset_s}' for one in states]
    return ", ".join(policies), ", ".join(left)


@lru_cache(1024)  # it is the same for all calls of a window
def _policy(name: str, amount: int, unit: str, window_s: int) -> str:
    shown = "" if unit == "calls" else f';qu="{unit}"'
    return f'"{name}";q={amount}{shown};w={window_s}'


def telling_http(own: QuotaHeaders | None = None) -> AttachHeaders[HttpResponse]:
    """Return what attaches the headers of quotas and the request id to a response.

    Args:
        own: Returns further headers of the protocol; None for none.
    """

    def attach(response: HttpResponse, request_id: str) -> HttpResponse:
        notes = quota_notes()
        if notes is None:
            return attach_http_request_id(response, request_id)
        note_quotas(None)
        states = notes.states()
        if not states:
            return attach_http_request_id(response, request_id)
        policies, left = rate_limits(states)
        headers: tuple[tuple[str, str], ...]
        headers = (("RateLimit-Policy", policies), ("RateLimit", left))
        if own is not None:
            headers += own(states)
        return HttpResponse(
            response.status,
            ExtendedHeaders(response.headers, headers),
            response.body,
            response.is_compressible,
            request_id,
        )

    return attach


def tell_grpc(response: GrpcResponse, request_id: str) -> GrpcResponse:
    """Attach the trailers of quotas and the request id to a response."""
    notes = quota_notes()
    if notes is None:
        return attach_grpc_request_id(response, request_id)
    note_quotas(None)
    trailers: Metadata = response.metadata
    states = notes.states()
    if states:
        policies, left = rate_limits(states)
        trailers = (*trailers, ("ratelimit-policy", policies), ("ratelimit", left))
    if notes.wait_s and response.status is not GrpcStatus.OK:
        trailers = (*trailers, *_retry_trailers(response, notes.wait_s))
    return GrpcResponse(
        response.message, response.status, response.details, (*trailers, (REQUEST_ID, request_id))
    )


_NOTES: Final = ReplyNotes(telling_http, tell_grpc)
_CODE: Final = varint(tag(1, VARINT))
_MESSAGE: Final = varint(tag(2, LEN))
_DETAILS: Final = varint(tag(3, LEN))
_TYPE_URL: Final = varint(tag(1, LEN))
_VALUE: Final = varint(tag(2, LEN))
_DELAY: Final = varint(tag(1, LEN))
_SECONDS: Final = varint(tag(1, VARINT))
_NANOS: Final = varint(tag(2, VARINT))
_RETRY_INFO: Final = "type.googleapis.com/google.rpc.RetryInfo"


def _retry_trailers(response: GrpcResponse, wait_s: float) -> list[tuple[str, str | bytes]]:
    """Return the trailers that tell a client when to try again.

    Source: google/rpc/error_details.proto; gRPC proposal A6, "Pushback".
    """
    whole = math.floor(wait_s)
    duration, info, detail, status = bytearray(), bytearray(), bytearray(), bytearray()
    put_varint(duration, _SECONDS, whole)
    put_varint(duration, _NANOS, int((wait_s - whole) * 1e9))
    put_bytes(info, _DELAY, duration)
    put_text(detail, _TYPE_URL, _RETRY_INFO)
    put_bytes(detail, _VALUE, info)
    put_varint(status, _CODE, int(response.status))
    put_text(status, _MESSAGE, response.details)
    put_bytes(status, _DETAILS, detail)
    return [
        ("grpc-status-details-bin", bytes(status)),
        ("grpc-retry-pushback-ms", str(math.ceil(wait_s * _MS_PER_S))),
    ]
