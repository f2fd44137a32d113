"""The keys of retries: `retry` of `policies` and of a route. `retry.py` has what they configure."""

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from gateway.api.layer import LayerContext
from gateway.policies.limits.retry import RetryRules
from gateway.settings.fields import DURATION, Duration, field_schema
from gateway.settings.model import Model
from gateway.settings.setting import Setting
from gateway.settings.units import parse_duration

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
    """`unsent`: the upstream did not receive the call. `connect_failure`: no connection could be
    opened. `reset_before_answer`: the connection broke. `unavailable`, `overloaded`: the server
    replied so. `timeout`: `per_try_timeout` passed, or the server replied so. Where a server
    asks for a pause, the retry goes to another address, or waits if it is at most ten times
    `backoff`. Default: `[unsent]`."""
    attempts: int = Field(2, ge=1, le=5)
    """Most attempts, with the first one. Default: `2`."""
    per_try_timeout: Duration | None = None
    """Longest time of one attempt. The route's timeout includes all. Default: none."""
    backoff: Annotated[BackoffConfig, field_schema(DURATION, "string", "25ms")] = BackoffConfig()
    """Longest pause before the first retry; each is a random time. It doubles with each retry,
    up to ten times as much. Default: `25ms`."""
    budget: float = Field(0.2, ge=0, le=1)
    """Most concurrent retries, as a share of the calls in flight; of calls that may have run also
    of those of the last seconds. Three are always allowed. Calls that another server serves after a
    refusal need none. `0` switches retries off. Default: `0.2`."""
    idempotent: bool = False
    """Whether repeated calls have no further effect. Every reason but `unsent` and
    `connect_failure` needs it. Default: `false`."""
    # Retired keys, see retired.py.
    elsewhere: bool = True
    min_retries: int = Field(3, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _read_on(cls, value: object) -> object:
        """Read `true` as `on`, of which YAML 1.1, as Helm reads it, makes that."""
        if isinstance(value, dict) and "true" in value and "on" not in value:
            return {"on" if key == "true" else key: found for key, found in value.items()}
        return value

    @model_validator(mode="after")
    def _check_reasons(self) -> "RetryConfig":
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

    def rules(self) -> RetryRules:
        """Return the rules that the keys configure."""
        return RetryRules(
            reasons=frozenset(self.on),
            attempts=self.attempts,
            base_s=self.backoff.base,
            max_s=self.backoff.max,
            elsewhere=self.elsewhere,
            ratio=self.budget,
            least=self.min_retries,
        )


RETRY: Final = Setting[RetryConfig | None](
    key="retry",
    type=RetryConfig | None,
    default=RetryConfig(),
    help=("`null` switches retries off. Default: the defaults of the keys."),
    places=("policies",),
)
ROUTE_RETRY: Final = Setting[RetryConfig | None](
    key="retry",
    type=RetryConfig | None,
    default=None,
    help=("`{budget: 0}` switches retries off for this route. Default: `policies.retry`."),
    places=("route",),
)


def retries_of(route: Model | None, policies: Model) -> RetryConfig | None:
    """Return when calls of a route are repeated; None for never.

    Args:
        route: Its section of the file; None for a default route.
        policies: The section with the defaults of all routes.
    """
    return ROUTE_RETRY.of(route) or RETRY.of(policies)


def retries_at(at: LayerContext) -> RetryConfig | None:
    """Return when calls of the route are repeated whose layers are built; None for never."""
    return at.setting(ROUTE_RETRY) or at.setting(RETRY)
