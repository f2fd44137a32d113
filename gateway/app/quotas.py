"""The quotas of a configuration, in the processes of a gateway and in responses."""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, TypeVar

import structlog
from prometheus_client.core import Metric

from gateway.api.extension import (
    ConfigView,
    LeadingPart,
    Processes,
    ServingPart,
    ServingProcess,
)
from gateway.api.protocol import QuotaHeaders, QuotaNote
from gateway.app.quota_counts import QuotaCounts
from gateway.app.quota_store import QuotaStore
from gateway.concurrency.background import start_background
from gateway.config.load import LoadedConfig
from gateway.config.models import Config, ListenerConfig
from gateway.config.permissions import QuotaConfig, QuotaStoreConfig
from gateway.frontend.carriers import AttachRequestId
from gateway.ir.calls import Call
from gateway.ir.context import REQUEST_ID
from gateway.policies.access.quotas.budgets import Budgets, Key, Limit, LocalAccounts
from gateway.policies.access.quotas.layer import (
    Accounts,
    ApplyQuotas,
    OnRefused,
    QuotaRule,
    QuotasOfCalls,
    QuotaState,
    note_quotas,
    quota_notes,
)
from gateway.policies.access.quotas.leases import LeasedAccounts, QuotaLeader, Rounds
from gateway.policies.access.quotas.pools import PoolLeases
from gateway.policies.access.rules import AccessRule
from gateway.telemetry import names
from gateway.telemetry.families import gauge_family
from gateway.wire.grpc import GrpcResponse, GrpcStatus, Metadata
from gateway.wire.http import ExtendedHeaders, HttpResponse
from gateway.wire.protobuf import LEN, VARINT, put_bytes, put_text, put_varint, tag, varint
from gateway.wire.request_id import attach_grpc_request_id, attach_http_request_id

log = structlog.get_logger(__name__)

A = TypeVar("A")

QUOTAS: Final = "quotas"
"""The name of the parts of processes that share budgets."""

_MS_PER_S: Final = 1000


def quota_rules(config: Config) -> list[QuotaRule]:
    """Return the quotas of *config*, in the order of the file."""
    return [_quota(name, quota) for name, quota in config.quotas.items()]


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


def quota_layers(
    config: Config,
    route_of: Callable[[Call[Any]], str],
    accounts: Accounts,
    on_refused: OnRefused,
) -> dict[str, Callable[..., ApplyQuotas]]:
    """Return what builds the layer that applies quotas, by listener; empty without quotas.

    Args:
        config: The configuration.
        route_of: Returns the route of a call; "" for none.
        accounts: Charges the budgets.
        on_refused: Counts the calls beyond a quota.
    """
    rules = quota_rules(config)

    def layer(listener: ListenerConfig) -> Callable[..., ApplyQuotas]:
        default_model = config.default_model_of(listener)
        quotas = QuotasOfCalls(rules, listener.name, default_model=default_model, route_of=route_of)
        return partial(ApplyQuotas, quotas=quotas, accounts=accounts, on_refused=on_refused)

    return {listener.name: layer(listener) for listener in (config.listeners if rules else ())}


def limit_of(quota: QuotaConfig) -> Limit:
    """Return the limit of a quota."""
    return Limit(
        amount=float(quota.amount),
        period=quota.period,
        burst=None if quota.burst is None else float(quota.burst),
        unit=quota.unit,
    )


def limits_of(config: Config) -> dict[str, Limit]:
    """Return the limit of each quota of *config*."""
    return {name: limit_of(quota) for name, quota in config.quotas.items()}


class StoredBudgets:
    """The budgets of a gateway, and the store that replicas share, if there is one.

    Args:
        loaded: The configuration.
    """

    def __init__(self, loaded: LoadedConfig) -> None:
        self._limits = limits_of(loaded.config)
        self._name = os.urandom(8).hex()  # a store that comes again knows this gateway
        self.budgets = Budgets(self._limits)
        settings = loaded.config.quota_store
        self._store = None if settings is None else self._opened(settings)
        self._counts = QuotaCounts(self.budgets, loaded)
        self._changing: asyncio.Task[None] | None = None

    def _opened(self, settings: QuotaStoreConfig) -> QuotaStore:
        """Let the budgets be in the store of the settings."""
        leases = PoolLeases(settings.replicas)
        self.budgets.move(leases)
        return QuotaStore(settings, leases, self._name)

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
        """Have the budgets of the next configuration besides those of this one."""
        self.budgets.change({**self._limits, **limits_of(config)})

    def change(self, config: Config) -> None:
        """Follow a reload."""
        self._limits = limits_of(config)
        self.budgets.change(self._limits)
        store, settings = self._store, config.quota_store
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

    def collect(self) -> Iterable[Metric]:
        """Return the sum of what is used of each quota, in the current window or burst."""
        used: dict[str, float] = {}
        for key, budget in self.budgets:
            used[key[0]] = used.get(key[0], 0.0) + budget.used()
        metric = gauge_family(names.QUOTA_USED)
        for name, amount in used.items():
            metric.add_metric((name,), amount)
        yield metric
        if self._store is not None:
            yield from self._store.collect()


class ServingQuotas(ServingPart):
    """The accounts of one serving process.

    A gateway without workers has the budgets itself; workers hold leases of the supervisor.

    Args:
        process: The serving process.
    """

    def __init__(self, process: ServingProcess) -> None:
        loaded = LoadedConfig.of(process.config)
        self.accounts: LocalAccounts | LeasedAccounts
        self._own: StoredBudgets | None = None
        if process.count == 1:
            self._own = StoredBudgets(loaded)
            self.accounts = LocalAccounts(self._own.budgets, ask=self._own.ask)
            process.metrics.registry.register(self._own)
        else:
            self.accounts = LeasedAccounts(limits_of(loaded.config), process.notify)

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

    def exchange(self, document: Mapping[str, Any], /) -> Mapping[str, Any]:
        """Reply to the leader."""
        return self.accounts.exchange(document) if isinstance(self.accounts, LeasedAccounts) else {}

    async def stop(self) -> None:
        """Write the counts; idempotent."""
        if self._own is not None:
            await self._own.stop()


class LeadingQuotas(LeadingPart):
    """The budgets of a gateway with workers, in the supervisor.

    Args:
        processes: All processes of the gateway.
    """

    def __init__(self, processes: Processes) -> None:
        self._own = StoredBudgets(LoadedConfig.of(processes.config))

        async def exchange(document: Mapping[str, Any]) -> Mapping[str, Any]:
            return await processes.exchange(QUOTAS, document)

        leader = QuotaLeader(self._own.budgets, exchange, processes.count, self._own.ask)
        self._rounds = Rounds(leader, lambda: None)

    def collect(self) -> Iterable[Metric]:
        """Return what is used."""
        return self._own.collect()

    def check_reload(self, config: ConfigView, /) -> None:
        """Have the budgets of the next configuration before a worker asks for them."""
        self._own.expect(LoadedConfig.of(config).config)

    async def change(self, config: ConfigView, /) -> None:
        """Forget the quotas that the configuration no longer has."""
        self._own.change(LoadedConfig.of(config).config)

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
        await self._own.stop()


def rate_limits(states: Sequence[QuotaState]) -> tuple[str, str]:
    """Return the values of `RateLimit-Policy` and of `RateLimit`, which tell clients of quotas.

    Source: draft-ietf-httpapi-ratelimit-headers-10.
    """
    if len(states) == 1:  # most calls: half the time of the lists below
        only = states[0]
        return (
            _policy(only.name, only.limit.amount, only.limit.unit, only.window_s),
            f'"{only.name}";r={only.left};t={only.reset_s}',
        )
    policies = [_policy(one.name, one.limit.amount, one.limit.unit, one.window_s) for one in states]
    left = [f'"{one.name}";r={one.left};t={one.reset_s}' for one in states]
    return ", ".join(policies), ", ".join(left)


@lru_cache(1024)  # it is the same for all calls of a window
def _policy(name: str, amount: float, unit: str, window_s: int) -> str:
    shown = "" if unit == "calls" else f';qu="{unit}"'
    return f'"{name}";q={amount:.0f}{shown};w={window_s}'


def telling_http(own: QuotaHeaders | None = None) -> AttachRequestId[HttpResponse]:
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
            headers += own(
                [
                    QuotaNote(one.limit.unit, int(one.limit.amount), one.left, one.reset_s)
                    for one in states
                ]
            )
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
