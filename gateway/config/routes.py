"""The parts of the configuration file that belong to routes: matches, targets and policies.

The keys of timeouts, retries, limits and other policies are those of their layers; see
`gateway.config.extended`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from gateway.settings.fields import FullNames, Name, NameOf, Names, Scalar
from gateway.settings.model import Model


class MatchConfig(Model):
    """Conditions on a call. All of them must hold. Patterns may contain `*`, `?` and `[...]`."""

    model: Annotated[Names, NameOf("model")] | None = None
    """Names or patterns of models. Default: every model."""
    version: Names | None = None
    """Requested versions. `""` stands for requests without a version. Default: every version."""
    protocol: Annotated[Names, NameOf("protocol")] | None = None
    """Names or patterns of protocol and carrier, such as `oip.http` or `oip.*`. Default: every
    protocol."""
    headers: Mapping[Name, Scalar] = Field(default_factory=dict)
    """Names of headers or gRPC metadata, each with the pattern of its value. Default: no
    condition."""
    clients: Annotated[FullNames, NameOf("client")] = ()
    """Names or patterns of clients, as `clients` defines them; `anonymous` without a credential.
    Default: `[]`, which means every client."""
    groups: Annotated[FullNames, NameOf("group")] = ()
    """Groups or patterns of groups; the client must have one of them. Default: `[]`, which means
    every client."""
    tiers: Annotated[FullNames, NameOf("tier")] = ()
    """Tiers or patterns of tiers of clients. Default: `[]`, which means every client."""


class TargetConfig(Model):
    """A destination of a route: a model of an upstream, or a model of the gateway."""

    upstream: Annotated[Name, NameOf("upstream")] | None = None
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
    """The target gets calls only while none with a smaller number is ready. Default: `0`."""

    @model_validator(mode="after")
    def _check_destination(self) -> TargetConfig:
        if self.upstream is None and self.model is None:
            raise ValueError("a target needs 'upstream', or 'model' for a model of the gateway")
        return self


class PoliciesConfig(Model):
    """Timeouts, retries and concurrency of every route. A route may override some of them."""


class RouteConfig(Model):
    """A rule that sends matching calls to one of its targets. The first matching route applies."""

    name: Name | None = None
    """Name of the route in logs, metrics and errors, different for each. Default: `route-N`, with
    the position of the route in the list from 1."""
    match: MatchConfig | None = None
    """Conditions on the calls of this route. Default: every call."""
    targets: tuple[TargetConfig, ...] = Field(min_length=1)
    """Destinations, of which each call gets one, by weight. At least one weight is above 0."""
    sequence_ids: Literal["checked", "text"] = "checked"
    """What happens to a sequence id that is a string, if the upstream does not show the
    configuration of the model. `checked` refuses it. `text` forwards it: a client can then end a
    Triton server whose model has its sequence ids as numbers. Default: `checked`."""

    @model_validator(mode="after")
    def _check_weights(self) -> RouteConfig:
        if not any(target.weight for target in self.targets):
            raise ValueError("all targets have weight 0: at least one needs a weight above 0")
        return self
