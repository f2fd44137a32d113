"""The keys of an upstream about its endpoints: which of them gets a call, and which gets none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from gateway.ir.call_keys import key_of
from gateway.ir.errors import ErrorCode
from gateway.routing.balancing.load_balancing import BalancingPolicy, LoadBalancer
from gateway.routing.balancing.outlier_detection import OFF, OutlierDetection
from gateway.settings.config_view import ConfigView, Finding
from gateway.settings.fields import CallKey, Duration, Off
from gateway.settings.model import Model
from gateway.settings.setting import Setting

_Balance = Literal["least_request", "least_pending", "peak_ewma", "round_robin", "random", "hash"]


class OutlierDetectionConfig(Model):
    """When an address of an upstream is ejected: it gets no calls for a while.

    One trial call ends the ejection or prolongs it: when the time is over, or after a successful
    probe, but not within half of `base_ejection_time` after a failed trial. The last available
    address is not ejected. A server that refuses calls or replies with errors gets a smaller share
    instead.
    """

    consecutive_failures: Annotated[int, Field(ge=0)] = 5
    """Failures in a row that eject an address: failed connections, resets, responses that cannot be
    decoded, and replies that it is unavailable while it has no other calls. Timeouts count if the
    calls had five times its usual latency, or 1 s. `0` ejects for neither. Default: `5`."""
    base_ejection_time: Duration = Field(5.0, gt=0)
    """Length of the first ejection. Each that follows is longer by as much, up to 60 s. At most
    half of the addresses are ejected. Default: `5s`."""
    failure_codes: tuple[Literal["internal", "upstream", "not_ready", "not_found"], ...] = ()
    """Further errors of the server that count, by their code in the log and the metrics.
    Default: `[]`."""
    slow_factor: Annotated[float, Field(gt=1)] | None = None
    """Multiple of the median latency of the other addresses above which one is ejected.
    Addresses with 20 calls are compared every 10 s. The latency of a trial decides whether that
    ends. Default: none."""
    # Retired keys, see retired.py.
    consecutive_timeouts: Annotated[int, Field(ge=0)] | None = None
    max_ejection_time: Duration = 60.0
    max_ejection_percent: Annotated[int, Field(ge=0, le=100)] = 50
    min_requests: Annotated[int, Field(ge=1)] = 20
    interval: Duration = Field(10.0, gt=0)

    @model_validator(mode="after")
    def _check_times(self) -> OutlierDetectionConfig:
        if self.base_ejection_time > self.max_ejection_time:
            raise ValueError(
                f"base_ejection_time is {self.base_ejection_time:g}s: expected at most "
                f"max_ejection_time, which is {self.max_ejection_time:g}s"
            )
        return self


BALANCE: Final = Setting[_Balance](
    key="balance",
    type=_Balance,
    default="least_request",
    help="How an address is chosen. `least_request`, or `least_pending`, draws two, and takes the "
    "one with fewer calls in flight, or else the lower latency. `peak_ewma` "
    "multiplies both. `hash` sends calls with the same key to the same address. Default: "
    "`least_request`.",
    places=("upstream",),
)
HASH_BY: Final = Setting[str](
    key="hash_by",
    type=CallKey,
    default="model",
    help="Key of `hash`: `model`, `client` for the client's name, `address` for its IP address, "
    "or `header:NAME`. Calls without the header go as with `least_request`. Default: "
    "`model`.",
    places=("upstream",),
)
SLOW_START: Final = Setting[float | None](
    key="slow_start",
    type=Duration | None,
    default=None,
    help="Time in which the share of an address that is available again grows from 10 %. "
    "Default: none.",
    places=("upstream",),
)
OUTLIER_DETECTION: Final = Setting[OutlierDetectionConfig | Literal[False]](
    key="outlier_detection",
    type=OutlierDetectionConfig | Off,
    default=OutlierDetectionConfig(),
    help="When an address is ejected, of upstreams with several. "
    "`false` switches it off. Default: the values of its keys.",
    places=("upstream",),
)
ENDPOINT_KEYS: Final = (BALANCE, HASH_BY, SLOW_START, OUTLIER_DETECTION)


def check_hash_keys(config: ConfigView) -> Iterator[Finding]:
    """Yield the upstreams with a key of a hash that they do not use."""
    hashed = {path[:-1] for path, balance in config.values(BALANCE) if balance == "hash"}
    for path, _ in config.values(HASH_BY):
        if path[:-1] not in hashed:
            yield path[:-1], "'hash_by' needs 'balance: hash'"


def balancer_of(upstream: Model) -> LoadBalancer:
    """Return what chooses an endpoint of an upstream."""
    name = BALANCE.of(upstream)
    policy = BalancingPolicy("least_request" if name == "least_pending" else name)
    by_hash = policy is BalancingPolicy.HASH
    return LoadBalancer(policy, key_of(HASH_BY.of(upstream)) if by_hash else None)


def outlier_detection_of(upstream: Model) -> OutlierDetection:
    """Return when an endpoint of an upstream is ejected."""
    config = OUTLIER_DETECTION.of(upstream)
    if config is False:
        return OFF
    timeouts = config.consecutive_timeouts
    return OutlierDetection(
        consecutive_failures=config.consecutive_failures,
        consecutive_timeouts=config.consecutive_failures if timeouts is None else timeouts,
        base_ejection_s=config.base_ejection_time,
        max_ejection_s=config.max_ejection_time,
        max_ejection_percent=config.max_ejection_percent,
        failure_codes=frozenset(map(ErrorCode, config.failure_codes)),
        slow_factor=config.slow_factor or 0.0,
        min_requests=config.min_requests,
        interval_s=config.interval,
    )
