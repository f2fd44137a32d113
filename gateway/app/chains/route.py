"""The layers of a route and of its targets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.api.layer import Entries, Layer
from gateway.api.tap import RouteTap
from gateway.api.transform import TensorTransform
from gateway.app.chains.rows import with_part
from gateway.app.chains.tracing import Wrap
from gateway.concurrency.limiter import CLIENT_MEMORY
from gateway.config.routes import TargetConfig
from gateway.policies.buffer_body import BufferBody
from gateway.policies.classify import Classify
from gateway.policies.complete.policy import Complete
from gateway.policies.limits.concurrency import ConcurrencyLimit
from gateway.policies.limits.deadline import RouteTimeout
from gateway.policies.limits.fair_share import FairShare
from gateway.policies.limits.hedge import Hedge
from gateway.policies.limits.policy import CallLimits
from gateway.policies.limits.retry import AttemptTimeout, RetryBudget
from gateway.policies.limits.sequences import LimitSequences
from gateway.policies.rename import Rename
from gateway.policies.tap import SampleCalls
from gateway.policies.transform_tensors import TransformTensors
from gateway.routing.sequence_affinity import IDLE_S
from gateway.service import Service


@dataclass(frozen=True, slots=True)
class RouteParts:
    """Parameters of the chain of a route."""

    timeout: RouteTimeout
    stream_idle_s: float | None
    places: ConcurrencyLimit
    retries: RetryBudget | None
    attempt_timeout_s: float | None = None
    hedge: Callable[[Service], Hedge] | None = None
    share: Callable[[Service], FairShare] | None = None
    priority: Wrap | None = None
    sequences_per_client: int | None = None
    client_header: str = ""
    sequence_idle_s: float = IDLE_S
    taps: Sequence[RouteTap] = ()


@dataclass(frozen=True, slots=True)
class TargetTransform:
    """The transform of a target, by its name in YAML; None for none."""

    name: str = ""
    transform: TensorTransform | None = None


def _sample(inner: Entries, at: RouteParts) -> Service | None:
    found = inner.questions
    for tap in at.taps:
        found = SampleCalls(found, tap)
    return found if at.taps else None


def _limit_sequences(inner: Entries, at: RouteParts) -> Service | None:
    if at.sequences_per_client is None:
        return None
    return LimitSequences(
        inner.questions,
        at.sequences_per_client,
        client=CLIENT_MEMORY.get,
        header=at.client_header,
        idle_s=at.sequence_idle_s,
    )


def _prioritize(inner: Entries, at: RouteParts) -> Service | None:
    return None if at.priority is None else at.priority(inner.questions)


def _share(inner: Entries, at: RouteParts) -> Service | None:
    return None if at.share is None else at.share(inner.questions)


def _limit_calls(inner: Entries, at: RouteParts) -> Service:
    return CallLimits(
        inner.questions,
        at.timeout.seconds,
        timeout_key=at.timeout.key,
        stream_idle_s=at.stream_idle_s,
        places=at.places,
        retries=at.retries,
    )


def _limit_attempt(inner: Entries, at: RouteParts) -> Service | None:
    if at.attempt_timeout_s is None:
        return None
    return AttemptTimeout(inner.questions, at.attempt_timeout_s)


def _hedge(inner: Entries, at: RouteParts) -> Service | None:
    return None if at.hedge is None else at.hedge(inner.questions)


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
    with_part(RouteParts, _sample),
)
LIMIT_SEQUENCES: Final = Layer(
    "LimitSequences",
    "limits the open sequences of each client, if configured",
    "route",
    with_part(RouteParts, _limit_sequences),
)
PRIORITIZE: Final = Layer(
    "Prioritize",
    "gives calls their priority in queues, if `queue_priority` is set",
    "route",
    with_part(RouteParts, _prioritize),
)
FAIR_SHARE: Final = Layer(
    "FairShare",
    "limits the inferences in flight of each caller, if `share` is set",
    "route",
    with_part(RouteParts, _share),
)
CALL_LIMITS: Final = Layer(
    "CallLimits",
    "applies the concurrency limit, the deadline and the retries",
    "route",
    with_part(RouteParts, _limit_calls),
)
ATTEMPT_TIMEOUT: Final = Layer(
    "AttemptTimeout",
    "limits the time of each attempt, if `per_try_timeout` is set",
    "route",
    with_part(RouteParts, _limit_attempt),
)
HEDGE: Final = Layer(
    "Hedge",
    "makes a second attempt of slow calls, if `hedge` is set",
    "route",
    with_part(RouteParts, _hedge),
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
