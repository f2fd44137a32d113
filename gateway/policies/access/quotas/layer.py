"""ApplyQuotas: charges calls to the quotas that match them, and refuses those beyond a quota."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.calls import Call, InferRequest
from gateway.ir.errors import GatewayError, NotSent, QuotaExceeded, TooLarge
from gateway.ir.identity import GATEWAY, Identity
from gateway.ir.streams import on_stream_end
from gateway.policies.access.operations import operation_of
from gateway.policies.access.quotas.budgets import BudgetState, Charge, Key, Limit, Shortage
from gateway.policies.access.rules import AccessRule, CompiledRule, Facts, Matches, Size, globs
from gateway.policies.access.sizes import size_of
from gateway.service import Service
from gateway.telemetry.call_path import CallPath, current_path

R = TypeVar("R")

CLIENT: Final = "client"
GROUP: Final = "group"
MODEL: Final = "model"
ROUTE: Final = "route"
LABEL: Final = "label:"
NONE: Final = "none"
SECONDS: Final = "seconds"
_MAX_PLANS: Final = 8192
_LEAST_WAIT_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRule:
    """One quota.

    Attributes:
        name: Of the quota.
        rule: Which calls it counts.
        routes: Patterns of the routes that it counts; None for all.
        by: What has a budget of its own: "client", "group", "model", "route", "label:NAME"; empty
            for one budget.
        limit: How much it allows.
        is_shadow: Whether it only counts.
        is_told: Whether clients are told of it.
    """

    name: str
    rule: AccessRule
    routes: tuple[str, ...] | None = None
    by: tuple[str, ...] = (CLIENT,)
    limit: Limit
    is_shadow: bool = False
    is_told: bool = True


class Accounts(Protocol):
    """Charges budgets; see `budgets.LocalAccounts`."""

    def charge(self, charges: Sequence[Charge], /) -> list[Shortage]:
        """Take all charges, or none of them; return those without room."""
        ...

    async def wait(self, charges: Sequence[Charge], /) -> list[Shortage]:
        """Do the same after asking other processes for what they have."""
        ...

    def take(self, key: Key, amount: float, /) -> None:
        """Take an amount that is known only after the call."""
        ...

    def give(self, key: Key, amount: float, since: float, /) -> None:
        """Give back a charge."""
        ...

    def state(self, key: Key, /) -> BudgetState | None:
        """Return what a client is told of a budget."""
        ...


class QuotaState(NamedTuple):
    """What the client of a call is told of a quota.

    Attributes:
        name: Of the quota.
        budget: The state of its budget.
        is_refused: Whether it refused the call.
    """

    name: str
    budget: BudgetState
    is_refused: bool


class QuotaNotes(NamedTuple):
    """What the client of a call is told.

    Attributes:
        states: Of the quotas that count the call.
        wait_s: After a refusal, the seconds until another call may succeed; 0 for no refusal.
    """

    states: Sequence[QuotaState]
    wait_s: float = 0.0


QUOTA_NOTES: Final[ContextVar[Callable[[], QuotaNotes] | None]] = ContextVar(
    "gateway_quota_notes", default=None
)
"""Returns what the client of the current call is told; None for nothing.

The layer sets it, and what writes the response reads and clears it.
"""

OnRefused = Callable[[str, Identity, str], object]
"""Called with the quota, the client and the mode, for each call beyond a quota."""


class _Part(NamedTuple):
    """One quota that counts a call, and the keys of its budgets."""

    quota: QuotaRule
    keys: tuple[Key, ...]


class QuotasOfCalls:
    """Finds the quotas that count a call, and their budgets.

    Args:
        quotas: In the order of the file.
        listener: Name of the listener.
        default_model: Model of calls that name none; "" for none.
        route_of: Returns the route of a call; "" for none.
    """

    def __init__(
        self,
        quotas: Sequence[QuotaRule],
        listener: str = "",
        *,
        default_model: str = "",
        route_of: Callable[[Call[Any]], str] = lambda _call: "",
    ) -> None:
        self._quotas = [
            (quota, CompiledRule(quota.rule), None if quota.routes is None else globs(quota.routes))
            for quota in quotas
        ]
        self._listener = listener
        self._default_model = default_model
        self._route_of = route_of
        self._needs_route = any(ROUTE in each.by or each.routes is not None for each in quotas)
        self._found: BoundedDict[tuple[Identity, Facts, str], tuple[_Part, ...]]
        self._found = BoundedDict(_MAX_PLANS)

    def of(self, call: Call[Any], identity: Identity) -> tuple[_Part, ...]:
        """Return the quotas that count *call*."""
        model = call.model
        name, version = ("", "") if model is None else (model.name, model.version)
        facts = Facts(
            operation_of(call),
            name or self._default_model or None,
            version,
            call.context.protocol,
            self._listener,
        )
        route = self._route_of(call) if self._needs_route else ""
        key = identity, facts, route
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = tuple(self.matching(identity, facts, route))
        return found

    def matching(self, identity: Identity, facts: Facts, route: str) -> list[_Part]:
        """Return the quotas that count a call with these facts."""
        return [
            _Part(quota, _keys(quota, identity, facts, route))
            for quota, rule, routes in self._quotas
            if rule.has_call(facts)
            and rule.has_client(identity)
            and rule.has_claims_of(identity)
            and _has_route(routes, route)
        ]


def _has_route(routes: Matches | None, route: str) -> bool:
    return routes is None or routes(route)


def _keys(quota: QuotaRule, identity: Identity, facts: Facts, route: str) -> tuple[Key, ...]:
    """Return the budgets of a call: one, or one for each group of the client."""
    keys: list[Key] = [(quota.name,)]
    for by in quota.by:
        if by == GROUP:
            values: Sequence[str] = sorted(identity.groups) or [""]
        elif by == CLIENT:
            values = [identity.name]
        elif by == MODEL:
            values = [facts.model or ""]
        elif by == ROUTE:
            values = [route]
        else:
            values = [identity.labels.get(by.removeprefix(LABEL), "")]
        keys = [(*key, value) for key in keys for value in values]
    return tuple(keys)


class ApplyQuotas:
    """Refuses calls beyond a quota, and charges all others.

    Args:
        inner: The service to call.
        quotas: Finds the quotas of calls.
        accounts: Charges budgets.
        on_refused: Counts the calls beyond a quota.
        inference: Handles each InferRequest; None for *inner*.
        utc: Seconds since 1970.
    """

    def __init__(
        self,
        inner: Service,
        quotas: QuotasOfCalls,
        accounts: Accounts,
        *,
        on_refused: OnRefused = lambda _quota, _identity, _mode: None,
        inference: Service | None = None,
        utc: Callable[[], float] = time.time,  # noqa: TID251  # calendar windows are those of UTC
    ) -> None:
        self._inner = inner
        self._inference = inner if inference is None else inference
        self._quotas = quotas
        self._accounts = accounts
        self._on_refused = on_refused
        self._utc = utc

    async def __call__(self, call: Call[R], /) -> R:
        """Call *inner*.

        Raises:
            QuotaExceeded: A quota is used up.
            TooLarge: The call is larger than a quota allows at any time.
        """
        identity = call.context.client.identity
        parts = () if identity is GATEWAY else self._quotas.of(call, identity)
        inner = self._inference if type(call) is InferRequest else self._inner
        if not parts:
            return await inner(call)
        charges = self._charges(call, parts)
        short = self._accounts.charge(charges)
        if short:
            short = await self._shortage(call, identity, parts, charges, short)
        taken = [each for each in charges if not any(each == one.charge for one in short)]
        since = self._utc()
        path = current_path()
        self._note(parts)
        try:
            reply = await inner(call)
        except BaseException as error:
            if _reached_no_target(error, path):
                for each in taken:
                    self._accounts.give(each.key, each.amount, since)
            else:
                self._charge_time(parts, path)
            raise
        return on_stream_end(call, reply, lambda _error: self._charge_time(parts, path))

    def _charges(self, call: Call[Any], parts: Sequence[_Part]) -> list[Charge]:
        """Return what *call* takes of its budgets.

        Raises:
            TooLarge: It is more than a quota allows at any time.
        """
        size: Size | None = None
        charges = []
        for quota, keys in parts:
            amount, unit = 1.0, quota.limit.unit
            if unit == SECONDS:
                amount = 0.0
            elif unit != "calls":
                size = size_of(call) if size is None else size
                amount = float(size.elements if unit == "elements" else size.size_bytes)
                if amount > quota.limit.capacity and not quota.is_shadow:
                    raise TooLarge(
                        f"the inputs have {amount:.0f} {unit}, and quota {quota.name!r} allows "
                        f"{quota.limit.capacity:.0f} at once",
                        model=call.model,
                        limit="quotas",
                    )
            charges += [Charge(key, amount, quota.is_shadow) for key in keys]
        return charges

    async def _shortage(
        self,
        call: Call[Any],
        identity: Identity,
        parts: Sequence[_Part],
        charges: Sequence[Charge],
        short: list[Shortage],
    ) -> list[Shortage]:
        """Return the shortages of quotas that only count.

        Raises:
            QuotaExceeded: One that is enforced has no room.
        """
        if any(not one.wait_s for one in short):
            short = await self._accounts.wait(charges)
        for one in short:
            mode = "shadow" if one.charge.is_shadow else "enforce"
            self._on_refused(one.charge.key[0], identity, mode)
        refusing = [one for one in short if not one.charge.is_shadow]
        if not refusing:
            return short
        wait_s = max(_LEAST_WAIT_S, *(one.wait_s for one in refusing))
        self._note(parts, {one.charge.key for one in refusing}, wait_s)
        names = " and ".join(sorted({repr(one.charge.key[0]) for one in refusing}))
        error = QuotaExceeded(f"this client has used up the quota {names}", model=call.model)
        error.limit = "quotas"
        error.retry_after_s = wait_s
        raise error

    def _note(
        self, parts: Sequence[_Part], refused: AbstractSet[Key] = frozenset(), wait_s: float = 0.0
    ) -> None:
        QUOTA_NOTES.set(lambda: QuotaNotes(self._states(parts, refused), wait_s))

    def _states(self, parts: Sequence[_Part], refused: AbstractSet[Key]) -> list[QuotaState]:
        states = []
        for quota, keys in parts:
            if not quota.is_told or quota.is_shadow:
                continue
            found = [(key, self._accounts.state(key)) for key in keys]
            left = [state for _, state in found if state is not None]
            if left:
                state = min(left, key=lambda each: each.left)
                states.append(QuotaState(quota.name, state, not refused.isdisjoint(keys)))
        return states

    def _charge_time(self, parts: Sequence[_Part], path: CallPath | None) -> None:
        """Take the seconds that the target of a call took."""
        seconds = 0.0 if path is None else path.upstream_s
        if not seconds:
            return
        for quota, keys in parts:
            if quota.limit.unit == SECONDS:
                for key in keys:
                    self._accounts.take(key, seconds)


def _reached_no_target(error: BaseException, path: CallPath | None) -> bool:
    """Return whether a call failed before any target had it."""
    if isinstance(error, NotSent):
        return True
    if not isinstance(error, GatewayError) or path is None:
        return False
    return not path.attempts and not path.upstream_s
