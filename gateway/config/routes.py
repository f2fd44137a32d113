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
    """Requested versions; `""` for none. Default: every version."""
    protocol: Annotated[Names, NameOf("protocol")] | None = None
    """Names or patterns of protocol and carrier, such as `oip.*`. Default: every protocol."""
    headers: Mapping[Name, Scalar] = Field(default_factory=dict)
    """Headers or gRPC metadata, each with the pattern of its value. Default: any."""
    clients: Annotated[FullNames, NameOf("client")] = ()
    """Names or patterns of clients, as `clients` defines them; `anonymous` without a credential.
    Default: `[]`, which means all."""
    groups: Annotated[FullNames, NameOf("group")] = ()
    """Groups or patterns, of which the client has one. Default: `[]`, which means all."""
    tiers: Annotated[FullNames, NameOf("tier")] = ()
    """Tiers or patterns of them. Default: `[]`, which means all."""


class TargetConfig(Model):
    """A destination of a route: a model of an upstream, or a model of the gateway."""

    upstream: Annotated[Name, NameOf("upstream")] | None = None
    """Upstream that serves it. Default: the gateway, which runs `model`."""
    model: Name | None = None
    """Its name at the target; required without `upstream`. Default: the name that the client
    requested."""
    version: Scalar | None = None
    """Its version at the target. Default: the version that the client requested."""
    weight: int = Field(1, ge=0, le=1_000_000)
    """Share of the calls, relative to the other weights. Default: `1`."""
    priority: int = Field(0, ge=0, le=1000)
    """It gets calls only while no target with a smaller number is ready. Default: `0`."""

    @model_validator(mode="after")
    def _check_destination(self) -> TargetConfig:
        if self.upstream is None and self.model is None:
            raise ValueError("a target needs 'upstream', or 'model' for a model of the gateway")
        return self


class PoliciesConfig(Model):
    """Timeouts, retries and concurrency of every route, which may override some of them."""


class RouteConfig(Model):
    """A rule that sends matching calls to one of its targets. The first matching route applies."""

    name: Name | None = None
    """Its name in logs, metrics and errors, different for each. Default: `route-N`, N from 1."""
    match: MatchConfig | None = None
    """Conditions on its calls. Default: every call."""
    targets: tuple[TargetConfig, ...] = Field(min_length=1)
    """Where each call goes, by weight. At least one weight is above 0."""
    sequence_ids: Literal["checked", "text"] = "checked"
    """What happens to a sequence id that is text, if the upstream does not show the configuration
    of the model. `checked` refuses it. `text` forwards it, which can end a Triton whose model has
    numbers as ids. Default: `checked`."""

    @model_validator(mode="after")
    def _check_weights(self) -> RouteConfig:
        if not any(target.weight for target in self.targets):
            raise ValueError("all targets have weight 0: at least one needs a weight above 0")
        return self
