"""The parts of the configuration file that belong to routes: matches, targets and policies.

See `gateway.config.models`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from gateway.settings.fields import (
    DURATION,
    HEADER_KEY,
    HEDGE_AFTER,
    MEMORY,
    PART,
    QUEUE_PRIORITY,
    RATE,
    CallKey,
    Duration,
    Name,
    Names,
    Scalar,
    Text,
    field_schema,
)
from gateway.settings.model import Model
from gateway.settings.units import parse_duration, parse_size


class MatchConfig(Model):
    """Conditions on a call. All of them must hold. Patterns may contain `*`, `?` and `[...]`."""

    model: Names | None = None
    """Names or patterns of models. Default: every model."""
    version: Names | None = None
    """Requested versions. `""` stands for requests without a version. Default: every version."""
    protocol: Names | None = None
    """Names or patterns of protocol and carrier, such as `oip.http` or `oip.*`. Default: every
    protocol."""
    headers: Mapping[Name, Scalar] = Field(default_factory=dict)
    """Names of headers or gRPC metadata, each with the pattern of its value. Default: no
    condition."""
    clients: Names = ()
    """Names or patterns of clients, as `clients` defines them; `anonymous` without a credential.
    Default: `[]`, which means every client."""
    groups: Names = ()
    """Groups or patterns of groups; the client must have one of them. Default: `[]`, which means
    every client."""
    tiers: Names = ()
    """Tiers or patterns of tiers of clients. Default: `[]`, which means every client."""


class TensorNamesConfig(Model):
    """Translation of tensor names between the client and the target."""

    inputs: Mapping[Name, Name] = Field(default_factory=dict)
    """Input names of the client, each with the name at the target. Default: the same names."""
    outputs: Mapping[Name, Name] = Field(default_factory=dict)
    """Output names of the client, each with the name at the target. Default: the same names."""


class TargetConfig(Model):
    """A destination of a route: a model of an upstream, or a model of the gateway."""

    upstream: Name | None = None
    """Upstream that serves the model. Default: the gateway itself, which runs `model`."""
    model: Name | None = None
    """Name of the model at the target. It is required without `upstream`. Default: the name that
    the client requested."""
    version: Scalar | None = None
    """Version of the model at the target. Default: the version that the client requested."""
    weight: int = Field(1, ge=0, le=1_000_000)
    """Share of the calls, relative to the weights of the other targets. `0` sends no calls.
    Default: `1`."""
    priority: int = Field(0, ge=0, le=1000)
    """Rank of the target: it gets calls only while no target with a smaller number is ready.
    Default: `0`."""
    tensors: TensorNamesConfig = TensorNamesConfig()
    """Tensor names that differ between the client and the target."""

    @model_validator(mode="after")
    def _check_destination(self) -> TargetConfig:
        if self.upstream is None and self.model is None:
            raise ValueError("a target needs 'upstream', or 'model' for a model of the gateway")
        return self


_MAX_BACKOFF: Final = 10
"""The largest bound of a pause, as a multiple of the first one."""


class BackoffConfig(Model):
    """The bounds of the pauses before retries. Each pause is a random time up to its bound."""

    # Retired keys; a file gives the first bound as a duration, see retired.py.
    base: Duration = 0.025
    max: Duration = 0.25

    @model_validator(mode="before")
    @classmethod
    def _read_base(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        base = parse_duration(value)
        return {"base": base, "max": _MAX_BACKOFF * base}


class RetryConfig(Model):
    """When a failed call is repeated. Calls of sequences are never repeated.

    A retry goes to an address or target that has not failed, if there is one. Without `idempotent`,
    only calls that the upstream cannot have received are repeated.
    """

    on: tuple[
        Literal[
            "unsent",
            "connect_failure",
            "reset_before_answer",
            "unavailable",
            "overloaded",
            "timeout",
        ],
        ...,
    ] = ("unsent",)
    """Reasons for a retry. `unsent`: the upstream did not receive the call; `connect_failure` is
    the part of it where no connection could be opened. `reset_before_answer`: the connection broke.
    `unavailable` and `overloaded`: the server replied so. `timeout`: the attempt took longer than
    `per_try_timeout`, or the server replied so. A server that asks for a pause (`Retry-After` of
    HTTP, `grpc-retry-pushback-ms` of gRPC) gets it: the retry goes to another address, or waits if
    the pause is at most ten times `backoff`. Default: `[unsent]`."""
    attempts: int = Field(2, ge=1, le=5)
    """Largest number of attempts, the first one included. Default: `2`."""
    per_try_timeout: Duration | None = None
    """Longest time of one attempt. The timeout of the route includes all attempts. Default: no
    timeout of attempts."""
    backoff: Annotated[BackoffConfig, field_schema(DURATION, "string", "25ms")] = BackoffConfig()
    """Longest pause before the first retry; each pause is a random time. It doubles with each
    further retry, up to ten times as much. Default: `25ms`."""
    budget: float = Field(0.2, ge=0, le=1)
    """Largest number of concurrent retries, as a share of the calls in flight. Retries of calls
    that may have run are also at most this share of the calls of the last seconds. Calls that one
    server refuses and another one serves need no budget. Three retries are always allowed. `0`
    switches retries off. Default: `0.2`."""
    idempotent: bool = False
    """Your word that repeated calls of the models of the route have no further effect. Every reason
    but `unsent` and `connect_failure` requires it. Default: `false`."""
    # Retired keys, see retired.py.
    elsewhere: bool = True
    min_retries: int = Field(3, ge=0)

    @model_validator(mode="after")
    def _check_reasons(self) -> RetryConfig:
        for reason in self.on:
            if reason not in {"unsent", "connect_failure"} and not self.idempotent:
                raise ValueError(
                    f"reason {reason!r} repeats calls that may have run; it needs "
                    "'idempotent: true', your word that a repeated call has no further effect"
                )
        if self.per_try_timeout is not None and "timeout" not in self.on:
            raise ValueError(
                "'per_try_timeout' ends an attempt, but 'on' has no 'timeout', so that no other "
                "attempt follows"
            )
        return self

    @property
    def repeats_sent_calls(self) -> bool:
        """Whether a call may be repeated that the upstream has received."""
        return bool(self.budget) and not {"unsent", "connect_failure"}.issuperset(self.on)


class HedgeConfig(Model):
    """A second attempt of a call that takes long. The first reply counts, the other attempt ends.

    Streams and sequences have one attempt.
    """

    after: Annotated[Text, Field(pattern=HEDGE_AFTER)] = "p95"
    """Time after which the second attempt begins: `pNN` for a percentile of the last latencies of
    the route, or a duration. Default: `p95`."""
    at_most: float = Field(0.05, gt=0, le=1)
    """Largest share of the calls that have a second attempt. Default: `0.05`."""


def _check_memory(value: object) -> object:
    if isinstance(value, str) and not value.endswith("%"):
        parse_size(value)
    return value


class OverloadConfig(Model):
    """When a worker refuses new inferences, because the process itself is overloaded."""

    memory: (
        Annotated[
            Text,
            BeforeValidator(_check_memory),
            Field(pattern=MEMORY),
        ]
        | None
    ) = None
    """Memory of the process: a size, or a percentage of the memory limit of the cgroup, which is
    divided by the number of workers. Without a cgroup it is one of the memory of the machine.
    Default: no such rule."""
    loop_lag: Duration | None = None
    """Delay of the event loop, in two measurements in a row. It is measured twice a second.
    Default: no such rule."""


class ShareConfig(Model):
    """The part of a route's inferences in flight that callers with the same key may have."""

    by: CallKey
    """Key of a caller: `client` for the name that its credential has, `header:NAME`, such as
    `header:x-tenant`, `address` for its IP address, or `model`. Callers without the header share
    one part."""
    in_flight: Annotated[Text, Field(pattern=PART)] = "25%"
    """Largest number of inferences of one key that are processed at the same time, or a percentage
    of `in_flight` of the route, or of 256 if that is not set. Further ones wait as
    `policies.queue_wait` allows. Default: `25%`."""
    rate: Annotated[Text, Field(pattern=RATE)] | None = None
    """Largest number of inferences of one key in a second or a minute, such as `200/s`, in each
    worker. As many as it allows in a second may come at once. Further ones get 429 or
    RESOURCE_EXHAUSTED, with `Retry-After` over HTTP. Of at most 1000 keys at a time each has its
    own rate; the others share one. Default: no such limit."""
    # A retired key, see retired.py.
    burst: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _check_burst(self) -> ShareConfig:
        if self.burst is not None and self.rate is None:
            raise ValueError("'burst' needs 'rate', such as 'rate: 200/s'")
        return self

    @property
    def calls_per_second(self) -> float | None:
        """The rate; None for no limit."""
        if self.rate is None:
            return None
        calls, unit = self.rate.split("/")
        return int(calls) / (60 if unit == "min" else 1)


class PoliciesConfig(Model):
    """Timeouts, retries and concurrency of every route. A route may override some of them."""

    timeout: Duration = 60.0
    """Longest time until the response, or until the first response of a stream. Time in queues of
    the gateway counts. A client may ask for less. `0s` sets no limit. It does not apply to loads
    and unloads of models. Default: `60s`."""
    stream_idle: Duration = 300.0
    """Longest time between two responses of a stream. `0s` sets no limit. Default: `5m`."""
    retry: RetryConfig | None = RetryConfig()
    """Retries. `null` switches them off. Default: retries with the defaults of their keys."""
    overload: OverloadConfig | None = None
    """Refusal of new inferences while the gateway itself is overloaded. Default: no refusal."""
    in_flight: int | None = Field(None, ge=1)
    """Largest number of inferences of a route that are processed at the same time.
    Default: no such limit."""
    queued: int = Field(1024, ge=0)
    """Largest number of inferences of a route that wait because `in_flight` is reached. Further
    ones are refused as overloaded. Default: `1024`."""
    queue_wait: Duration | None = None
    """Longest time that an inference waits in the queue. It is then refused as overloaded.
    Default: until its deadline, which is that of the client or the route's timeout."""
    queue_target: Duration | None = None
    """Longest time in a queue that has not been empty for `queue_wait`, or for 1 s if that is not
    set. Inferences that wait longer are then refused as overloaded, the oldest first. Others behind
    them are still of use to their clients (CoDel). Default: no such rule."""
    sequence_idle: Duration = 600.0
    """Time without a request after which a sequence loses its target and its server.
    Default: `10m`."""
    sequences_per_client: int | None = Field(None, ge=1)
    """Largest number of open sequences that a client may have of one model, in each worker. A
    sequence is open until its last request has a response, or until `sequence_idle`. Default: no
    limit."""
    # A retired key, see retired.py.
    sequence_client_header: Name | None = None


class RouteConfig(Model):
    """A rule that sends matching calls to one of its targets. The first matching route applies."""

    name: Name | None = None
    """Name of the route in logs, metrics and errors. Each route needs a different one. Default:
    `route-N`, with the position of the route in the list from 1."""
    match: MatchConfig | None = None
    """Conditions on the calls of this route. Default: every call."""
    targets: tuple[TargetConfig, ...] = Field(min_length=1)
    """Destinations. Each call goes to one of them, by weight. At least one weight must be above
    0."""
    timeout: Duration | None = None
    """Longest time until the response, as `policies.timeout`. `0s` sets no limit. Default:
    `policies.timeout`."""
    readiness: Literal["any", "all"] = "any"
    """Number of targets that must be ready for the route to be ready: one or all.
    Default: `any`."""
    retry: RetryConfig | None = None
    """Retries. `{budget: 0}` switches them off for this route. Default: `policies.retry`."""
    hedge: HedgeConfig | None = None
    """Second attempts of slow calls. They require `retry: {idempotent: true}`. Default: no second
    attempts."""
    in_flight: int | None = Field(None, ge=1)
    """Largest number of inferences that are processed at the same time. Default:
    `policies.in_flight`."""
    sequences_per_client: int | None = Field(None, ge=1)
    """Largest number of open sequences that a client may have of one model. Default:
    `policies.sequences_per_client`."""
    queue_priority: Annotated[Text, Field(pattern=QUEUE_PRIORITY)] = "normal"
    """Priority of the inferences of this route in the queues of upstreams and of
    `adaptive_concurrency`, which they share with other routes: `high`, `normal` or `low`. Those of
    a higher priority are served first, and take the place of others in a full queue. With
    `header:NAME` the header of each inference has it, and it also counts in the queue of this
    route. Other values, and calls without the header, are `normal`. Clients choose it, unless a
    proxy sets it. Default: `normal`."""
    share: ShareConfig | None = None
    """Fair shares of the callers of this route. Default: no shares."""
    sticky_by: CallKey | None = None
    """Key whose calls always go to the same target, such as `header:x-user` for a canary: the
    weights then decide about keys. `client` for the name of the client, `address` for its IP
    address, `model`, or `header:NAME`; calls without the header go by weight. Default: each call
    goes by weight."""
    sequence_ids: Literal["checked", "text"] = "checked"
    """What happens to a sequence id that is a string, if the upstream does not show the
    configuration of the model. `checked` refuses it. `text` forwards it: a client can then end a
    Triton server whose model has its sequence ids as numbers. Default: `checked`."""
    # A retired key, see retired.py.
    queue_priority_by: Annotated[Text, Field(pattern=HEADER_KEY)] | None = None

    @model_validator(mode="after")
    def _check_weights(self) -> RouteConfig:
        if not any(target.weight for target in self.targets):
            raise ValueError("all targets have weight 0: at least one needs a weight above 0")
        if self.hedge is not None and (self.retry is None or not self.retry.idempotent):
            raise ValueError(
                "'hedge' runs calls twice; it needs 'retry: {idempotent: true}', your word that a "
                "repeated call has no further effect"
            )
        return self
