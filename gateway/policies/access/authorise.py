"""Authorise: refuses the calls that a client may not make, and shows only what it may use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

from gateway.ir.calls import (
    Call,
    InferRequest,
    InferResponse,
    ModelConfigRequest,
    ModelMetadataRequest,
    ModelReadyRequest,
    ModelStatisticsRequest,
    OpaqueCall,
    RepositoryIndexRequest,
    ServerLiveRequest,
    ServerReadyRequest,
    ServerStatusRequest,
    StreamInferRequest,
    inference_of,
)
from gateway.ir.context import Client, ModelRef, Origin
from gateway.ir.errors import AccessDenied, TooLarge
from gateway.ir.identity import GATEWAY, Identity
from gateway.policies.access.operations import (
    HEALTH,
    INFERENCE,
    METADATA,
    OPERATIONS,
    is_listing,
    operation_of,
)
from gateway.policies.access.rules import AccessDecision, Facts, Permissions, Size
from gateway.policies.access.sizes import size_of
from gateway.service import ReplyCoroutine, Service

R = TypeVar("R")

_SERVER_HEALTH: Final = frozenset({ServerLiveRequest, ServerReadyRequest})
# The router gives these the default model of the listener.
_ABOUT_A_MODEL: Final = frozenset(
    {
        InferRequest,
        StreamInferRequest,
        ModelMetadataRequest,
        ModelConfigRequest,
        ModelReadyRequest,
    }
)

OnDenied = Callable[[Identity, str], object]
"""Called with the client and the operation of each call that is denied."""
OnRehearsed = Callable[[Identity, str, str | None], object]
"""Called with the client, the operation and the rule of each call that would be denied."""


class ListenerAccess:
    """What clients may do at one listener.

    Args:
        permissions: The rules.
        listener: Its name.
        default_model: Model of calls that must name one and do not; "" for none.
        public_health: Whether the health of the server needs no rule.
        on_denied: Counts a call that is denied.
        rehearsal: All rules, with those that are only rehearsed; None if all are enforced.
        on_rehearsed: Counts a call that only the rehearsal denies.
    """

    def __init__(
        self,
        permissions: Permissions,
        listener: str,
        *,
        default_model: str = "",
        public_health: bool = True,
        on_denied: OnDenied = lambda _identity, _operation: None,
        rehearsal: Permissions | None = None,
        on_rehearsed: OnRehearsed = lambda _identity, _operation, _rule: None,
    ) -> None:
        self._permissions = permissions
        self._listener = listener
        self._default_model = default_model
        self._public_health = public_health
        self._on_denied = on_denied
        self._rehearsal = rehearsal
        self._on_rehearsed = on_rehearsed

    def decide(self, call: Call[Any], identity: Identity) -> AccessDecision:
        """Return whether *identity* may make *call*."""
        if self._public_health and type(call) in _SERVER_HEALTH:
            return _ALLOWED
        facts = self._facts(call)
        if facts.model is None and is_listing(call):
            decision = self._permissions.may_list(identity, facts)
            if self._rehearsal is not None and decision.is_allowed:
                self._rehearse(identity, facts, self._rehearsal.may_list(identity, facts))
            return decision
        return self._decide(identity, facts, lambda: size_of(call))

    def _decide(
        self, identity: Identity, facts: Facts, measure: Callable[[], Size]
    ) -> AccessDecision:
        decision = self._permissions.decide(identity, facts, measure)
        if self._rehearsal is not None and decision.is_allowed:
            self._rehearse(identity, facts, self._rehearsal.decide(identity, facts, measure))
        return decision

    def _rehearse(self, identity: Identity, facts: Facts, decision: AccessDecision) -> None:
        if not decision.is_allowed:
            self._on_rehearsed(identity, facts.operation, decision.rule)

    def decide_inference(self, call: InferRequest, identity: Identity) -> AccessDecision:
        """Return what `decide` returns, for an inference."""
        model = call.model
        name, version = ("", "") if model is None else (model.name, model.version)
        facts = Facts(
            INFERENCE,
            name or self._default_model or None,
            version,
            call.context.protocol,
            self._listener,
        )
        if self._rehearsal is not None:
            return self._decide(identity, facts, lambda: size_of(call))
        return self._permissions.decide(identity, facts, lambda: size_of(call))

    def refusal(
        self,
        identity: Identity,
        operation: str,
        decision: AccessDecision,
        *,
        of_model: bool = False,
    ) -> AccessDenied:
        """Return the error of a call that is denied; its text names no model and no rule."""
        self._on_denied(identity, operation)
        what = f"this model for {operation}" if of_model else f"{operation} here"
        error = AccessDenied(f"this client may not use {what}")
        error.rule = decision.rule
        return error

    def check_size(self, call: Call[Any], identity: Identity, decision: AccessDecision) -> None:
        """Check whether a call that no rule allows is only too large.

        Raises:
            TooLarge: A rule would allow it with smaller inputs.
        """
        if decision.rule is not None or inference_of(call) is None:
            return
        found = self._permissions.excess(identity, self._facts(call), size_of(call))
        if found is not None:
            amount, limit = found
            self._on_denied(identity, operation_of(call))
            text = f"{amount} are more than this client may send"
            raise TooLarge(text, model=call.model, limit=limit)

    def check(
        self, client: Client, operation: str, protocol: str, model: ModelRef | None = None
    ) -> None:
        """Check a request that is no call, or is none yet.

        Raises:
            AccessDenied: The client may not make it.
        """
        if self._public_health and operation == HEALTH and model is None:
            return
        name, version = (None, "") if model is None else (model.name, model.version)
        facts = Facts(operation, name, version, protocol, self._listener)
        # An inference is rehearsed once, when its inputs are known.
        decide = self._permissions.decide if operation == INFERENCE else self._decide
        decision = decide(client.identity, facts, Size)
        if not decision.is_allowed:
            raise self.refusal(client.identity, operation, decision, of_model=model is not None)

    def check_inference(self, client: Client, model: ModelRef, protocol: str) -> None:
        """Check whether a client may make any inference of a model, before its inputs are read.

        Raises:
            AccessDenied: No rule allows it, whatever the inputs are.
        """
        self.check(client, INFERENCE, protocol, model)

    def usable_protocols(self, client: Client, protocols: Iterable[str]) -> frozenset[str]:
        """Return those of *protocols* over which a client may make any call.

        Raises:
            AccessDenied: The client may not ask for metadata over any of them.
        """
        protocols = tuple(protocols)
        usable = {each: self._listed(client.identity, each, OPERATIONS) for each in protocols}
        if not any(self._listed(client.identity, each, (METADATA,)) for each in protocols):
            raise self.refusal(client.identity, METADATA, AccessDecision(False))
        return frozenset(each for each in protocols if usable[each])

    def _listed(self, identity: Identity, protocol: str, operations: Iterable[str]) -> bool:
        may_list, listener = self._permissions.may_list, self._listener
        return any(
            may_list(identity, Facts(each, None, "", protocol, listener)).is_allowed
            for each in operations
        )

    def filtered(self, call: Call[Any], reply: Any) -> Any:
        """Return the reply to a listing with what the client may use."""
        if isinstance(reply, Origin):
            return reply  # of a server, about the one model that was allowed
        if isinstance(call, RepositoryIndexRequest):
            return tuple(each for each in reply if self._shows(call, each.name, each.version))
        if isinstance(call, ModelStatisticsRequest):
            return tuple(each for each in reply if self._shows(call, each.name, each.version))
        if isinstance(call, ServerStatusRequest):
            models = tuple(each for each in reply.models if self._shows(call, each.metadata.name))
            return replace(reply, models=models)
        return reply

    def _shows(self, call: Call[Any], name: str, version: str = "") -> bool:
        context = call.context
        facts = Facts(operation_of(call), name, version, context.protocol, self._listener)
        return self._permissions.decide(context.client.identity, facts).is_allowed

    def _facts(self, call: Call[Any]) -> Facts:
        kind, model = type(call), call.model
        if isinstance(call, ServerStatusRequest):
            model = call.about
        elif kind is OpaqueCall:
            model = None
        name, version = ("", "") if model is None else (model.name, model.version)
        if not name and kind in _ABOUT_A_MODEL:
            name = self._default_model
        protocol = call.context.protocol
        return Facts(operation_of(call), name or None, version, protocol, self._listener)


_ALLOWED: Final = AccessDecision(True)


class Authorise:
    """Refuses the calls that the client may not make, and filters listings.

    Args:
        inner: The service to call.
        access: What clients may do at the listener.
        inference: Handles each InferRequest; None for *inner*.
    """

    def __init__(
        self, inner: Service, access: ListenerAccess, *, inference: Service | None = None
    ) -> None:
        self._inner = inner
        self._inference = inner if inference is None else inference
        self._access = access
        self._decide_inference = access.decide_inference

    def __call__(self, call: Call[R], /) -> ReplyCoroutine[R]:
        """Call *inner*.

        Raises:
            AccessDenied: The client may not make the call, whether or not its model exists.
            TooLarge: It may make smaller ones.
        """
        identity = call.context.client.identity
        if identity is GATEWAY:
            return self._inner(call)
        decision = self._access.decide(call, identity)
        if not decision.is_allowed:
            return self._refuse(call, identity, decision)
        if type(call) in _FILTERED and call.model is None:
            return self._filter(call)
        return self._inner(call)

    def handle_inference(self, call: InferRequest, /) -> ReplyCoroutine[InferResponse]:
        """Handle an inference as `__call__` does."""
        identity = call.context.client.identity
        decision = self._decide_inference(call, identity)
        if decision.is_allowed:
            return self._inference(call)
        return cast("ReplyCoroutine[InferResponse]", self._refuse(call, identity, decision))

    async def _refuse(self, call: Call[Any], identity: Identity, decision: AccessDecision) -> Any:
        self._access.check_size(call, identity, decision)
        of_model = call.model is not None or getattr(call, "about", None) is not None
        operation = operation_of(call)
        raise self._access.refusal(identity, operation, decision, of_model=of_model)

    async def _filter(self, call: Call[R]) -> R:
        return cast("R", self._access.filtered(call, await self._inner(call)))


_FILTERED: Final = frozenset({RepositoryIndexRequest, ModelStatisticsRequest, ServerStatusRequest})
