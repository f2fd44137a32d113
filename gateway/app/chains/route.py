"""The layers of a route and of its targets."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from gateway.api.layer import Entries, Layer, LayerContext
from gateway.api.tap import RouteTap
from gateway.api.transform import TensorTransform
from gateway.app.chains.rows import with_part
from gateway.app.route_rules import RuledRoute
from gateway.concurrency.limiter import CLIENT_MEMORY
from gateway.config.routes import (
    PoliciesConfig,
    RetryConfig,
    RouteConfig,
    ShareConfig,
    TargetConfig,
)
from gateway.policies.buffer_body import BufferBody
from gateway.policies.classify import Classify
from gateway.policies.complete.policy import Complete
from gateway.policies.limits.concurrency import ConcurrencyLimit
from gateway.policies.limits.deadline import RouteTimeout
from gateway.policies.limits.fair_share import CallRate, FairShare
from gateway.policies.limits.hedge import Hedge, HedgeRules
from gateway.policies.limits.policy import CallLimits
from gateway.policies.limits.retry import AttemptTimeout, RetryBudget, RetryRules
from gateway.policies.limits.sequences import LimitSequences
from gateway.policies.prioritize import Prioritize
from gateway.policies.rename import Rename
from gateway.policies.tap import SampleCalls
from gateway.policies.transform_tensors import TransformTensors
from gateway.routing.load_balancing import key_of
from gateway.service import Service
from gateway.settings.units import parse_duration
from gateway.telemetry.metrics import Metrics

_SHARED: Final = 256
"""What the share of a caller is a part of where a route has no limit."""


@dataclass(frozen=True, slots=True)
class RouteRules:
    """What the layers of a route follow.

    Attributes:
        ruled: The route.
        policies: The defaults of all routes.
        places: Limits the inferences in flight.
        taps: Receive chosen calls.
    """

    ruled: RuledRoute
    policies: PoliciesConfig
    places: ConcurrencyLimit
    taps: Sequence[RouteTap] = ()

    @property
    def config(self) -> RouteConfig | None:
        """The keys of the route; None for a default route."""
        return self.ruled.config

    @property
    def retry(self) -> RetryConfig | None:
        """When calls are repeated; None for never."""
        return (None if self.config is None else self.config.retry) or self.policies.retry

    @property
    def timeout(self) -> RouteTimeout:
        """How long a call may take, and the key that says so."""
        return route_timeout(self.ruled, self.policies)


def route_timeout(ruled: RuledRoute, policies: PoliciesConfig) -> RouteTimeout:
    """Return how long a call of a route may take, and the key that says so."""
    own = None if ruled.config is None else ruled.config.timeout
    if own is None:
        return RouteTimeout(policies.timeout or None, "policies.timeout")
    return RouteTimeout(own or None, f"timeout of route {ruled.name!r}")


def retry_rules(config: RetryConfig) -> RetryRules:
    """Return the rules that `retry` of a route configures."""
    return RetryRules(
        reasons=frozenset(config.on),
        attempts=config.attempts,
        base_s=config.backoff.base,
        max_s=config.backoff.max,
        elsewhere=config.elsewhere,
        ratio=config.budget,
        least=config.min_retries,
    )


@dataclass(frozen=True, slots=True)
class TargetTransform:
    """The transform of a target, by its name in YAML; None for none."""

    name: str = ""
    transform: TensorTransform | None = None


def _sample(inner: Entries, rules: RouteRules) -> Service | None:
    found = inner.questions
    for tap in rules.taps:
        found = SampleCalls(found, tap)
    return found if rules.taps else None


def _limit_sequences(inner: Entries, rules: RouteRules) -> Service | None:
    policies = rules.policies
    own = None if rules.config is None else rules.config.sequences_per_client
    limit = own or policies.sequences_per_client
    if limit is None:
        return None
    return LimitSequences(
        inner.questions,
        limit,
        client=CLIENT_MEMORY.get,
        header=(policies.sequence_client_header or "").lower(),
        idle_s=policies.sequence_idle,
    )


def _prioritize(inner: Entries, rules: RouteRules) -> Service | None:
    route = rules.config
    if route is None:
        return None
    default, by = route.queue_priority, route.queue_priority_by
    if default.startswith("header:"):
        default, by = "normal", default
    if by is None and default == "normal":
        return None
    return Prioritize(inner.questions, default, None if by is None else key_of(by))


def _share(inner: Entries, rules: RouteRules) -> Service | None:
    route, policies = rules.config, rules.policies
    if route is None or route.share is None:
        return None
    limit, text = route.in_flight or policies.in_flight, route.share.in_flight
    in_flight = sys.maxsize if limit is None else limit
    whole = _SHARED if limit is None else limit
    share = whole * int(text[:-1]) // 100 if text.endswith("%") else int(text)
    return FairShare(
        inner.questions,
        key=key_of(route.share.by),
        in_flight=in_flight,
        share=max(1, share),
        rate=_call_rate(route.share),
        queue=policies.queued,
        wait_s=policies.queue_wait,
        target_s=policies.queue_target,
        timeout=rules.timeout,
        route=rules.ruled.name,
    )


def _call_rate(config: ShareConfig) -> CallRate | None:
    rate = config.calls_per_second
    return None if rate is None else CallRate(rate, config.burst or max(1, int(rate)))


def _limit_calls(inner: Entries, at: LayerContext) -> Service:
    rules, retry = at.part(RouteRules), at.part(RouteRules).retry
    retries = None
    if retry is not None and retry.budget > 0:
        report = partial(at.part(Metrics).retry, at.name)
        retries = RetryBudget(retry_rules(retry), route=at.name, report=report)
    return CallLimits(
        inner.questions,
        rules.timeout.seconds,
        timeout_key=rules.timeout.key,
        stream_idle_s=rules.policies.stream_idle or None,
        places=rules.places,
        retries=retries,
    )


def _limit_attempt(inner: Entries, rules: RouteRules) -> Service | None:
    if rules.retry is None or rules.retry.per_try_timeout is None:
        return None
    return AttemptTimeout(inner.questions, rules.retry.per_try_timeout)


def _hedge(inner: Entries, at: LayerContext) -> Service | None:
    route = at.part(RouteRules).config
    if route is None or route.hedge is None:
        return None
    after, is_percentile = route.hedge.after, route.hedge.after.startswith("p")
    rules = HedgeRules(
        after_s=None if is_percentile else parse_duration(after),
        percentile=float(after[1:]) if is_percentile else 0.0,
        at_most=route.hedge.at_most,
        elsewhere=route.retry is None or route.retry.elsewhere,
    )
    report = partial(at.part(Metrics).hedge, at.name)
    return Hedge(inner.questions, rules=rules, route=at.name, report=report)


def _rename(inner: Entries, target: TargetConfig) -> Service | None:
    tensors = target.tensors
    if target.model is None and target.version is None and not (tensors.inputs or tensors.outputs):
        return None
    return Rename(
        inner.questions,
        model=target.model,
        version=target.version,
        inputs=tensors.inputs,
        outputs=tensors.outputs,
    )


def _buffer_body(inner: Entries, at: TargetTransform) -> Service | None:
    if at.transform is None:
        return None
    return BufferBody(inner.questions, inference=inner.inference)


def _classify(inner: Entries, at: TargetTransform) -> Service | None:
    if at.transform is None:
        return None
    return Classify(inner.questions, by_target=False, inference=inner.inference)


def _complete(inner: Entries, at: TargetTransform) -> Service | None:
    if at.transform is None:
        return None
    return Complete(inner.questions, at.transform.needs, inference=inner.inference)


def _transform(inner: Entries, at: TargetTransform) -> Service | None:
    return None if at.transform is None else TransformTensors(inner, at.transform, at.name)


SAMPLE_CALLS: Final = Layer(
    "SampleCalls",
    "passes chosen calls to the shadow process, if a migration has them",
    "route",
    with_part(RouteRules, _sample),
)
LIMIT_SEQUENCES: Final = Layer(
    "LimitSequences",
    "limits the open sequences of each client, if configured",
    "route",
    with_part(RouteRules, _limit_sequences),
)
PRIORITIZE: Final = Layer(
    "Prioritize",
    "gives calls their priority in queues, if `queue_priority` is set",
    "route",
    with_part(RouteRules, _prioritize),
)
FAIR_SHARE: Final = Layer(
    "FairShare",
    "limits the inferences in flight of each caller, if `share` is set",
    "route",
    with_part(RouteRules, _share),
)
CALL_LIMITS: Final = Layer(
    "CallLimits",
    "applies the concurrency limit, the deadline and the retries",
    "route",
    _limit_calls,
)
ATTEMPT_TIMEOUT: Final = Layer(
    "AttemptTimeout",
    "limits the time of each attempt, if `per_try_timeout` is set",
    "route",
    with_part(RouteRules, _limit_attempt),
)
HEDGE: Final = Layer(
    "Hedge",
    "makes a second attempt of slow calls, if `hedge` is set",
    "route",
    _hedge,
)
RENAME: Final = Layer(
    "Rename",
    "translates names of models and tensors, if the route configures it",
    "target",
    with_part(TargetConfig, _rename),
)
TRANSFORM: Final = (
    Layer(
        "BufferBody",
        "waits for the whole body of a request, if `transform` is set",
        "target",
        with_part(TargetTransform, _buffer_body),
    ),
    Layer(
        "Classify",
        "computes classes of what `transform` returns",
        "target",
        with_part(TargetTransform, _classify),
    ),
    Layer(
        "Complete",
        "adds what `transform` needs",
        "target",
        with_part(TargetTransform, _complete),
    ),
    Layer(
        "TransformTensors",
        "changes requests and replies, if `transform` is set",
        "target",
        with_part(TargetTransform, _transform),
    ),
)
