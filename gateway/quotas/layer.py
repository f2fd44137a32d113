"""ApplyQuotas: charges calls to the quotas that match them, and refuses those beyond a quota."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from dataclasses import dataclass
from math import ceil
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from gateway.api.protocol import QuotaNote
from gateway.ir.bodies.streams import on_stream_end
from gateway.ir.bounded_dict import BoundedDict
from gateway.ir.calls import Call, InferRequest
from gateway.ir.errors import GatewayError, NotSent, QuotaExceeded, TooLarge
from gateway.ir.identity import GATEWAY, Identity
from gateway.policies.access.operations import operation_of
from gateway.policies.access.rules import AccessRule, CompiledRule, Facts, Size
from gateway.policies.access.sizes import size_of
from gateway.quotas.budget_queue import Charge, Key, Shortage, budget_name, quota_of
from gateway.quotas.budgets import BudgetState, Limit
from gateway.service import Service, bound_call
from gateway.settings.patterns import globs
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
_TOLERANCE: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRule:
    """One quota.

    Attributes:
        name: The name of the quota.
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

    @property
    def budget(self) -> str:
        """The name of its budgets."""
        return budget_name(self.name, self.limit.unit, self.limit.period)


class Accounts(Protocol):
    """Charges budgets: `budgets.LocalAccounts`, or with workers `leases.LeasedAccounts`."""

    def charge(self, charges: Sequence[Charge], /) -> list[Shortage]:
        """Take all charges, or none of them; return those without room.

        Where a wait is 0 nothing is taken yet, and `wait` decides.
        """
        ...

    async def wait(self, charges: Sequence[Charge], /) -> list[Shortage]:
        """Do the same after asking other processes for what they have; no wait is 0 then."""
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


StateOf = Callable[[Key], BudgetState | None]


class QuotaNotes:
    """What the clients of some calls are told; one object for all calls that a plan counts.

    Args:
        parts: The quotas that clients are told of.
        state_of: Returns the state of a budget.
        refused: The budgets that have refused the call.
        wait_s: After a refusal, the seconds until another call may succeed; 0 for no refusal.

    Attributes:
        wait_s: The same seconds, which a refusal tells the client.
    """

    __slots__ = ("_budgets", "_refused", "_state_of", "wait_s")

    def __init__(
        self,
        parts: Sequence[QuotaPart],
        state_of: StateOf,
        refused: AbstractSet[Key] = frozenset(),
        wait_s: float = 0.0,
    ) -> None:
        self._budgets = tuple([(part.quota.name, part.keys) for part in parts])
        self._state_of = state_of
        self._refused = refused
        self.wait_s = wait_s

    def states(self) -> list[QuotaNote]:
        """Return the state of each quota now."""
        found, state_of, refused = [], self._state_of, self._refused
        for name, keys in self._budgets:
            state = state_of(keys[0]) if len(keys) == 1 else _least(map(state_of, keys))
            if state is not None:
                is_refused = refused and not refused.isdisjoint(keys)
                left = 0 if is_refused else int(state.left + _TOLERANCE)
                limit = state.limit
                found.append(
                    QuotaNote(
                        limit.unit,
                        int(limit.amount),
                        left,
                        ceil(state.reset_s),
                        name,
                        state.window_s,
                    )
                )
        return found


QUOTA_NOTES: Final[ContextVar[QuotaNotes | None]] = ContextVar("gateway_quota_notes", default=None)
"""What the client of the current call is told; None for nothing.

The layer sets it, and what writes the response reads and clears it.
"""

# On the path of every call: to look up a method of an imported name takes 400 instructions.
quota_notes: Final[Callable[[], QuotaNotes | None]] = QUOTA_NOTES.get
"""Returns what the client of the current call is told."""
note_quotas: Final = QUOTA_NOTES.set

OnRefused = Callable[[str, Identity, str], object]
"""Called with the quota, the client and the mode, for each call beyond a quota."""


class QuotaPart(NamedTuple):
    """One quota that counts a call, and the keys of its budgets."""

    quota: QuotaRule
    keys: tuple[Key, ...]


class QuotaPlan:
    """The quotas that count some calls.

    Attributes:
        parts: The quotas.
        charges: What each call takes; None if that depends on its size.
        has_seconds: Whether time is charged after the call.
        header_parts: The quotas that clients are told of.
        notes: What the clients are told; None for nothing.
    """

    __slots__ = ("charges", "has_seconds", "header_parts", "notes", "parts")

    def __init__(self, parts: Sequence[QuotaPart], state_of: StateOf) -> None:
        units = {part.quota.limit.unit for part in parts}
        self.parts = tuple(parts)
        self.has_seconds = SECONDS in units
        self.header_parts = tuple(
            each for each in parts if each.quota.is_told and not each.quota.is_shadow
        )
        self.notes = QuotaNotes(self.header_parts, state_of) if self.header_parts else None
        self.charges: tuple[Charge, ...] | None = None
        if not units & {"elements", "bytes"}:
            self.charges = tuple(charges_of(parts, None))


def charges_of(parts: Sequence[QuotaPart], size: Size | None) -> list[Charge]:
    """Return what a call takes of its budgets.

    Args:
        parts: The quotas.
        size: Of its inputs; None where no quota counts it.
    """
    charges = []
    for quota, keys in parts:
        amount = _amount(quota.limit.unit, size)
        charges += [Charge(key, amount, quota.is_shadow) for key in keys]
    return charges


def _amount(unit: str, size: Size | None) -> float:
    """Return what a call takes in a unit."""
    if unit == SECONDS:
        return 0.0
    if size is None or unit == "calls":
        return 1.0
    return float(size.elements if unit == "elements" else size.size_bytes)


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
        self._found: BoundedDict[tuple[Any, ...], QuotaPlan] = BoundedDict(_MAX_PLANS)

    def of(self, call: Call[Any], identity: Identity, state_of: StateOf) -> QuotaPlan:
        """Return the quotas that count *call*; *state_of* returns the state of a budget."""
        route = self._route_of(call) if self._needs_route else ""
        key = identity, call.model, call.context.protocol, type(call), route
        plan = self._found.get(key)
        if plan is None:
            parts = self.matching(identity, self._facts(call), route)
            plan = self._found[key] = QuotaPlan(parts, state_of)
        return plan

    def _facts(self, call: Call[Any]) -> Facts:
        model = call.model
        name, version = ("", "") if model is None else (model.name, model.version)
        protocol = call.context.protocol
        name = name or self._default_model
        return Facts(operation_of(call), name or None, version, protocol, self._listener)

    def matching(self, identity: Identity, facts: Facts, route: str) -> list[QuotaPart]:
        """Return the quotas that count a call with these facts."""
        return [
            QuotaPart(quota, _keys(quota, identity, facts, route))
            for quota, rule, routes in self._quotas
            if rule.has_call(facts)
            and rule.has_client(identity)
            and rule.has_claims_of(identity)
            and (routes is None or routes(route))
        ]


def _keys(quota: QuotaRule, identity: Identity, facts: Facts, route: str) -> tuple[Key, ...]:
    """Return the budgets of a call: one, or one for each group of the client."""
    keys: list[Key] = [(quota.budget,)]
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
        plain: Handles each plain inference, see `Entries`; None for *inference*.
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
        plain: Service | None = None,
        utc: Callable[[], float] = time.time,  # noqa: TID251  # calendar windows are those of UTC
    ) -> None:
        self._inner = bound_call(inner)
        self._inference = self._inner if inference is None else bound_call(inference)
        self._plain = self._inference if plain is None else bound_call(plain)
        self._plan_of = quotas.of
        self._accounts = accounts
        self._charge, self._state_of = accounts.charge, accounts.state
        self._on_refused = on_refused
        self._utc = utc

    async def __call__(self, call: Call[R], /) -> R:
        """Call *inner*.

        Raises:
            QuotaExceeded: A quota is used up.
            TooLarge: The call is larger than a quota allows at any time.
        """
        context, kind, inner = call.context, type(call), self._inner
        if type(call) is InferRequest:
            origin = context.origin
            has_bytes = origin is not None and origin.has_bytes
            inner = self._plain if has_bytes and not call.outputs else self._inference
        identity = context.client.identity
        if identity is GATEWAY:
            return await inner(call)
        plan = self._plan_of(call, identity, self._state_of)
        parts = plan.parts
        if not parts:
            return await inner(call)
        charges = plan.charges or self._charges(call, parts)
        short = self._charge(charges)
        if short:
            short = await self._shortage(call, identity, plan, charges, short)
        since = self._utc()
        if plan.notes is not None:
            note_quotas(plan.notes)
        try:
            reply = await inner(call)
        except BaseException as error:
            self._on_failure(error, kind, parts, charges, short, since)
            raise
        if kind is InferRequest and not plan.has_seconds:
            return reply
        path = current_path()
        return on_stream_end(call, reply, lambda _error: self._charge_time(parts, path))

    def _on_failure(
        self,
        error: BaseException,
        kind: type,
        parts: Sequence[QuotaPart],
        charges: Sequence[Charge],
        short: Sequence[Shortage],
        since: float,
    ) -> None:
        """Give back the charges of a call that reached no target."""
        path = current_path()
        if not _reached_no_target(error, kind, path):
            self._charge_time(parts, path)
            return
        lacking = {one.charge for one in short}
        for each in charges:
            if each not in lacking:
                self._accounts.give(each.key, each.amount, since)

    def _charges(self, call: Call[Any], parts: Sequence[QuotaPart]) -> list[Charge]:
        """Return what *call* takes of its budgets, by its size.

        Raises:
            TooLarge: It is more than a quota allows at any time.
        """
        size = size_of(call)
        for quota, _ in parts:
            limit = quota.limit
            amount = _amount(limit.unit, size)
            if amount > limit.capacity and not quota.is_shadow:
                raise TooLarge(
                    f"the inputs have {amount:.0f} {limit.unit}, and quota {quota.name!r} "
                    f"allows {limit.capacity:.0f} at once",
                    model=call.model,
                    limit="quotas",
                )
        return charges_of(parts, size)

    async def _shortage(
        self,
        call: Call[Any],
        identity: Identity,
        plan: QuotaPlan,
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
            self._on_refused(quota_of(one.charge.key), identity, mode)
        refusing = [one for one in short if not one.charge.is_shadow]
        if not refusing:
            return short
        wait_s = max(_LEAST_WAIT_S, *(one.wait_s for one in refusing))
        keys = {one.charge.key for one in refusing}
        note_quotas(QuotaNotes(plan.header_parts, self._state_of, keys, wait_s))
        names = " and ".join(sorted({repr(quota_of(one.charge.key)) for one in refusing}))
        error = QuotaExceeded(f"this client has used up the quota {names}", model=call.model)
        error.limit = "quotas"
        error.retry_after_s = wait_s
        raise error

    def _charge_time(self, parts: Sequence[QuotaPart], path: CallPath | None) -> None:
        """Take the seconds that the target of a call took."""
        seconds = 0.0 if path is None else path.upstream_s
        if not seconds:
            return
        for quota, keys in parts:
            if quota.limit.unit == SECONDS:
                for key in keys:
                    self._accounts.take(key, seconds)


def _least(states: Iterable[BudgetState | None]) -> BudgetState | None:
    """Return the state of the budget with the least left; None for no budget."""
    found = [state for state in states if state is not None]
    return min(found, key=lambda each: each.left, default=None)


def _reached_no_target(error: BaseException, kind: type, path: CallPath | None) -> bool:
    """Return whether a call failed before any target had it: the error is that of the last attempt.

    A call is not given back whose model a target was asked about, unless it was certainly not sent.
    """
    if path is None or not isinstance(error, GatewayError):
        return isinstance(error, NotSent)
    if isinstance(error, NotSent):
        return not path.has_received(kind.__name__)
    return not path.is_received and not path.is_question_received
